"""The sentence at the head of a page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from typing import Any

import msgspec
import pytest

from stallwatch_dashboard.data.overview import RunRow, stood_since
from stallwatch_dashboard.pages.incident import incident_table
from stallwatch_dashboard.verdict import Verdict, of_diagnosis, of_incident, of_run
from stallwatch_dashboard.words import speaker
from stallwatch_exporter.incident import Ending, Incident
from stallwatch_rules.diagnosis.missing import ranks_named
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.fixes import fixes_for, why_of
from stallwatch_rules.records import Diagnosis, Finding, Place, Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.words import sentence
from stallwatch_rules.text.retelling import retold
from stallwatch_rules.text.sentences import say

NOW = 1_795_000_000.0
RULE = "zero3-trace-cache-invalidated"


def row(state: str, **changes: Any) -> RunRow:
    fields: dict[str, Any] = {
        "step": 57.0,
        "total_steps": 900.0,
        "seen": NOW,
        "started_at": NOW - 100,
        **changes,
    }
    return RunRow("stuck", state, **fields)  # type: ignore[arg-type]


def told(found: RunRow, *incidents: Incident, language: str = "en", last: float | None = NOW - 31) -> Verdict:
    return of_run(
        found,
        incidents,
        load_catalogue().pages,
        now=NOW,
        last_step_at=last,
        zone=timezone.utc,
        language=language,
        say=speaker(language),
    )


def primary(**changes: Any) -> Primary:
    fields: dict[str, Any] = {
        "rule": RULE,
        "title": "ZeRO-3 threw away its recorded order of modules",
        "role": "cause",
        "harm": "fatal",
        "confidence": 0.6,
        "rank": 0,
        "file": "rank0.log",
        "line": 168,
        "time": None,
        "step": 57,
        "evidence": ["Invalidate trace cache @ step 10: expected module 20, but got module 28"],
        "captures": {},
        "why": "Because of the order.",
        "fixes": ["First `this`.", "Then that.", "Or this."],
        **changes,
    }
    return Primary(**fields)


def test_a_stall_says_how_long_why_and_what_to_change(make_incident: Callable[..., Incident]) -> None:
    incident = make_incident(rule=RULE, primary=primary(), note="82 times in 57 steps.", rank=0)
    found = told(row("stalled"), incident)
    assert found.level == "critical"
    assert found.headline == "Stalled: no step for 31 s"
    assert found.cause == "ZeRO-3 threw away its recorded order of modules"
    assert (found.note, found.why) == ("82 times in 57 steps.", "Because of the order.")
    assert found.fixes[0] == "First `this`."
    assert "at step 57 / 900" in found.facts and "rank 0" in found.facts and "stall at 30 s" in found.facts
    assert found.evidence == tuple(primary().evidence)


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "Rank 0 waits in all_reduce; rank 1 is at ddp.py:5 in reward_fn."),
        ("zh", "rank 0 在 all_reduce 中等待；rank 1 停在 ddp.py:5 的 reward_fn。"),
    ],
)
def test_a_silent_stall_says_where_the_ranks_are_instead_of_how_to_find_out(
    make_incident: Callable[..., Incident], language: str, sentence: str
) -> None:
    groups = [
        StackGroup([0], "collective", what="all_reduce"),
        StackGroup([1], "code", place="ddp.py:5 in reward_fn"),
    ]
    silent = make_incident(note="No step for 6.0 s. Nothing in the log says why.")
    before = told(row("stalled"), silent, language=language)
    assert before.place == "" and "py-spy dump" in before.fixes[0] and before.note == silent.note
    asked = msgspec.structs.replace(silent, stacks=StallStacks(1.0, 0.1, groups, [1], "elsewhere"))
    after = told(row("stalled"), asked, language=language)
    assert after.place == sentence and after.note == "No step for 6.0 s."
    assert after.fixes == before.fixes[1:]
    groups.append(StackGroup([2], "unknown"))  # of this one it is still to be found out
    asked.stacks = StallStacks(1.0, 0.1, groups, [1], "elsewhere")
    assert told(row("stalled"), asked, language=language).fixes == before.fixes


def test_a_silence_without_an_alarm_yet_says_when_one_comes() -> None:
    found = told(row("waiting", alarm_at=NOW + 60), last=NOW - 882)
    assert found.level == "warning"
    assert found.headline == "Waiting: no step for 14 min 42 s after step 57 / 900"
    assert "alarm comes at" in found.facts[0]


def test_where_the_ranks_are_is_no_advice_of_its_own(make_incident: Callable[..., Incident]) -> None:
    groups = [StackGroup([0], "code", place="replay.py:27 in replay")]
    here, more = "Rank 0 is at replay.py:27 in replay.", say("all-stacks", "en", file="a.txt")
    rule = "zero3-trace-cache-invalidated"
    stall = make_incident(
        rule=rule,
        stacks=StallStacks(1.0, 0.1, groups, file="a.txt"),
        primary=primary(rule=rule, fixes=[f"{here} {more}", "Mend it."]),
    )
    found = told(row("stalled"), stall)
    assert (found.place, found.fixes) == (here, ("Mend it.", more))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_time_that_a_stall_lasts_is_that_of_now_wherever_it_stands(
    make_incident: Callable[..., Incident], language: str
) -> None:
    note = say("stands", "en", silence="4.9 s", threshold="5.0 s") + say("last-came-then", "en")
    stall = make_incident(
        note=note, opened_at=NOW - 400, stalled_seconds=5.0, threshold_seconds=5.0, updated_at=NOW - 400
    )

    def noted(silence: str) -> str:
        stands = say("stands", language, silence=silence, threshold="5.00 s")
        return stands + say("last-came-then", language)

    found = told(row("stalled"), stall, language=language, last=NOW - 406)
    assert "6 min 46 s" in found.headline and found.note == noted("6 min 46 s")
    assert told(row("stalled"), stall, language=language, last=None).note == noted("6 min 45 s")
    over = msgspec.structs.replace(
        stall, status="resolved", resolved_at=NOW - 100, updated_at=NOW - 100, stalled_seconds=306.0
    )
    pages = load_catalogue().pages
    after = of_incident(over, pages, now=NOW, zone=None, language=language, say=speaker(language))
    assert after.note == noted("5 min 06 s")
    assert stood_since(over) == NOW - 406


def test_in_chinese_the_rule_page_speaks(make_incident: Callable[..., Incident]) -> None:
    found = told(row("stalled"), make_incident(rule=RULE, primary=primary()), language="zh")
    page = load_catalogue().pages[RULE]
    assert (found.cause, found.why) == (page.title_zh, page.sections.zh_why)
    assert found.headline.startswith("停滞")
    assert found.fixes and found.fixes[0] == page.sections.zh_fixes[0]


@pytest.mark.parametrize(("wrote", "reads"), [("en", "zh"), ("zh", "en"), ("zh", "zh")])
def test_what_was_found_out_of_the_run_is_told_in_the_readers_language(
    make_incident: Callable[..., Incident], wrote: str, reads: str
) -> None:
    """The agent wrote it in its own; the stacks are those of the stall before the end."""
    page = load_catalogue().pages["gloo-collective-timeout"]
    groups = [
        StackGroup([0, 2], "collective", what="all_reduce"),
        StackGroup([1], "code", place="d.py:8 in f"),
    ]
    stacks = StallStacks(1.0, 0.1, groups, [1], "elsewhere", file="stacks.txt")

    def own(language: str) -> list[str]:
        look = say("look-there", language, told=sentence(stacks, language))
        missed = say("did-not-come-step", language, ranks="rank 1", step=149, others=149)
        return [f"{look} {say('all-stacks', language, file='stacks.txt')}", missed]

    def titled(language: str) -> str:
        return ranks_named(page.title_zh if language == "zh" else page.title, "1", language)

    end = make_incident(
        kind="ended",
        rule=page.id,
        primary=primary(
            rule=page.id,
            title=titled(wrote),
            why=why_of(page, wrote),
            fixes=[*own(wrote), *fixes_for(page, {}, wrote)],
            evidence=[sentence(stacks, wrote), "RuntimeError: Timed out"],
        ),
    )
    stall = make_incident(status="resolved", resolution="run-failed", stacks=stacks)
    found = told(row("failed", ended_at=NOW), end, stall, language=reads)
    assert (found.cause, found.why) == (titled(reads), why_of(page, reads))
    assert list(found.fixes) == [*own(reads), *fixes_for(page, {}, reads)]
    assert found.evidence[0] == sentence(stacks, reads)
    alone = told(row("failed", ended_at=NOW), end, language=reads)  # what a message of this incident knows
    assert sentence(stacks, wrote) in alone.fixes[0] and alone.fixes[1:] == found.fixes[1:]


@pytest.mark.parametrize(("wrote", "reads"), [("en", "zh"), ("zh", "en")])
@pytest.mark.parametrize(
    ("key", "values"),
    [("oom-killed-limit", {"limit": "64Gi"}), ("oom-killed", {}), ("ended-from-outside", {})],
)
def test_a_title_of_the_diagnosis_own_is_told_in_the_readers_language(
    make_incident: Callable[..., Incident], wrote: str, reads: str, key: str, values: dict[str, str]
) -> None:
    why = why_of(load_catalogue().pages["kubernetes-evicted"], wrote)
    one = primary(rule="kubernetes-evicted", title=say(key, wrote, **values), why=why)
    end = make_incident(kind="ended", rule="kubernetes-evicted", primary=one)
    found = told(row("failed", ended_at=NOW), end, language=reads)
    assert found.cause == say(key, reads, **values)


def test_no_pages_title_is_taken_for_a_diagnosis_own() -> None:
    for page in load_catalogue().pages.values():
        for title in filter(None, (page.title, page.title_zh)):
            for language in ("en", "zh"):
                ranked = ranks_named(title, "1", language)
                assert (retold(title, language), retold(ranked, language)) == (title, ranked)


def test_an_ended_run_tells_its_step_once(make_incident: Callable[..., Incident]) -> None:
    end = make_incident(kind="ended", rule=RULE, primary=primary())
    assert not [fact for fact in told(row("failed", ended_at=NOW), end).facts if "at step" in fact]


def test_an_incident_of_a_rule_unknown_here_is_still_told(make_incident: Callable[..., Incident]) -> None:
    found = told(row("stalled"), make_incident(rule="somebodys-own-rule"))
    assert found.cause == "somebodys-own-rule" and found.page is None


def test_a_healthy_run_says_when_the_last_step_was() -> None:
    found = told(row("training"), last=NOW - 2)
    assert (found.level, found.headline) == ("good", "Training: step 57 / 900 was 2.00 s ago")
    assert not found.cause


def test_silence_of_the_agent_comes_before_all_it_said(make_incident: Callable[..., Incident]) -> None:
    found = told(row("stale", seen=NOW - 95), make_incident(primary=primary()))
    assert found.headline == "No word from the agent for 1 min 35 s"
    assert not found.cause


@pytest.mark.parametrize(
    ("state", "level", "headline"),
    [
        ("finished", "good", "Finished at step 57 / 900"),
        ("failed", "critical", "Failed at step 57 / 900"),
        ("unwatched", "quiet", "No longer watched: step 57 / 900 was the last seen"),
        ("starting", "quiet", "Starting: no step yet"),
        ("degraded", "warning", "Slower than it was"),
    ],
)
def test_other_states(state: str, level: str, headline: str) -> None:
    ended = NOW if state in ("finished", "failed", "unwatched") else None
    found = told(row(state, ended_at=ended))
    assert (found.level, found.headline) == (level, headline)


def test_a_failed_run_is_explained_by_the_incident_of_its_end(make_incident: Callable[..., Incident]) -> None:
    stall = make_incident(status="resolved", resolution="run-failed", opened_at=NOW - 90)
    end = make_incident(
        kind="ended", rule="cuda-oom", opened_at=NOW - 5, primary=primary(title="Out of memory")
    )
    found = told(row("failed", ended_at=NOW, ending=Ending("failed", 1, detail="exit code 1")), stall, end)
    assert found.rule == "cuda-oom" and found.facts[0] == "exit code 1"


def test_a_finished_run_says_what_it_left_unmended(make_incident: Callable[..., Incident]) -> None:
    broken = make_incident(kind="finding", rule=RULE, status="resolved", resolution="unmended")
    found = told(row("finished", ended_at=NOW), broken)
    assert (found.level, found.rule) == ("warning", RULE)


def test_a_finished_run_is_not_blamed_for_a_stall_it_got_over(make_incident: Callable[..., Incident]) -> None:
    got_over = make_incident(status="resolved", resolution="recovered")
    found = told(row("finished", ended_at=NOW), got_over)
    assert found.level == "good" and not found.cause


def test_a_diagnosis_as_a_verdict() -> None:
    place = Place(0, "rank0.log", 168, None, 57, "")
    finding = Finding(RULE, "t", "cause", "fatal", 3, [0], place, place, note="No step followed.")
    diagnosis = Diagnosis("failed", primary(), [finding], ending="exit code 1")
    found = of_diagnosis(diagnosis, load_catalogue().pages, language="en", say=speaker("en"))
    assert (found.level, found.headline, found.note) == ("critical", "Failed", "No step followed.")
    assert any("rank0.log:168" in fact for fact in found.facts) and found.page is not None


def test_a_run_that_was_stopped_by_hand_is_not_called_failed(make_incident: Callable[..., Incident]) -> None:
    stopped = row(
        "interrupted",
        ended_at=NOW - 5,
        ending=Ending("interrupted", 130, "SIGINT", "It was interrupted (Ctrl-C, SIGINT)."),
    )
    found = told(stopped)
    assert (found.level, found.headline) == ("quiet", "Stopped by hand at step 57 / 900")
    assert found.facts == ("It was interrupted (Ctrl-C, SIGINT).",)
    assert told(stopped, language="zh").headline == "被手动中断，停在第 57 / 900 步"
    stalled = make_incident(rule=RULE, primary=primary(), status="resolved", resolution="run-stopped")
    assert told(stopped, stalled).level == "warning"  # the stall is why it was stopped


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_rank_that_waits_for_no_other_gets_the_same_advice_in_either_language(
    make_incident: Callable[..., Incident], language: str
) -> None:
    """The run's diagnosis speaks English, the reader perhaps Chinese."""
    hung = primary(rule=SILENT_HANG, rank=0, why=say("alone-why", "en"), fixes=["There.", "Time-out."])
    stacks = StallStacks(1.0, 0.1, [StackGroup([0], "code", place="hang.py:5 in stuck")])
    stall = make_incident(rule=SILENT_HANG, primary=hung, stacks=stacks, resolution="run-stopped")
    found = told(row("interrupted"), stall, language=language)
    assert found.why == say("alone-why", language)
    assert "hang.py:5" in found.fixes[0] and found.fixes[1:] == (say("alone-fix", language),)
    early = msgspec.structs.replace(
        stall, stacks=None, primary=msgspec.structs.replace(hung, why=say("single-why", "en"))
    )
    unasked = told(row("stalled"), early, language=language)
    assert (unasked.why, unasked.fixes[0]) == (say("single-why", language), say("single-fix", language))


