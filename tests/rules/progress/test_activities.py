"""Activity of the missing rank when the collective of the others timed out."""

from __future__ import annotations

import pytest
from smallruns import raised, steps

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.activities import Activity, follow
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line, Primary

TIMED_OUT = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51, OpType=ALLREDUCE,"
    " NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800029 milliseconds before timing out."
)
LOADING = "Loading checkpoint shards:  50%|█████     | 2/4 [00:10<00:10,  5.00s/it]\n"
SPLIT = "Generating train split: {done} examples [{clock}, 6.60 examples/s]"


def after(*texts: str) -> Activity | None:
    activity = None
    for number, text in enumerate(texts, 1):
        activity = follow(activity, Line(text, "run.log", number))
    return activity


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("Generating train split: 0 examples [00:00, ? examples/s]", "generating-split", "train"),
        ("Map (num_proc=8):  41%|████      | 4100/10000 [00:10<00:15, 400.00 examples/s]",
         "preparing-dataset", ""),
        ("Tokenizing train dataset:  41%|████      | 4100/10000 [00:10<00:15, 400.00 examples/s]",
         "preparing-dataset", ""),
        ("Loading checkpoint shards:  50%|█████     | 2/4 [00:10<00:10,  5.00s/it]", "loading-weights", ""),
        ("Downloading shards:  25%|██▌       | 1/4 [03:10<09:30, 190.00s/it]", "downloading", ""),
        ("Got disconnected from remote data host. Retrying in 5sec [2/20]", "retrying-download", ""),
        ("Retrying in 1s [Retry 1/5].", "retrying-download", ""),
        ("Building extension module cpu_adam...", "compiling", ""),
        ("[2/3] /usr/local/cuda/bin/nvcc  -DTORCH_EXTENSION_NAME=fused_adam", "compiling", ""),
        ("saving checkpoint at iteration    5000 to /ckpt in torch_dist format", "saving", ""),
        ("Saving model checkpoint to out/checkpoint-500", "saving", ""),
        ("***** Running Evaluation *****", "evaluating", ""),
        ("Evaluating:  12%|█▏        | 12/100 [05:00<36:40, 25.00s/it]", "evaluating", ""),
        ("[Eval batch=9/90] Eval on lambada/0-shot data", "evaluating", ""),
        (" > building shuffle index with split [0, 100) and [100, 100) ...", "loading-dataset", ""),
    ],
)  # fmt: skip
def test_activities_are_recognized_by_their_lines(text: str, kind: str, what: str) -> None:
    activity = after(text)
    assert activity is not None and (activity.kind, activity.what) == (kind, what)


@pytest.mark.parametrize(
    "text",
    [
        "Map: 100%|██████████| 10000/10000 [00:25<00:00, 400.00 examples/s]",
        "Loading checkpoint shards: 100%|██████████| 4/4 [00:20<00:00,  5.00s/it]",
        "Mapping of ranks to nodes: 4 per node",
        "Downloading is disabled in offline mode",
        "Loading extension module cpu_adam...",
        "INFO Generating a config",
        "[Eval batch=90/90] Eval on lambada/0-shot data:",  # the metrics follow, so the evaluation has ended
    ],
)
def test_finished_or_mentioned_activity_does_not_count(text: str) -> None:
    assert after(text) is None


def test_activity_lasts_as_long_as_its_bar() -> None:
    first, last = SPLIT.format(done=0, clock="00:00"), SPLIT.format(done=12300, clock="31:02")
    activity = after(first, "a warning in between", last)
    assert activity is not None and activity.seconds == 1862 and activity.first.number == 1
    assert after(first, last, "Map: 100%|██████████| 10/10 [00:25<00:00, 400.00 examples/s]") is None


