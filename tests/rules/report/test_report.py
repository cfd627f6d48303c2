"""The reports: terminal, Markdown, JSON. Log text stays literal and secrets stay out."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from stallwatch_rules.messages import message
from stallwatch_rules.records import (
    Diagnosis,
    Finding,
    NearPage,
    NewLines,
    Place,
    Primary,
    Progress,
    Stats,
    UnknownException,
)
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.phrases import exception_in_short
from stallwatch_rules.report.terminal import print_report

HOSTILE = "[bold red]x[/bold red] <script>alert(1)</script> ```` @everyone ![](http://x/y.png) :smile:"


def diagnosis(**changes: object) -> Diagnosis:
    oom = Place(7, "logs/rank7.log", 1204, "2026-05-02T09:00:00.000Z", 100, "out of memory")
    later = Place(0, "logs/rank0.log", 1300, "2026-05-02T09:06:52.000Z", 100, "timed out")
    primary = Primary(
        rule="cuda-oom",
        title="The GPU ran out of memory",
        role="cause",
        harm="fatal",
        confidence=0.95,
        rank=7,
        file=oom.file,
        line=oom.line,
        time=oom.time,
        step=oom.step,
        evidence=[HOSTILE],
        captures={"tried": "2.00 GiB"},
        why="More was asked for than there is.",
        fixes=["Halve the micro batch.", "Export:\n```bash\nexport A=1\n```", "Offload. " * 20],
    )
    fields: dict[str, object] = {
        "verdict": "failed",
        "primary": primary,
        "findings": [
            Finding("cuda-oom", "The GPU ran out of memory", "cause", "fatal", 1, [7], oom, oom),
            Finding("collective-timeout", "A timeout", "symptom", "fatal", 8, [*range(7), 8], later, later),
        ],
        "unknown": [
            UnknownException("ValueError", HOSTILE, [3], 2, later, ["train.py:12 in main"], "KeyError: 'x'")
        ],
        "progress": Progress(0, 100, 900, 0.8125),
        "environment": {"torch": "2.6.0", "deepspeed": "0.16.4"},
        "stats": Stats(8, 1_500_000, 12_345, 0.31),
        "notes": ["rank 2 is missing"],
        **changes,
    }
    return Diagnosis(**fields)  # type: ignore[arg-type]


def printed(found: Diagnosis, language: str = "en", width: int = 80) -> str:
    out = io.StringIO()
    print_report(found, Console(file=out, width=width), language)
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


# ---- terminal


def test_verdict_comes_first_and_the_report_is_complete() -> None:
    text = printed(diagnosis())
    assert text.split()[0] == "FAILED"
    for part in (
        "The GPU ran out of memory",
        "rule cuda-oom · cause, fatal, confidence 95%",
        "rank 7 · logs/rank7.log:1204 · step 100 · 2026-05-02 09:00:00 UTC",
        "1. Halve the micro batch.",
        "symptom, fatal; 8 times; ranks 0–6, 8; step 100; 6 min 52 s later",
        "train.py:12 in main",
        "began with: KeyError: 'x'",
        "step 0 – 100 of 900, last loss 0.8125",
        "torch 2.6.0, deepspeed 0.16.4",
        "rank 2 is missing",
        "8 files, 12,345 lines, 1.4 MiB, 0.3 s",
    ):
        assert part in flat(text), part


def test_report_fits_80_columns() -> None:
    for line in printed(diagnosis()).splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_log_text_is_not_interpreted_as_markup() -> None:
    assert flat(HOSTILE) in flat(printed(diagnosis(), width=200))


def test_long_fixes_have_a_hanging_indent() -> None:
    lines = printed(diagnosis()).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("  3. "))
    assert lines[start + 1].startswith("     Offload.")


@pytest.mark.parametrize("width", range(40, 110))
def test_wrapping_keeps_every_chinese_character(width: int) -> None:
    fix = "先看日志：运行 `tool -v`，结束残留的进程；确认每个 worker 用自己的卡（`use_card(local_worker)`）。"
    found = diagnosis()
    assert found.primary is not None
    found.primary.fixes = [fix]
    assert fix.replace(" ", "") in "".join(printed(found, "zh", width).split())


def test_escape_codes_are_removed() -> None:
    found = diagnosis(notes=["\x1b[31mred\x1b]0;title\x07"])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", printed(found))
    assert "red]0;title" in printed(found)


def test_healthy_and_unknown_verdicts_have_labels() -> None:
    healthy = printed(diagnosis(verdict="healthy", primary=None, findings=[], unknown=[], notes=[]))
    assert healthy.startswith(" HEALTHY")
    assert "Cause" not in healthy
    unknown = printed(diagnosis(verdict="unknown-failure", primary=None, findings=[]))
    assert unknown.index("Exceptions that no rule matches") < unknown.index("Progress")
    cut = UnknownException("", "", [], 1, Place(None, "a.log", 3, None, None, ""), [])
    assert "ends before the exception" in flat(printed(diagnosis(unknown=[cut])))


def test_report_can_be_chinese() -> None:
    text = printed(diagnosis(), "zh")
    assert text.split()[0] == "失败"
    assert "置信度 95%" in text
    assert "confidence" not in text


def test_chinese_report_has_chinese_punctuation() -> None:
    text = printed(diagnosis(), "zh", width=200)
    assert "原因，致命，置信度 95%" in text
    assert "表象，致命；8 次；rank 0–6, 8；step 100；6 分 52 秒之后" in text
    assert "step 0 – 100 / 900，最新 loss 0.8125" in text
    assert "8 个文件，12,345 行，1.4 MiB，0.3 s" in text


# ---- Markdown


def test_markdown_has_every_section() -> None:
    text = to_markdown(diagnosis())
    assert text.startswith("## FAILED: The GPU ran out of memory\n")
    for part in ("### Evidence", "### Why", "### What to change", "### Other findings", "`cuda-oom`"):
        assert part in text
    assert "2. Export:\n   ```bash\n   export A=1\n   ```" in text


def outside_fences(text: str) -> str:
    """The Markdown without its code blocks, divided as by a renderer."""
    out, fence = [], ""
    for line in text.splitlines():
        ticks = re.match(r"\s*(`{3,})", line)
        if not fence and ticks:
            fence = ticks[1]
        elif fence and ticks and line.strip().strip("`") == "" and len(ticks[1]) >= len(fence):
            fence = ""
        elif not fence:
            out.append(line)
    assert not fence, "a fence is left open"
    return "\n".join(out)


def test_log_text_cannot_leave_its_fence() -> None:
    text = to_markdown(diagnosis(notes=[HOSTILE]))
    assert HOSTILE in text
    plain = outside_fences(text)
    assert "<script>" not in plain
    assert "![](" not in plain
    assert not re.search(r"(?<!\\)@everyone", plain)


@pytest.mark.parametrize("line", ["`", "```", "a ````` b", "~~~", "    indented"])
def test_any_line_is_kept_in_the_fence(line: str) -> None:
    found = diagnosis()
    assert found.primary is not None
    found.primary.evidence = [line, "behind"]
    assert "behind" not in outside_fences(to_markdown(found))


# ---- JSON


def test_json_has_the_documented_fields() -> None:
    found = json.loads(to_json(diagnosis()))
    assert found["schema"] == 1
    assert found["primary"]["rule"] == "cuda-oom"
    assert found["findings"][1]["ranks"] == [0, 1, 2, 3, 4, 5, 6, 8]
    assert set(found["progress"]) >= {"first_step", "last_step", "total_steps", "last_loss"}
    assert found["stats"] == {"files": 8, "bytes": 1_500_000, "lines": 12_345, "seconds": 0.31}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_json_has_no_invalid_numbers(loss: float) -> None:
    text = to_json(diagnosis(progress=Progress(0, 1, 2, loss)))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse)["progress"]["last_loss"] is None


def test_json_contains_no_secret() -> None:
    token = "hf_" + "Ab3" * 12
    found = diagnosis(notes=[f"token {token}"], environment={"torch": token})
    assert token.encode() not in to_json(found)
    assert token[4:] not in to_markdown(found)
    assert token not in printed(found, width=300)


def test_file_is_the_given_path() -> None:
    place = Place(1, "/home/alice/logs/rank1.log", 2, None, None, "File /home/alice/train.py")
    found = diagnosis(
        primary=None, findings=[Finding("no-room", "No room", "cause", "fatal", 1, [1], place, place)]
    )
    (finding,) = json.loads(to_json(found))["findings"]
    assert finding["first"]["file"] == "/home/alice/logs/rank1.log"
    assert finding["first"]["text"] == "File ~/train.py"


def unfamiliar(language: str = "en") -> tuple[str, str, dict[str, object]]:
    where = Place(3, "logs/rank3.log", 77, None, 100, HOSTILE)
    unknown = UnknownException(
        "ValueError", "odd", [3], 1, where, [], nearest=[NearPage("cuda-oom", "No room", 0.58)]
    )
    new = NewLines("shard <n> is silent", HOSTILE, "error", 12, [3, 4], where, where)
    made = diagnosis(verdict="unknown-failure", primary=None, findings=[], unknown=[unknown], new_lines=[new])
    out = io.StringIO()
    print_report(made, Console(file=out, width=200), language)
    return out.getvalue(), to_markdown(made, language), json.loads(to_json(made))


def test_new_lines_and_similar_pages_are_in_every_format() -> None:
    terminal, markdown, record = unfamiliar()
    for text in (terminal, markdown):
        assert "New lines before the end" in text
        assert "error · 12 times · ranks 3, 4 · logs/rank3.log:77" in text
        assert "closest match: cuda-oom\n" in text
    assert HOSTILE in terminal
    assert record["unknown"][0]["nearest"] == [{"rule": "cuda-oom", "title": "No room", "score": 0.58}]
    (new,) = record["new_lines"]
    assert (new["template"], new["level"], new["count"], new["ranks"]) == (
        "shard <n> is silent",
        "error",
        12,
        [3, 4],
    )
    assert "结尾前新出现的日志" in unfamiliar("zh")[0]


# ---- the digest of ranks


def test_digest_of_ranks_is_in_every_format() -> None:
    digest = ["rank 7: The GPU ran out of memory", "ranks 0–6, 8: A [timeout], 6 min 52 s later"]
    found = diagnosis(digest=digest)
    text = printed(found)
    assert "\nRanks\n" in text
    assert all(line in text for line in digest)
    assert text.index("Ranks") < text.index("Other findings")
    assert "- ranks 0–6, 8: A \\[timeout\\], 6 min 52 s later" in to_markdown(found)
    assert json.loads(to_json(found))["digest"] == digest
    assert "Ranks" not in printed(diagnosis())
    assert "各 rank" in printed(found, "zh")


def test_doubt_about_the_whole_diagnosis_comes_before_the_cause() -> None:
    doubt = message("diagnosis.other-run-time", one="a.log", other="b.log")
    found = diagnosis(notes=[doubt, "rank 2 is missing"])
    for text in (flat(printed(found)), to_markdown(found), to_html(found)):
        assert text.count("a.log and b.log look like logs of consecutive runs") == 1
        assert text.index("look like logs of consecutive runs") < text.index("Halve the micro batch")
        assert text.index("Halve the micro batch") < text.index("rank 2 is missing")


def test_unknown_failure_is_in_the_headline() -> None:
    found = diagnosis(verdict="unknown-failure", primary=None, findings=[])
    first = printed(found, width=300).splitlines()[0]
    assert first.startswith(" FAILED, CAUSE UNCERTAIN   ValueError: [bold red]x[/bold red]")
    assert first.endswith("(rank 3)")
    heading = to_markdown(found).splitlines()[0]
    assert heading.startswith("## FAILED, CAUSE UNCERTAIN: ValueError: \\[bold red\\]x")
    assert "<script>" not in heading


def test_unknown_failure_suggests_a_rule_page() -> None:
    place = Place(None, "a.log", 3, None, None, "ValueError: bad batch of the reader")
    one = UnknownException("ValueError", "bad batch of the reader", [], 1, place, [])
    found = diagnosis(verdict="unknown-failure", primary=None, findings=[], unknown=[one])
    assert "stallwatch rules new --from LOG" in printed(found, width=300).splitlines()[-1]
    assert "stallwatch rules new --from LOG" in printed(found, "zh", width=300).splitlines()[-1]
    assert "rules new" not in printed(diagnosis())
    short = UnknownException("KeyError", "'input_idz'", [], 1, place, [])
    refused = diagnosis(verdict="unknown-failure", primary=None, findings=[], unknown=[short], new_lines=[])
    assert "rules new" not in printed(refused)


def test_shortened_exception_keeps_its_location() -> None:
    place = Place(None, "a.log", 3, None, None, "")
    frames = ["/home/me/train.py:8 in <module>", "/usr/lib/python3/site-packages/torch/x.py:1 in f"]
    one = UnknownException("ValueError", "bad batch\nat index 77", [], 1, place, frames)
    assert exception_in_short(one) == "ValueError: bad batch at index 77 (train.py:8)"
    one.message = "x" * 500
    short = exception_in_short(one)
    assert len(short) == 120 and short.endswith("x… (train.py:8)")
    one.frames = []
    assert exception_in_short(one) == "ValueError: " + "x" * 107 + "…"
    assert exception_in_short(None) == exception_in_short(UnknownException("", "", [], 1, place, [])) == ""


def test_interrupted_run_is_labelled() -> None:
    known = {"verdict": "interrupted", "interrupted_by": "user"}
    found = diagnosis(**known, primary=None, findings=[], unknown=[], notes=[])
    assert "INTERRUPTED   The run was interrupted (Control+C or SIGINT)" in printed(found).splitlines()[0]
    assert "HEALTHY" not in printed(found)
    assert "已中断   训练被中断" in printed(found, "zh").splitlines()[0]


def test_brief_report_is_short() -> None:
    lines = to_brief(diagnosis()).splitlines()
    assert lines[0] == "FAILED: The GPU ran out of memory"
    assert "cuda-oom · cause, fatal, confidence 95% · rank 7 · logs/rank7.log:1204" in lines[1]
    assert lines[2] == f"  | {HOSTILE}"
    assert lines[3:] == ["  What to change: Halve the micro batch."]
    unknown = to_brief(diagnosis(verdict="unknown-failure", primary=None)).splitlines()
    assert unknown[1:4] == [
        "  rank 3 · 2 times · logs/rank0.log:1300",
        "  | train.py:12 in main",
        "  rank 2 is missing",
    ]
    assert unknown[4].startswith("  What to change: Look at this line first") and len(unknown) == 5
    seen = Place(None, "a.log", 3, None, None, "")
    of_library = ["/env/lib/python3.11/site-packages/torch/x.py:3 in f", "c10::f (libc10.so)"]
    like = UnknownException(
        "E", "m", [], 1, seen, of_library, nearest=[NearPage("cuda-oom", "No room", 0.58)]
    )
    near = to_brief(diagnosis(verdict="unknown-failure", primary=None, unknown=[like]), "zh").splitlines()
    assert near[1:] == ["  a.log:3", "  rank 2 is missing", near[3]] and "rules show cuda-oom" in near[3]
