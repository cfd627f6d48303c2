"""A table of the live benchmark's programs and their correct answers.

The hash of a program's name determines whether the program is *frozen*. Frozen programs are used only for
measurements, and Stallwatch is never tuned to them. The other programs are also used for development.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

#: Command of each launch form. ``{python}`` is the interpreter in the folder of ``stallwatch``, and
#: ``{port}`` is a free port.
FORMS = {
    "python": "{python} {program}",
    "torchrun2": "{python} -m torch.distributed.run --standalone --nproc-per-node 2 {program}",
    "torchrun3": "{python} -m torch.distributed.run --standalone --nproc-per-node 3 {program}",
    "pair": "bash -c 'export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port};"
    " RANK=0 LOCAL_RANK=0 {python} {program} & RANK=1 LOCAL_RANK=1 {python} {program} & wait'",
    "tee": "bash -c '{python} {program} 2>&1 | tee train.log'",
    "no-probe": "{python} {program}",  # runs under ``stallwatch run --no-probe``
    "tail": "{python} {program}",  # runs without an agent; ``stallwatch tail`` follows its output
}


@dataclass(frozen=True)
class Expected:
    """The required content of the first message after the event, and the time limit for this message."""

    place: str  #: regular expression for the function, the line, or the phase of the program
    cause: str  #: a key of `live_scoring.CAUSES`
    rank: int | None = None  #: the rank at fault, if there are several ranks
    limit: str = "probe"  #: a key of `live_scoring.LIMITS`
    severities: tuple[str, ...] = ("critical",)
    recovers: bool = False  #: True if the program recovers, so that the incident is closed


@dataclass(frozen=True)
class Program:
    """A program with its command and its correct answer."""

    name: str
    family: str
    file: str  #: file in the folder of this module
    scenario: str  #: name of the function
    seconds: float  #: approximate duration
    form: str = "python"
    expected: Expected | None = None  #: ``None`` for a healthy program
    state: str = "finished"  #: final state of a healthy program; "unknown" if a followed log ends mid-run
    needs: tuple[str, ...] = ()  #: required packages
    signals: tuple[tuple[float, str], ...] = ()  #: signals to send: (seconds after the event, signal)

    @property
    def healthy(self) -> bool:
        return self.expected is None

    @property
    def frozen(self) -> bool:
        """Return True if the program is frozen. A third of all programs are frozen."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 3 == 0


TORCH = ("torch",)
CTRL_C = "Ctrl-C"  #: SIGINT for all processes of the terminal, including Stallwatch


def family(
    name: str, file: str, *, needs: tuple[str, ...] = (), form: str = "python", seconds: float
) -> Program:
    """Return the fields that are the same for all programs in a family."""
    return Program(name, name, file, "", seconds, form, needs=needs)


def _of(base: Program, scenario: str, expected: Expected | None = None, **changes: object) -> Program:
    """Return a program of a family. Its name includes the scenario and, if different, the launch form."""
    form = str(changes.get("form", base.form))
    suffix = "" if form == base.form else f"-{form}"
    name = f"{base.family}-{scenario.replace('_', '-')}{suffix}"
    return replace(base, name=name, scenario=scenario, expected=expected, **changes)  # type: ignore[arg-type]


PLAIN = family("plain", "plain.py", needs=TORCH, seconds=110)
PLAIN_HANG = replace(PLAIN, file="plain_failing.py", seconds=60)
DDP = family("ddp", "ddp.py", needs=TORCH, form="torchrun2", seconds=110)
DDP_HANG = replace(DDP, file="ddp_failing.py", seconds=60)
PRINTS = family("prints", "prints.py", seconds=80)
HF = family("hf", "hf.py", needs=("transformers",), seconds=110)
TRL = family("trl", "trl_trainers.py", needs=("trl",), seconds=110)
LIGHTNING = family("lightning", "lightning_fit.py", needs=("lightning",), seconds=110)
ACCELERATE = family("accelerate", "accelerate_loop.py", needs=("accelerate",), form="torchrun2", seconds=110)
FSDP = family("fsdp", "fsdp.py", needs=TORCH, form="torchrun2", seconds=110)
SPAWNED = family("spawned", "spawned.py", needs=TORCH, seconds=60)
ACTORS = family("actors", "actors.py", needs=TORCH, seconds=80)
RAY = family("ray", "with_ray.py", needs=("ray", "torch"), seconds=110)
NOTEBOOK = family("notebook", "notebook.py", needs=("nbconvert", "ipykernel", "torch"), seconds=90)
ZERO = family("zero", "zero.py", needs=("deepspeed",), form="torchrun2", seconds=110)