@pytest.mark.parametrize(
    ("texts", "ended"),
    [
        (("saving checkpoint at iteration 30 to /x", "  successfully saved checkpoint 30"), False),
        (("saving checkpoint at iteration 30 to /x", "INFO successfully saved checkpoint 30"), True),
        (("***** Running Evaluation *****", "  Num examples = 100", "{'eval_loss': 1.2}"), True),
        (("***** Running Evaluation *****", "  Num examples = 100", "  Batch size = 8"), False),
        (("Building extension module fused_adam...", "Time to load fused_adam op: 0.2 seconds"), True),
        (("Building extension module fused_adam...", "[1/3] c++ -MMD -MF fused_adam.o.d"), False),
        ((SPLIT.format(done=0, clock="00:00"), "a warning", SPLIT.format(done=1, clock="00:09")), False),
    ],
)
def test_next_message_ends_an_activity(texts: tuple[str, ...], ended: bool) -> None:
    activity = after(*texts)
    assert activity is not None and (activity.after is not None) is ended


def diagnose(catalogue: Catalogue, matcher: Matcher, files: dict[str, str]) -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    for name, text in files.items():
        reader = LineReader(name)
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
    return reading.diagnose()


def cause(diagnosis: Diagnosis) -> Primary:
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule == "nccl-collective-timeout"
    return diagnosis.primary


def test_activities_of_interleaved_ranks_with_times(catalogue: Catalogue, matcher: Matcher) -> None:
    rows = ["[rank0]: 2026-05-02 09:00:00,000 INFO Saving model checkpoint to out/checkpoint-20"]
    rows += [f"[rank{rank}]: 2026-05-02 09:01:00,000 INFO waiting for rank 0" for rank in (1, 2, 3)]
    rows += [f"[rank{rank}]: 2026-05-02 09:31:00,000 {TIMED_OUT.format(rank=rank)}" for rank in (2, 1, 3)]
    log = "".join(f"[rank{rank}]: {line}\n" for rank in range(4) for line in steps(1, 20).splitlines())
    one = cause(diagnose(catalogue, matcher, {"run.log": log + "\n".join(rows) + "\n"}))
    english = "Rank 0 had been saving a checkpoint for 31 min when the ALLREDUCE of the other ranks timed out"
    assert render(one.title) == english
    assert "rank 0 还在保存 checkpoint，已持续 31 分钟" in render(one.title, "zh")
    assert (one.rank, one.step) == (0, 20)
    assert one.captures["activity"] == "saving" and one.captures["activity_seconds"] == "1860"
    assert "before the launch" in render(one.fixes[0]) and "checkpoint-20" in one.evidence[0]


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_activity_without_times_of_a_single_waiting_rank(
    catalogue: Catalogue, matcher: Matcher, prefix: str
) -> None:
    log = [prefix + SPLIT.format(done=done, clock=clock) for done, clock in ((0, "00:00"), (9000, "31:02"))]
    log.insert(1, "[rank1]: " + TIMED_OUT.format(rank=1))
    one = cause(diagnose(catalogue, matcher, {"run.log": "\n".join([*log, ""])}))
    assert render(one.title).startswith("Rank 0 had been generating the train split for 31 min 2 s when")


def test_duration_of_a_timeout_is_used_without_times(catalogue: Catalogue, matcher: Matcher) -> None:
    files = {f"rank{rank}.log": TIMED_OUT.format(rank=rank) + "\n" for rank in (1, 2, 3)}
    files["rank0.log"] = "Saving model checkpoint to out/checkpoint-20\n"
    one = cause(diagnose(catalogue, matcher, files))
    expected = (
        "Rank 0 was still saving a checkpoint when the ALLREDUCE of the other ranks timed out after 30 min"
    )
    assert render(one.title) == expected
    assert "等待 30 分钟后超时" in render(one.title, "zh")


