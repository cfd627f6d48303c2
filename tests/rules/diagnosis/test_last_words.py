"""A log that ends mid-run with the words of an error: they are shown, but decide no verdict."""

from __future__ import annotations

import pytest
from smallruns import FINISHED

from stallwatch_rules.failures.unexplained import last_messages
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.phrases import headline

STEPS = [f"step {n}/500 loss={2 / n + 0.1:.3f}" for n in range(1, 60)]


def diagnose(catalogue: Catalogue, lines: list[str], **known: bool) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(LineReader("train.log").feed("\n".join([*lines, ""]).encode()))
    return reading.diagnose(**known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [
        "ERROR reward fn gave up on batch 7",
        "2025-11-20 10:00:00,000 CRITICAL the reward server is gone",
    ],
)
def test_last_error_lines_are_shown(catalogue: Catalogue, words: str) -> None:
    diagnosis = diagnose(catalogue, [*STEPS, words])
    assert [line.exemplar for line in diagnosis.new_lines] == [words]
    assert any("last lines" in render(note) for note in diagnosis.notes)


def test_error_lines_before_steps_or_a_known_end_are_not_shown(catalogue: Catalogue) -> None:
    words = "ERROR reward fn gave up on batch 7"
    assert diagnose(catalogue, [*STEPS[:30], words, *STEPS[30:]]).new_lines == []
    assert diagnose(catalogue, [*STEPS, words], ending=FINISHED).new_lines == []
    assert diagnose(catalogue, STEPS).new_lines == []


def test_exception_names_can_be_in_any_script(catalogue: Catalogue) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    check(sample)",
        "数据错误: 样本 17 的标签长度与输入长度不一致",
    ]
    (unknown,) = diagnose(catalogue, lines).unknown
    assert (unknown.exception, unknown.message) == ("数据错误", "样本 17 的标签长度与输入长度不一致")


HOOK = [
    "Error in sys.excepthook:",
    "Traceback (most recent call last):",
    '  File "/env/lib/python3.11/site-packages/swanlab/data/callback.py", line 81, in _except_handler',
    "    get_run().finish(CRASHED, error=error)",
    "RuntimeError: the client is closed",
]
MAIN = [
    "",
    "Original exception was:",
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 70, in main',
    "    push(scores)",
]


@pytest.mark.parametrize(
    ("lines", "verdict", "raised"),
    [
        (HOOK[:2], "unknown-failure", [""]),
        (HOOK[:3], "unknown-failure", [""]),
        (HOOK, "unknown-failure", [""]),
        (HOOK + MAIN[:3], "unknown-failure", [""]),
        (HOOK + MAIN, "unknown-failure", [""]),
        ([*HOOK, *MAIN, "KeyError: 'scores'"], "unknown-failure", ["KeyError"]),
        ([*HOOK, *MAIN, "KeyboardInterrupt"], "finished", []),
        (["Exception ignored in: <function Run.__del__ at 0x7f1200>", *HOOK[1:]], "finished", []),
    ],
)
def test_failed_exception_hook_shows_that_an_exception_ended_the_run(
    catalogue: Catalogue, lines: list[str], verdict: str, raised: list[str]
) -> None:
    finished = [line.replace("/500", "/59") for line in STEPS]
    diagnosis = diagnose(catalogue, [*finished, *lines])
    assert diagnosis.verdict == verdict
    assert [unknown.exception for unknown in diagnosis.unknown] == raised


def test_truncated_log_without_a_total_is_reported(catalogue: Catalogue) -> None:
    steps = [line.replace("/500", "") for line in STEPS]
    silent = diagnose(catalogue, steps)
    assert silent.verdict == "unfinished"
    assert any("stops mid-run at step 59" in render(note) for note in silent.notes)
    assert not any("mid-run" in render(note) for note in diagnose(catalogue, steps, ending=FINISHED).notes)
    finished = diagnose(catalogue, [*steps, "Training completed. Do not forget to share your model"])
    assert not any("mid-run" in render(note) for note in finished.notes)


def test_headline_of_a_truncated_log_shows_its_last_step(catalogue: Catalogue) -> None:
    ends = diagnose(catalogue, STEPS)
    assert ends.verdict == "unfinished"
    assert "why the log ends mid-run, at step 59 of 500." in to_brief(ends).splitlines()[0]
    assert "第 59 步（共 500 步）" in render(headline(ends), "zh")
    somewhere = diagnose(catalogue, [line.replace("/500", "") for line in STEPS])
    assert "why the log stops at step 59 without reporting the end" in render(headline(somewhere), "en")
    for over in (
        diagnose(catalogue, STEPS, ending=FINISHED),
        diagnose(catalogue, [*STEPS, "step 500/500 loss=0.1"]),
    ):
        assert render(headline(over), "en") == "Nothing in this log suggests that the run is in trouble."


SLEEP = [
    f"INFO 12-08 19:50:16 [executor_base.py:211] It took {n}.06 seconds to fall asleep." for n in range(99)
]
WAKE = "INFO 12-08 19:51:10 [executor_base.py:227] It took 0.89 seconds to wake up tags ['weights']."
ASLEEP = [line for step, slept in zip(STEPS, SLEEP, strict=False) for line in (slept, WAKE, step)]


@pytest.mark.parametrize(
    ("lines", "known", "quoted"),
    [
        ([*ASLEEP, SLEEP[60]], {}, SLEEP[60:61]),  # the line also occurs in the healthy part of the run
        ([*STEPS, "a b", WAKE, "saving to disk", SLEEP[1], SLEEP[2]], {}, [WAKE, "saving to disk", SLEEP[2]]),
        # The last line is a step, or an error, or something else shows how the run ended or that it runs.
        (ASLEEP, {}, []),
        ([*STEPS, "ERROR reward fn gave up on batch 7"], {}, []),
        ([*STEPS, SLEEP[1]], {"ending": FINISHED}, []),
        ([*STEPS, SLEEP[1]], {"now": 1e9}, []),
        ([*STEPS, "step 500/500 loss=0.1", SLEEP[1]], {}, []),
    ],
)
def test_unfinished_log_is_reported_with_its_last_lines(
    catalogue: Catalogue, lines: list[str], known: dict[str, bool], quoted: list[str]
) -> None:
    diagnosis = diagnose(catalogue, lines, **known)
    notes = [render(note) for note in diagnosis.notes]
    expected = "; ".join(f"“{line}”" for line in quoted)
    assert [note for note in notes if note.startswith("Last output")] == [f"Last output: {expected}"] * bool(
        quoted
    )
    if quoted:
        assert diagnosis.verdict == "unfinished"
        assert any(render(note, "zh").startswith("最后的输出：“") for note in diagnosis.notes)


def test_last_lines_are_from_the_log_that_ends_last(catalogue: Catalogue) -> None:
    reading = RunReading(catalogue)
    for rank, minute in ((0, 4), (1, 9), (2, 6)):
        reader = LineReader(f"rank{rank}.log")
        end = f"2026-05-02 09:{minute:02}:00,000 INFO worker {rank} waits for its turn"
        lines = ["2026-05-02 09:00:00,000 INFO worker is up", *STEPS, end, ""]
        reading.feed(reader.feed("\n".join(lines).encode()))
    assert [line.text for line in last_messages(reading.streams)] == [
        "2026-05-02 09:09:00,000 INFO worker 1 waits for its turn"
    ]