HEALTHY: list[Program] = [
    _of(PLAIN, "silent_evaluation"),
    _of(PLAIN, "announced_evaluation"),
    _of(PLAIN, "evaluation_with_a_bar"),
    _of(PLAIN, "inference_mode_evaluation"),
    _of(PLAIN, "slow_metric_from_the_first_evaluation_on"),
    _of(PLAIN, "slow_torch_save"),
    _of(PLAIN, "slow_safetensors"),
    _of(PLAIN, "final_save_and_merge"),
    _of(PLAIN, "upload"),
    _of(PLAIN, "checkpoint_rotation", seconds=70),
    _of(PLAIN, "loader_workers_start_slowly", seconds=150),
    _of(PLAIN, "shuffle_at_each_epoch", seconds=130),
    _of(PLAIN, "gradient_accumulation", seconds=150),
    _of(PLAIN, "uneven_steps_04", seconds=100),
    _of(PLAIN, "uneven_steps_08", seconds=100),
    _of(PLAIN, "uneven_steps_10", seconds=100),
    _of(PLAIN, "long_first_step"),
    _of(PLAIN, "reads_for_long_at_the_start"),
    _of(PLAIN, "caught_exceptions", seconds=70),
    _of(PLAIN, "retry_warnings", seconds=90),
    _of(PLAIN, "noise_of_a_logger", seconds=70),
    _of(PLAIN, "early_stopping", seconds=60),
    _of(PLAIN, "interrupted_by_its_user", state="interrupted", seconds=40, signals=((0.0, CTRL_C),)),
    _of(PLAIN, "trace_cache_lines_while_steps_advance", seconds=80),
    _of(PLAIN, "loss_spikes", seconds=80),
    _of(PLAIN, "silent_evaluation", form="no-probe"),
    _of(PLAIN, "announced_evaluation", form="tail", state="unknown"),
    _of(PLAIN, "slow_torch_save", form="tee"),
    _of(DDP, "evaluation_on_rank_0"),
    _of(DDP, "evaluation_on_all_ranks"),
    _of(DDP, "save_on_rank_0"),
    _of(DDP, "steady", seconds=70),
    _of(DDP, "uneven_steps", seconds=90),
    _of(DDP, "paused_as_a_group", signals=((0.0, "SIGSTOP"), (70.0, "SIGCONT"))),
    _of(PRINTS, "megatron"),
    _of(PRINTS, "nanogpt"),
    _of(PRINTS, "jax"),
    _of(PRINTS, "keras_bar"),
    _of(PRINTS, "tqdm_bar", seconds=110),
    _of(PRINTS, "rich_bar"),
    _of(PRINTS, "validation_lines", form="tail", state="unknown", seconds=160),
    _of(PRINTS, "megatron", form="tee"),
    _of(PRINTS, "warm_up"),
    _of(FSDP, "steady", seconds=80),
    _of(FSDP, "long_evaluation", seconds=130),
    _of(SPAWNED, "steady"),
    _of(ACTORS, "steady", seconds=80),
    _of(ACTORS, "slow_rollouts", seconds=130),
    _of(RAY, "steady"),
    _of(NOTEBOOK, "trains"),
    _of(NOTEBOOK, "kernel_is_idle_between_cells", seconds=150),
    _of(HF, "steady", seconds=80),
    _of(HF, "long_evaluation", seconds=150),
    _of(HF, "long_evaluation_without_bars", seconds=150),
    _of(HF, "slow_metric_from_the_first_evaluation_on", seconds=150),
    _of(HF, "checkpoints_with_rotation", seconds=80),
    _of(HF, "upload_after_a_checkpoint"),
    _of(HF, "early_stopping", seconds=80),
    _of(HF, "gradient_accumulation", seconds=150),
    _of(HF, "multi_epoch", seconds=90),
    _of(TRL, "sft_steady", seconds=80),
    _of(TRL, "sft_long_evaluation", seconds=150),
    _of(TRL, "dpo_steady", seconds=90),
    _of(TRL, "grpo_zero_loss", seconds=80),
    _of(TRL, "grpo_growing_rollouts", seconds=190),
    _of(LIGHTNING, "steady", seconds=80),
    _of(LIGHTNING, "long_validation", seconds=170),
    _of(LIGHTNING, "long_validation_without_a_bar", seconds=170),
    _of(LIGHTNING, "slow_metric_from_the_first_validation_on", seconds=150),
    _of(LIGHTNING, "checkpoints", seconds=80),
    _of(LIGHTNING, "early_stopping", seconds=60),
    _of(LIGHTNING, "accumulation", seconds=150),
    _of(ACCELERATE, "steady", seconds=80),
    _of(ACCELERATE, "gathered_evaluation", seconds=130),
    _of(ACCELERATE, "accumulation", seconds=120),
    _of(ACCELERATE, "save_state", seconds=80),
    _of(ZERO, "steady_zero1", seconds=80),
    _of(ZERO, "evaluation_zero2", seconds=140),
    _of(ZERO, "evaluation_zero3", seconds=140),
    _of(ZERO, "checkpoints_zero3", seconds=90),
]