def test_no_activity_is_named_if_steps_followed_or_all_ranks_waited(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    files = {f"rank{rank}.log": steps(1, 20) + TIMED_OUT.format(rank=rank) + "\n" for rank in (1, 2, 3)}
    saved = "Saving model checkpoint to out/checkpoint-5\n"
    files["rank0.log"] = saved + steps(6, 20)
    assert "activity" not in cause(diagnose(catalogue, matcher, files)).captures, "it trained on"
    files["rank0.log"] = steps(1, 20) + saved + TIMED_OUT.format(rank=0) + "\n"
    assert "activity" not in cause(diagnose(catalogue, matcher, files)).captures, "it waited, too"
    files["rank0.log"] = steps(1, 20) + saved + "successfully saved checkpoint 5\n"
    assert "activity" not in cause(diagnose(catalogue, matcher, files)).captures, "it had saved"
    files["rank0.log"] = steps(1, 20)
    assert render(cause(diagnose(catalogue, matcher, files)).title).endswith(": rank 0")


BAR = "Running tokenizer on dataset:  88%|████████▊ | 383700/433643 [29:55<03:25, 2432.70 examples/s]"
WAITING = """\
Traceback (most recent call last):
  File "/w/train.py", line 160, in main
    with args.main_process_first(desc="tokenization"):
  File "/usr/lib/python3.10/contextlib.py", line 135, in __enter__
    return next(self.gen)
  File "/e/lib/python3.10/site-packages/transformers/training_args.py", line 1891, in main_process_first
    torch.distributed.barrier()
"""
ENTERED = "RuntimeError: Socket Timeout\n"
NAMED = (
    "RuntimeError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d"
    " key-value store by key '0', but store->get('0') got error: Socket Timeout\n"
)


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        (BAR + WAITING + ENTERED, True),
        (f"{BAR}\n{WAITING}{ENTERED}", True),
        (f"{BAR}\n{WAITING.replace('__enter__', '__exit__')}{ENTERED}", False),  # the main process waits
        (f"{BAR}\n{raised(NAMED.format(rank=1))}", True),
        (f"{BAR}\n{raised(NAMED.format(rank=0))}", False),
        (f"{BAR}\nloading the model\n{WAITING}{ENTERED}", False),
    ],
)
def test_timeout_without_a_rank_is_of_another_rank_if_it_shows_this(
    catalogue: Catalogue, matcher: Matcher, text: str, busy: bool
) -> None:
    one = diagnose(catalogue, matcher, {"run.log": text}).primary
    assert one is not None and one.rule == "store-clients-not-joined"
    assert ("activity" in one.captures) is busy


@pytest.mark.parametrize(
    ("later", "own", "busy"),
    [(0, "run.log", True), (1, "run.log", True), (5, "run.log", False), (0, "rank5.log", False)],
)
def test_activity_of_a_rank_without_steps_ends_if_the_run_continues(
    catalogue: Catalogue, matcher: Matcher, later: int, own: str, busy: bool
) -> None:
    begun = "".join(f"[rank0]: {line}\n" for line in steps(1, 20).splitlines())
    retry = "[rank5]: Got disconnected from remote data host. Retrying in 5sec [2/20]\n"
    more = "".join(f"[rank0]: {line}\n" for line in steps(21, 20 + later).splitlines())
    waits = "".join(f"[rank{rank}]: {TIMED_OUT.format(rank=rank)}\n" for rank in (0, 1))
    files = {"run.log": begun + retry + more + waits}
    if own != "run.log":
        files = {own: retry, "run.log": begun + more + waits}
    one = cause(diagnose(catalogue, matcher, files))
    assert (one.captures.get("activity") == "retrying-download") is busy
    assert ("reach the data host" in render(one.fixes[0])) is busy


@pytest.mark.parametrize(
    ("kind", "others", "named"),
    [
        (LOADING, 0, True),
        (LOADING, 6, False),  # the other ranks print no steps and no times, so they might have been loading
        ("Downloading shards:  25%|██▌       | 1/4 [03:10<09:30, 190.00s/it]\n", 6, True),
    ],
)
def test_rank_is_not_named_if_others_might_have_been_busy_with_the_same_work(
    catalogue: Catalogue, matcher: Matcher, kind: str, others: int, named: bool
) -> None:
    files = {"rank0.log": steps(1, 20) + LOADING, "rank1.log": f"[rank1]: {TIMED_OUT.format(rank=1)}\n"}
    files |= {f"rank{rank}.log": f"[rank{rank}]: {kind}" for rank in range(2, 2 + others)}
    one = cause(diagnose(catalogue, matcher, files))
    assert one.rule == "nccl-collective-timeout"
    assert (one.captures.get("activity") == "loading-weights") is named
