"""The English sentences."""

from __future__ import annotations

from stallwatch_alerts.messages.words import Words


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 10 s``, ``1 h 5 min``, ``2 d 3 h``: two units are enough."""
    whole = max(0, round(seconds))
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            count, rest = whole // size, whole % size // below
            return f"{count} {unit} {rest} {smaller}" if rest else f"{count} {unit}"
    return f"{whole} s"


WORDS = Words(
    language="en",
    duration=duration,
    rank="rank {rank}",
    step="step {step}",
    step_of="step {step} of {total}",
    phases={
        "init": "start-up",
        "train": "training",
        "eval": "evaluation",
        "save": "checkpoint",
        "rollout": "rollout",
        "weight-sync": "weight sync",
        "idle": "idle",
    },
    harms={
        "fatal": "fatal",
        "degrading": "degrading",
        "harmless": "harmless",
        "by-progress": "harm not known yet",
    },
    stalled="stalled: no step for {duration}",
    stalled_after="stalled: no step for {duration} after {step}",
    stalled_in_phase="stalled: no progress for {duration} in {phase}",
    recovered="recovered after {duration}",
    finding="{harm}: {title}",
    finding_over="over: {title}",
    with_run={
        "run-failed": "ended with the run (failed): {title}",
        "run-stopped": "ended with the run (stopped by hand): {title}",
        "unmended": "still there as the run ended: {title}",
    },
    over={
        "": "no longer stalled",
        "run-finished": "stall over: the run finished",
        "run-failed": "ended with the run (failed), after a stall of {duration}",
        "run-stopped": "stopped by hand, after a stall of {duration}",
        "unknown": "it was stalled when last seen",
    },
    endings={
        "finished": "finished after {duration}",
        "failed": "failed",
        "oom-killed": "killed by the kernel's OOM killer",
        "killed": "killed by {signal}",
        "time-limit": "stopped at its time limit",
        "interrupted": "interrupted",
        "unknown": "ended, it is not known how",
    },
    because="{ending}: {title}",
    with_code="{ending} with exit code {code}",
    in_rank="{title} ({rank})",
    more_than="more than {duration}",
    stall_sentence="No step has finished for {duration}. This run's own rhythm allows {threshold}.",
    stall_sentence_start="No step has finished for {duration}. "
    "The {threshold} that a start-up may take are over.",
    stall_sentence_learning="No step has finished for {duration}. "
    "Too little was seen of this run to know its rhythm; until then, {threshold} are allowed.",
    stall_sentence_plain="No step has finished for {duration}.",
    recovered_sentence="Steps are advancing again.",
    over_sentence={
        "": "This is over.",
        "recovered": "This is over.",
        "run-finished": "The run has finished.",
        "run-failed": "The run has failed.",
        "run-stopped": "The run was stopped by hand (Ctrl-C).",
        "unmended": "The run has ended; this was not mended.",
        "unknown": "The agent that told of this was killed, or its host was. "
        "Whether the run goes on is not known: look at the job, and watch it again with stallwatch tail.",
    },
    unwatched="nobody watches it any more: {title}",
    unwatched_after="That it is gone was found {duration} after the beginning.",
    lasted="It lasted {duration}.",
    run="Run: {run}",
    on_host="Run: {run} on {host}",
    place="At: ",
    last_loss="last loss {loss}",
    comma=", ",
    cause="Likely cause: {title} ({rule}), {harm}",
    stall_cause="It was: {title}",
    rank_gone="a rank's process is gone while the others go on",
    rank_gone_why="Nobody tells the others: they will wait for it in a collective, until its time-out.",
    # torchrun: SubprocessContext._poll ends all processes of its node once one has failed (torch 2.13.0,
    # distributed/elastic/multiprocessing/api.py). srun: -K, --kill-on-bad-exit in srun(1); where it is not
    # given, KillOnBadExit of slurm.conf(5) decides.
    rank_gone_fixes=(
        "Was it killed for memory? dmesg -T | grep -i 'killed process' on its host (as root), "
        "or the state of its job or pod, tells.",
        "Read its own last lines: on the run's page, or below ranks/ in the run's folder.",
        "Start the run anew from its last checkpoint, with a launcher that ends all ranks when one dies: "
        "torchrun does, and srun with --kill-on-bad-exit=1.",
    ),
    evidence="Evidence:",
    fixes="What to do:",
    look="Look further:",
    rank_pid="rank {rank} (PID {pid})",
    since="{sentence} The last step was at {when}.",
    also_seen="Also seen, as background: {rules}",
    after_stall="{title} after a stall of {duration}",
    ended="How it ended: {ending}",
    exit_code="exit code {code}",
    ran_for="after {duration}",
    test_title="[stallwatch] test message",
    test_text="Stallwatch can reach this channel. Incidents of your runs will arrive here.",
    and_others="{title} (and {count} more)",
    also="At the same time:",
    further="… and {count} more",
    tally={"critical": "critical", "warning": "warnings", "info": "notes", "resolved": "ended"},
    in_all="In all: {tally}.",
    late="This message is of {when} and comes {duration} late: "
    "the chat was down, busy or not to be disturbed.",
    expired="Messages that could not be delivered within a day and were given up: {count}. "
    "stallwatch alerts deliveries lists them.",
    escalated="{title} (nobody has acknowledged it for {duration})",
    acknowledge="Whoever takes care of it: stallwatch alerts ack {id}",
    rule_link="Rule: ",
    page_link="Page: ",
    alert_over="over: {title}",
    alerts={},  # the rule files speak English
)