EITHER = ("warning", "critical")
METRIC_HANGS = Expected("compute_metrics", "evaluation", limit="evaluation")

FAILING: list[Program] = [
    _of(PLAIN_HANG, "hang_in_own_code", Expected("stuck", "own-code")),
    _of(
        PLAIN_HANG,
        "endless_loop",
        Expected("collapse", "busy", limit="busy", severities=("warning", "critical")),
    ),
    _of(PLAIN_HANG, "request_without_timeout", Expected("fetch_weights", "network", limit="patience")),
    _of(PLAIN_HANG, "lock_of_a_dead_owner", Expected("take_lock", "lock")),
    _of(PLAIN_HANG, "loader_worker_waits_for_a_lock", Expected("DataLoader", "loader")),
    _of(
        PLAIN_HANG,
        "metric_hangs_at_the_5th_evaluation",
        Expected("compute_metrics", "evaluation", limit="evaluation"),
        seconds=110,
    ),
    _of(
        PLAIN_HANG,
        "save_into_a_blocked_pipe",
        Expected(r"torch\.save|save_checkpoint", "save", limit="evaluation"),
    ),
    _of(PLAIN_HANG, "chatty_logger_beside_a_hang", Expected("stuck", "own-code")),
    _of(
        PLAIN_HANG,
        "trace_cache_lines_without_steps",
        Expected("rebuild", "trace-cache", limit="trace-cache", recovers=True),
        seconds=110,
    ),
    _of(PLAIN_HANG, "out_of_memory", Expected("forward", "oom", limit="crash")),
    _of(PLAIN_HANG, "out_of_memory", Expected("forward", "oom", limit="crash"), form="tee"),
    _of(PLAIN_HANG, "exception", Expected("collate", "exception", limit="crash")),
    _of(PLAIN_HANG, "nan_in_the_log", Expected("", "nan")),
    _of(PLAIN_HANG, "nan_that_only_the_probe_sees", Expected("", "nan")),
    _of(PLAIN_HANG, "killed", Expected("", "killed", limit="crash")),
    _of(
        PLAIN_HANG,
        "hang_in_own_code",
        Expected("stuck", "own-code", limit="no-probe"),
        form="no-probe",
        seconds=120,
    ),
    _of(PLAIN_HANG, "log_stops", Expected("", "no-progress", limit="no-probe"), form="tail", seconds=120),
    _of(DDP_HANG, "rank_1_hangs", Expected("collapse", "own-code", 1)),
    _of(DDP_HANG, "rank_2_hangs", Expected("collapse", "own-code", 2), form="torchrun3"),
    _of(
        DDP_HANG, "rank_1_misses_a_collective", Expected("balance|barrier", "collective", 1), form="torchrun3"
    ),
    _of(DDP_HANG, "mismatched_collectives", Expected("balance|barrier|all_gather", "collective")),
    _of(DDP_HANG, "rank_1_is_stopped", Expected("", "stopped", 1)),
    _of(DDP_HANG, "rank_1_is_killed", Expected("", "killed", 1, "crash")),
    _of(DDP_HANG, "rank_1_is_killed", Expected("", "killed", 1, "crash"), form="pair"),
]