@pytest.mark.parametrize(
    ("resolution", "english", "chinese"),
    [
        ("run-failed", "ended with the run: failed", "随任务结束：任务失败"),
        ("run-stopped", "ended with the run: stopped by hand", "随任务结束：被人为中断"),
        ("unknown", "nobody watches it any more", "无人监视"),
        ("recovered", "resolved", "已结束"),
    ],
)
def test_an_incident_of_a_dead_run_is_not_called_resolved(
    make_incident: Callable[..., Incident], resolution: str, english: str, chinese: str
) -> None:
    found = make_incident(kind="finding", status="resolved", resolution=resolution, resolved_at=NOW)
    for language, state in (("en", english), ("zh", chinese)):
        say = speaker(language)
        about = of_incident(found, {}, now=NOW, zone=timezone.utc, language=language, say=say)
        assert about.headline == f"stuck: {state}"
        shown = str(incident_table([found], NOW, timezone.utc, say).iloc[0, 0])
        assert (shown.startswith("✔"), state in shown) == (resolution == "recovered", True)


@pytest.mark.parametrize(("language", "state"), [("en", "stopped by hand"), ("zh", "人为中断")])
def test_a_stall_that_ctrl_c_ended_did_not_recover(
    make_incident: Callable[..., Incident], language: str, state: str
) -> None:
    stall = make_incident(status="resolved", resolution="run-stopped", resolved_at=NOW)
    states = incident_table([stall], NOW, timezone.utc, speaker(language)).iloc[0].tolist()
    assert any(state in str(cell) for cell in states) and not any("✔" in str(cell) for cell in states)


@pytest.mark.parametrize("spoken", ["en", "zh"])
@pytest.mark.parametrize(
    ("language", "lead"),
    [
        ("en", "Rank 1 is at ddp.py:5 in reward_fn; beside that: "),
        ("zh", "rank 1 停在 ddp.py:5 的 reward_fn；另外："),
    ],
)
def test_the_odd_rank_comes_before_the_cause_in_the_readers_language(
    make_incident: Callable[..., Incident], spoken: str, language: str, lead: str
) -> None:
    page = load_catalogue().pages[RULE]
    titles = {"en": page.title, "zh": page.title_zh}
    apart = [StackGroup([1], "code", place="ddp.py:5 in reward_fn")]
    stall = make_incident(rule=RULE, primary=primary(title=titles[spoken], apart=apart))
    assert told(row("stalled"), stall, language=language).cause == lead + titles[language]
