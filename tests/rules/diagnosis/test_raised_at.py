"""The place at which the exception of the primary cause was raised."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from smallruns import steps

from stallwatch_rules.failures.raised import Frame, shown_frames
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.phrases import marked_frames, where

Read = Callable[[str], Diagnosis]

SITE = "/opt/env/lib/python3.11/site-packages"
ERROR = "KeyError: 'input_ids'"
CALLS = (
    ("/home/ada/sft/train.py", 140, "<module>"),
    (f"{SITE}/transformers/trainer.py", 2100, "train"),
    ("/home/ada/sft/data.py", 52, "collate"),
    (f"{SITE}/torch/utils/data/_utils/collate.py", 398, "default_collate"),
)


def traceback(error: str = ERROR, calls: tuple[tuple[str, int, str], ...] = CALLS, rank: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for path, number, name in calls:
        lines += [f'  File "{path}", line {number}, in {name}', "    call()"]
    return "".join(f"{rank}{line}\n" for line in (*lines, error))


@pytest.fixture
def read(catalogue: Catalogue, matcher: Matcher) -> Read:
    def diagnose(text: str) -> Diagnosis:
        reading = RunReading(catalogue, matcher)
        reading.feed(lines_of(text))
        return rendered(reading.diagnose())

    return diagnose


def test_innermost_user_frame_is_shown(read: Read) -> None:
    found = read(steps(1, 9) + traceback())
    assert found.primary is not None
    assert found.primary.evidence == [ERROR, "  ~/sft/data.py:52 in collate"]
    assert found.primary.frames == [
        "~/sft/train.py:140 in <module>",
        f"{SITE}/transformers/trainer.py:2100 in train",
        "~/sft/data.py:52 in collate",
        f"{SITE}/torch/utils/data/_utils/collate.py:398 in default_collate",
    ]


def test_user_frame_is_in_all_but_the_brief_report(read: Read) -> None:
    found = read(steps(1, 9) + traceback())
    own = "~/sft/data.py:52 in collate"
    assert json.loads(to_json(found))["primary"]["frames"][2] == own
    assert own in to_markdown(found) and own in to_html(found)
    assert own not in to_brief(found)


@pytest.mark.parametrize(
    "text",
    [
        ERROR + "\n",  # no traceback was read
        traceback(calls=CALLS[1:2]),  # nothing of it is the user's
        traceback(calls=(("/opt/env/bin/llamafactory-cli", 8, "<module>"), CALLS[1])),
    ],
)
def test_evidence_without_a_user_frame_is_the_line(text: str, read: Read) -> None:
    found = read(steps(1, 9) + text)
    assert found.primary is not None
    assert found.primary.evidence == [ERROR]


def test_multiline_message_has_its_frames(read: Read) -> None:
    error = (
        "RuntimeError: Error(s) in loading state_dict for Head:\n"
        "\tsize mismatch for weight: copying a param with shape torch.Size([8, 4]) from checkpoint, the"
        " shape in current model is torch.Size([6, 4])."
    )
    found = read(traceback(error))
    assert found.primary is not None
    assert "  ~/sft/data.py:52 in collate" in found.primary.evidence


def test_frames_of_another_exception_are_not_used(read: Read) -> None:
    """A failure that training survived, and the same failure reported later without a traceback."""
    other = traceback("ValueError: a sample is too short, left out")
    found = read(
        other + steps(1, 60) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert found.primary is not None and found.primary.rule == "cuda-oom"
    assert found.primary.frames == []
    assert len(found.primary.evidence) == 1


def test_frames_of_chained_exceptions_are_not_mixed(read: Read) -> None:
    """The matched line belongs to the first exception; the calls are kept for the last one only."""
    out_of_memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    chain = (
        traceback(out_of_memory, calls=(("/home/ada/sft/model.py", 7, "forward"),))
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("RuntimeError: the step gave up", calls=(("/home/ada/sft/loop.py", 3, "give_up"),))
    )
    found = read(steps(1, 9) + chain)
    assert found.primary is not None and found.primary.rule == "cuda-oom"
    assert not any("loop.py" in line for line in found.primary.evidence)


def on_ranks(*stamped: tuple[int, str]) -> str:
    return "".join(traceback(rank=f"[rank{rank}]: ") + stamp for rank, stamp in stamped)


def test_same_exception_on_all_ranks_is_reported_once(read: Read) -> None:
    found = read(steps(1, 9) + on_ranks(*((rank, "") for rank in range(4))))
    assert found.digest == []
    assert where(found, "en").startswith("ranks 0–3 · ")
    assert where(found, "zh").startswith("rank 0–3 · ")


def test_first_rank_is_named_if_times_are_known(read: Read) -> None:
    text = "".join(
        f"[rank{rank}]: 2026-05-02 09:30:0{second},000 ERROR torch.OutOfMemoryError: CUDA out of memory."
        " Tried to allocate 2.00 GiB.\n"
        for rank, second in ((0, 4), (1, 5), (2, 1))
    )
    found = read(text)
    assert where(found, "en").startswith("rank 2, the first of ranks 0–2 · ")
    assert where(found, "zh").startswith("rank 2（rank 0–2 中最早） · ")


def test_digest_describes_ranks_with_other_endings(read: Read) -> None:
    lost = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a"
        " network error, NCCL version 2.21.5"
    )
    others = "".join(f"[rank{rank}]: {lost}\n" for rank in (0, 1, 3))
    found = read(steps(1, 9) + on_ranks((2, "")) + others)
    assert len(found.digest) == 2
    assert where(found, "en").startswith("rank 2 · ")


def test_frames_are_in_call_order_with_a_mark() -> None:
    own = [Frame(path="/w/train.py", line=12, name="<module>"), Frame(path="/w/data.py", line=8, name="get")]
    library = [
        Frame(path="/v/site-packages/torch/utils/data/dataloader.py", line=700, name="__next__"),
        Frame(path="/v/site-packages/pandas/core/frame.py", line=99, name="get"),
    ]
    frames = shown_frames([own[0], library[0], own[1], library[1]])
    assert marked_frames(frames) == [
        f"  {own[0]}",
        f"  {library[0]}",
        f"▶ {own[1]}",
        f"  {library[1]}",
    ]


@pytest.mark.parametrize(
    ("path", "marked"),
    [
        ("<string>", False),  # the __init__ that dataclasses generate
        ("<frozen importlib._bootstrap>", False),
        ("<__array_function__ internals>", False),
        ("<eval_with_key>.5", False),
        ("<decorator-gen-53>", False),
        ("<ipython-input-3-0a1b>", True),
        ("<command-4170>", True),  # a cell of a notebook in Databricks
        ("<stdin>", True),
        ("<python-input-3>", True),  # the prompt of Python 3.13
        ("<input>", True),  # the console of PyCharm
    ],
)
def test_generated_code_is_not_the_code_of_the_user(path: str, marked: bool) -> None:
    own = Frame(path="/w/train.py", line=12, name="main")
    inner = Frame(path=path, line=17, name="__init__")
    library = Frame(path="/v/site-packages/transformers/modelcard.py", line=386, name="__post_init__")
    frames = marked_frames(shown_frames([own, inner, library]))
    assert [frame for frame in frames if frame.startswith("▶")] == [f"▶ {inner if marked else own}"]
    assert inner.library is not marked