FAILING += [
    _of(PRINTS, "keras_bar_stops", Expected("", "no-progress", limit="no-probe"), seconds=160),
    _of(PRINTS, "megatron_stops", Expected("", "no-progress", limit="no-probe"), seconds=130),
    _of(PRINTS, "jax_stops", Expected("hang", "no-progress", limit="no-probe"), seconds=130),
    _of(PRINTS, "tqdm_bar_stops", Expected("hang", "no-progress", limit="no-probe"), seconds=130),
    _of(PRINTS, "megatron_stops", Expected("", "no-progress", limit="no-probe"), form="tail", seconds=130),
    _of(PRINTS, "out_of_memory", Expected("", "oom", limit="crash"), form="tee", seconds=40),
    _of(
        PLAIN_HANG,
        "truncated_checkpoint",
        Expected("checkpoint-70", "truncated", limit="early", severities=EITHER),
    ),
    _of(PLAIN_HANG, "slow_down", Expected("", "slow", limit="early", severities=EITHER), seconds=140),
    _of(PLAIN_HANG, "hang_in_a_generation", Expected("sample_text", "own-code")),
    _of(DDP_HANG, "rank_1_straggles", Expected("", "straggler", 1, "early", EITHER), seconds=100),
    _of(DDP_HANG, "out_of_memory", Expected("forward", "oom", 1, "crash")),
    _of(
        DDP_HANG,
        "rank_0_hangs_in_the_5th_evaluation",
        Expected("score_samples", "evaluation", 0, "evaluation"),
    ),
    _of(DDP_HANG, "loader_of_rank_1_hangs", Expected("DataLoader", "loader", 1)),
    _of(DDP_HANG, "rank_1_never_joins", Expected("fetch_dataset", "start", 1, "start"), seconds=640),
    _of(FSDP, "rank_1_hangs", Expected("pack_sequences", "own-code", 1), seconds=60),
    _of(SPAWNED, "rank_1_hangs", Expected("filter_samples", "own-code", 1)),
    _of(SPAWNED, "rank_1_is_killed", Expected("", "killed", 1, "crash")),
    _of(ACTORS, "actor_hangs", Expected("next_rollout|step_environment", "own-code"), seconds=60),
    _of(ACTORS, "actor_is_killed", Expected("next_rollout|actor|play", "own-code"), seconds=60),
    _of(RAY, "player_hangs", Expected("learn|play|step_environment", "own-code"), seconds=60),
    _of(NOTEBOOK, "cell_hangs", Expected("wait_for_labels", "own-code"), seconds=60),
    _of(HF, "metric_hangs_at_the_5th_evaluation", METRIC_HANGS, seconds=110),
    _of(HF, "metric_hangs_at_the_8th_evaluation", METRIC_HANGS, seconds=130),
    _of(HF, "callback_hangs", Expected("push_metrics", "own-code"), seconds=60),
    _of(HF, "labels_that_do_not_fit", Expected("", "exception", limit="crash"), seconds=60),
    _of(HF, "nan", Expected("", "nan"), seconds=60),
    _of(HF, "nan_that_the_filter_hides", Expected("", "nan"), seconds=60),
    _of(TRL, "grpo_reward_hangs", Expected("score_answers", "reward"), seconds=60),
    _of(
        TRL,
        "grpo_reward_hangs_on_rank_1",
        Expected("score_answers", "reward", 1),
        form="torchrun2",
        seconds=60,
    ),
    _of(TRL, "sft_collator_hangs", Expected("collate_with_images", "own-code"), seconds=60),
    _of(TRL, "dpo_out_of_memory", Expected("training_step", "oom", limit="crash"), seconds=60),
    _of(LIGHTNING, "hang_in_a_training_step", Expected("collect_statistics", "own-code"), seconds=60),
    _of(LIGHTNING, "metric_hangs_at_the_5th_validation", METRIC_HANGS, seconds=110),
    _of(LIGHTNING, "nan", Expected("", "nan"), seconds=60),
    _of(LIGHTNING, "exception", Expected("augment", "exception", limit="crash"), seconds=60),
    _of(ACCELERATE, "rank_1_hangs", Expected("refresh_prompts", "own-code", 1), seconds=60),
    _of(
        ACCELERATE,
        "rank_1_leaves_the_gather_out",
        Expected("wait_for_everyone|barrier", "collective"),
        seconds=60,
    ),
    _of(ACCELERATE, "exception_on_rank_1", Expected("hook", "exception", 1, "crash"), seconds=60),
    _of(ZERO, "rank_1_hangs_zero1", Expected("rewrite_prompts", "own-code", 1), seconds=60),
    _of(ZERO, "rank_1_hangs_zero2", Expected("rewrite_prompts", "own-code", 1), seconds=60),
    _of(ZERO, "rank_1_hangs_zero3", Expected("rewrite_prompts", "own-code", 1), seconds=60),
    _of(ZERO, "rank_1_hangs_after_trace_cache_lines", Expected("rewrite_prompts", "own-code", 1), seconds=60),
    _of(ZERO, "rank_0_saves_alone_zero3", Expected("save|barrier", "collective"), seconds=60),
    _of(ZERO, "exception_on_rank_1_zero2", Expected("", "exception", 1, "crash"), seconds=60),
]

PROGRAMS: list[Program] = [*HEALTHY, *FAILING]
