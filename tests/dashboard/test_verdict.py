"""Headline of a run's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timezone
from typing import Any

import msgspec
import pytest

from stallwatch_alerts.messages import compose
from stallwatch_alerts.messages.ranks import remedy
from stallwatch_dashboard.data.overview import RunRow, final_incident, newest
from stallwatch_dashboard.pages.incident import incident_table
from stallwatch_dashboard.verdict import Verdict, of_diagnosis, of_incident, of_run
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.incident import RANK_GONE, UNKNOWN_FAILURE, Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.locale import render, rendered, say
from stallwatch_rules.messages import Text, bilingual, message
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.fixes import fixes_for, parse_fix, why_of
from stallwatch_rules.records import Diagnosis, Finding, Place, Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import placed, sentence, with_title_prefix

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


def judged(
    found: RunRow, *incidents: Incident, language: str = "en", last: float | None = NOW - 31
) -> Verdict:
    speaks = newest(incidents) if found.ended_at is None else final_incident(incidents)
    found = replace(found, incident=speaks)
    return of_run(found, load_catalogue().pages, Reader(language, timezone.utc, NOW), last)


def primary(**changes: Any) -> Primary:
    fields: dict[str, Any] = {
        "rule": RULE,
        "title": "ZeRO-3 discarded its recorded order of modules",
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


def test_stall_has_duration_reason_and_fix(make_incident: Callable[..., Incident]) -> None:
    incident = make_incident(rule=RULE, primary=primary(), note="82 times in 57 steps.", rank=0)
    found = judged(row("stalled"), incident)
    assert found.level == "critical"
    assert found.headline == "Stalled: no step for 50 s"
    assert found.cause == "ZeRO-3 discarded its recorded order of modules"
    assert (found.note, found.why) == ("82 times in 57 steps.", "Because of the order.")
    assert found.fixes[0] == "First `this`."
    assert "at step 57 / 900" in found.facts and "rank 0" in found.facts and "stall at 30 s" in found.facts
    assert found.evidence == tuple(primary().evidence)


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "Rank 0 waits in all_reduce; rank 1 is at ddp.py:5 in reward_fn."),
        ("zh", "rank 0 在等 all_reduce；rank 1 停在 ddp.py:5 的 reward_fn。"),
    ],
)
def test_located_stall_replaces_advice_to_locate_the_ranks(
    make_incident: Callable[..., Incident], language: str, sentence: str
) -> None:
    groups = [
        StackGroup([0], "collective", what="all_reduce"),
        StackGroup([1], "code", place="ddp.py:5 in reward_fn"),
    ]
    note = message("diagnosis.silent", silence="6.0 s", threshold="5.0 s")
    silent = make_incident(note=note + message("diagnosis.nothing-says-why"))
    before = judged(row("stalled"), silent, language=language)
    assert (
        before.place == ""
        and "py-spy dump" in before.fixes[0]
        and before.note.count({"en": "50 s", "zh": "50 秒"}[language]) == 1
    )
    asked = msgspec.structs.replace(silent, stacks=StallStacks(1.0, 0.1, groups, [1], "elsewhere"))
    after = judged(row("stalled"), asked, language=language)
    assert after.place == sentence and before.note.startswith(after.note)
    assert len(after.note) < len(before.note), "the riddle is solved"
    look = message("alerts.look-at", place=placed("ddp.py:5 in reward_fn"), advice=remedy(asked.stacks))
    assert after.fixes == (render(look, language), *before.fixes[1:])
    groups.append(StackGroup([2], "unknown"))  # the place of rank 2 is unknown, so the advice is needed again
    asked.stacks = StallStacks(1.0, 0.1, groups, [1], "elsewhere")
    assert judged(row("stalled"), asked, language=language).fixes == (render(look, language), *before.fixes)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_hang_of_one_process_mentions_its_location_once(
    make_incident: Callable[..., Incident], language: str
) -> None:
    stacks = StallStacks(1.0, 0.1, [StackGroup([0], "code", place="hang.py:5 in stuck")], pids={0: 7})
    where, page = sentence(stacks), load_catalogue().pages[SILENT_HANG]
    hung = primary(
        rule=SILENT_HANG,
        title=with_title_prefix(bilingual(page.title, page.title_zh), stacks),
        fixes=[message("diagnosis.look-there", told=where), message("diagnosis.alone-fix")],
        evidence=[where, "step 40"],
    )
    stall = make_incident(rule=SILENT_HANG, primary=hung, stacks=stacks, evidence=[where, "step 40"])
    found = judged(row("stalled"), stall, language=language)
    shown = "\n".join([found.headline, *found.facts, found.cause, found.place, found.note, *found.fixes])
    assert (shown + "\n".join(found.evidence)).count("hang.py:5") == 1
    assert found.cause == render(bilingual(page.title, page.title_zh), language)
    chat = compose.render(stall, language, page).text
    assert found.fixes[0] in chat and found.fixes[1] in chat


@pytest.mark.parametrize(
    ("language", "facts"),
    [
        ("en", ["rank 611 on n77", "127 of 128 hosts answered", "no answer: n100", "confidence 97%"]),
        ("zh", ["n77 上的 rank 611", "128 台主机中 127 台有响应", "失联：n100", "置信度 97%"]),
    ],
)
def test_run_over_hosts_has_host_and_number_of_responses(
    make_incident: Callable[..., Incident], language: str, facts: list[str]
) -> None:
    hosts = {f"n{number}": str(number) for number in range(1, 128)}
    stacks = StallStacks(NOW, 2.0, hosts=hosts, silent=["n100"], odd=[611], confidence=0.97)
    del hosts["n100"]
    stacks.hosts["n128"] = "1016-1023"
    stall = make_incident(kind="stall", rank=611, host="n77", hosts=["n77"], stacks=stacks)
    found = judged(row("stalled"), stall, language=language).facts
    assert [fact for fact in found if fact in facts] == facts
    again = judged(row("stalled"), msgspec.structs.replace(stall, attempt=2), language=language).facts
    assert {"en": "restart 2", "zh": "第 2 次重启"}[language] in again
    alone = make_incident(kind="stall", rank=611, host="n77", stacks=StallStacks(NOW, 2.0, odd=[611]))
    assert not any(fact in facts for fact in judged(row("stalled"), alone, language=language).facts)


def test_candidates_are_listed_if_no_rank_can_be_blamed(make_incident: Callable[..., Incident]) -> None:
    stacks = StallStacks(NOW, 2.0, hosts={"n1": "0-7", "n2": "8-15"}, candidates=[8, 9, 10])
    stall = make_incident(kind="stall", host="n1", hosts=["n1", "n2"], stacks=stacks)
    assert "it is not known which of ranks 8–10 holds up the run" in judged(row("stalled"), stall).facts
    stacks.candidates = list(range(0, 1024, 2))
    assert "it is not known which of 512 ranks holds up the run" in judged(row("stalled"), stall).facts


def test_table_has_hosts_for_runs_over_hosts(make_incident: Callable[..., Incident]) -> None:
    over = make_incident(host="n77", hosts=["n1", "n77", "n9"])
    table = incident_table([over, make_incident(host="lab")], Reader("en"), {})
    assert list(table["Hosts"]) == ["n77 / 3", "lab"]
    assert "Hosts" not in incident_table([make_incident(host="lab")], Reader("en"), {})


def test_durations_are_not_negative_after_a_clock_change(make_incident: Callable[..., Incident]) -> None:
    ahead = NOW + 7200
    stall = make_incident(rule=SILENT_HANG, opened_at=ahead, updated_at=ahead)
    assert "0 s" in judged(row("stalled"), stall, last=ahead).headline
    assert "0 s" in judged(row("stale", seen=ahead)).headline
    assert row("training", started_at=ahead).seconds(NOW) == 0.0


def test_waiting_run_shows_the_time_of_the_alarm() -> None:
    found = judged(row("waiting", alarm_at=NOW + 60), last=NOW - 882)
    assert found.level == "warning"
    assert found.headline == "Waiting: no step for 14 min 42 s after step 57 / 900"
    assert "Stallwatch reports a stall" in found.facts[0]


def test_location_of_the_ranks_is_not_repeated_as_advice(make_incident: Callable[..., Incident]) -> None:
    groups = [StackGroup([0], "code", place="replay.py:27 in replay")]
    stacks = StallStacks(1.0, 0.1, groups, file="a.txt")
    more = message("diagnosis.all-stacks", file="a.txt")
    rule = "zero3-trace-cache-invalidated"
    fixes = [sentence(stacks) + more, "Mend it."]
    stall = make_incident(rule=rule, stacks=stacks, primary=primary(rule=rule, fixes=fixes))
    found = judged(row("stalled"), stall)
    assert found.place == "Rank 0 is at replay.py:27 in replay."
    assert found.fixes == ("Mend it.", render(more))


def test_advice_about_a_rank_contains_the_next_step(
    make_incident: Callable[..., Incident],
) -> None:
    groups = [StackGroup([0], "collective"), StackGroup([1], "data", place="train.py:30 in main")]
    stacks = StallStacks(1.0, 0.1, groups, odd=[1], why="elsewhere")
    fixes = [message("diagnosis.look-there", told=sentence(stacks)), "Give the group a longer timeout."]
    rule = "gloo-collective-timeout"
    ended = make_incident(kind="ended", rule=rule, stacks=stacks, primary=primary(rule=rule, fixes=fixes))
    first, *rest = judged(row("failed"), ended).fixes
    assert first.startswith("Look at train.py:30 in main.")
    assert rest == ["Give the group a longer timeout."]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_duration_of_a_stall_is_the_same_in_all_texts(
    make_incident: Callable[..., Incident], language: str
) -> None:
    note = message("diagnosis.stands", silence="4.9 s", threshold="5.0 s")
    note += message("diagnosis.last-came-then")
    at = {"opened_at": NOW - 400, "updated_at": NOW - 400}
    # The agent has raised the threshold since then, and an evaluation moved on after the last step.
    stall = make_incident(
        note=note, **at, stalled_since=NOW - 406, stalled_seconds=6.0, threshold_seconds=200.0
    )

    def noted(silence: float) -> str:
        stands = message("diagnosis.stands", silence=silence, threshold=200.0)
        return render(stands + message("diagnosis.last-came-then"), language)

    found = judged(row("stalled"), stall, language=language, last=NOW - 900)
    lasted = {"en": "6 min 46 s", "zh": "6 分 46 秒"}[language]
    assert lasted in found.headline and lasted in found.facts[0] and found.note == noted(406.0)
    over = msgspec.structs.replace(
        stall, status="resolved", resolved_at=NOW - 100, updated_at=NOW - 100, stalled_seconds=306.0
    )
    pages = load_catalogue().pages
    assert of_incident(over, pages, Reader(language, now=NOW)).note == noted(306.0)
    assert over.quiet_since == NOW - 406
    before = msgspec.structs.replace(over, stalled_since=None, stalled_seconds=530.0)  # as in version 0.1
    assert before.quiet_since == NOW - 630, "it was opened when the threshold was over, or later"


def test_chinese_verdict_uses_the_chinese_page(make_incident: Callable[..., Incident]) -> None:
    page = load_catalogue().pages[RULE]
    one = primary(
        title=page.title, why=page.sections.why, fixes=[parse_fix(fix).text for fix in page.sections.fixes]
    )  # as version 0.1 stored it
    found = judged(row("stalled"), make_incident(rule=RULE, primary=one), language="zh")
    assert (found.cause, found.why) == (page.title_zh, page.sections.zh_why)
    assert found.headline.startswith("卡住")
    assert found.fixes and found.fixes[0] == parse_fix(page.sections.zh_fixes[0]).text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_findings_are_shown_in_the_selected_language(
    make_incident: Callable[..., Incident], language: str
) -> None:
    page = load_catalogue().pages["gloo-collective-timeout"]
    groups = [
        StackGroup([0, 2], "collective", what="all_reduce"),
        StackGroup([1], "code", place="d.py:8 in f"),
    ]
    where = sentence(StallStacks(1.0, 0.1, groups, [1], "elsewhere", file="stacks.txt"))
    look = message("diagnosis.look-there", told=where) + message("diagnosis.all-stacks", file="stacks.txt")
    missed = message("diagnosis.did-not-come-step", ranks="rank 1", step=149, others=149)
    title = message("diagnosis.of-ranks", title=bilingual(page.title, page.title_zh), ranks="1")
    known = primary(
        rule=page.id,
        title=title,
        why=why_of(page),
        fixes=[look, missed, *fixes_for(page, {})],
        evidence=[where, "RuntimeError: Timed out"],
    )
    end = make_incident(kind="ended", rule=page.id, primary=known)
    found = judged(row("failed", ended_at=NOW), end, language=language)
    assert (found.cause, found.why) == (render(title, language), render(why_of(page), language))
    assert list(found.fixes) == rendered([look, missed, *fixes_for(page, {})], language)
    assert found.evidence == (render(where, language), "RuntimeError: Timed out")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_headline_of_an_incident_of_release_0_1_is_translated(
    make_incident: Callable[..., Incident], language: str
) -> None:
    page = load_catalogue().pages[RULE]
    stored = make_incident(
        kind="finding", rule=RULE, severity="info", primary=primary(title=page.title, fixes=[])
    )
    found = judged(row("training"), stored, language=language)
    assert found.headline == found.cause == (page.title_zh if language == "zh" else page.title)


def test_ended_run_mentions_its_step_once(make_incident: Callable[..., Incident]) -> None:
    end = make_incident(kind="ended", rule=RULE, primary=primary())
    assert not [fact for fact in judged(row("failed", ended_at=NOW), end).facts if "at step" in fact]


def test_incident_of_an_unknown_rule_is_shown(make_incident: Callable[..., Incident]) -> None:
    found = judged(row("stalled"), make_incident(rule="somebodys-own-rule"))
    assert found.cause == "somebodys-own-rule" and found.page is None


def test_healthy_run_shows_the_time_of_its_last_step() -> None:
    found = judged(row("training"), last=NOW - 2)
    assert (found.level, found.headline) == ("good", "Training: step 57 / 900 was 2 s ago")
    assert not found.cause


@pytest.mark.parametrize(
    ("state", "headline"),
    [
        ("training", "Training: no step numbers in this log, last loss 0.5, 3 s ago"),
        ("waiting", "Waiting: no sign of progress for 3 s"),
        ("finished", "Finished"),
        ("failed", "Failed"),
        ("unwatched", "Not watched"),
        ("interrupted", "Interrupted"),
    ],
)
def test_run_without_step_numbers_shows_none(state: str, headline: str) -> None:
    assert judged(row(state, step=None, loss=0.5, progressed_at=NOW - 3), last=None).headline == headline


def test_lost_agent_has_precedence_over_its_reports(make_incident: Callable[..., Incident]) -> None:
    assert judged(row("stale", seen=NOW - 95)).headline == "Agent gone: no report for 1 min 35 s"
    found = judged(row("stale", seen=NOW - 95), make_incident(primary=primary()))
    assert found.headline.startswith("Agent gone since ")
    assert found.headline.endswith(": the run was stalled when last seen")
    assert found.facts[0].startswith("The following numbers are from the last report") and found.fixes
    assert (found.level, found.page.id) == ("warning", SILENT_HANG)  # the incident that the Runs page names


def test_advice_about_a_process_names_its_host(
    make_incident: Callable[..., Incident],
) -> None:
    alone = judged(row("stalled"), make_incident(rank=1, host="n2"))
    several = judged(row("stalled"), make_incident(rank=1, host="n2", hosts=["n1", "n2"]))
    assert [fix for fix in several.fixes if "n2" in fix] == [f"{alone.fixes[0]} Run this command on n2."]
    assert "py-spy dump" in alone.fixes[0] and not any("n2" in fix for fix in alone.fixes)


def test_unknown_exception_has_next_steps(make_incident: Callable[..., Incident]) -> None:
    steps = [message("report.next-own-line", frame="train.py:8 in load")]
    about = {"kind": "ended", "rule": UNKNOWN_FAILURE, "exception": "ValueError: bad (train.py:8)"}
    died = make_incident(**about, next_steps=steps, folder="/runs/stuck", status="resolved")
    found = judged(row("failed", ended_at=NOW), died)
    assert (found.cause, found.why) == (about["exception"], say("alerts.unknown-why"))
    own, explain = found.fixes
    assert "train.py:8 in load" in own and "stallwatch diagnose --explain /runs/stuck" in explain


@pytest.mark.parametrize(
    ("about", "doubt"),
    [
        ({"rule": UNKNOWN_FAILURE}, ", cause unknown"),
        ({"rule": UNKNOWN_FAILURE, "exception": "ValueError: bad (train.py:8)"}, ", cause uncertain"),
        ({"rule": RULE, "primary": primary(confidence=0.4)}, ", cause uncertain"),
        ({"rule": RULE, "primary": primary(confidence=0.5)}, ""),
        ({"rule": RULE}, ""),
    ],
)
def test_headline_of_a_failure_matches_its_cause(
    make_incident: Callable[..., Incident], about: dict[str, Any], doubt: str
) -> None:
    died = make_incident(kind="ended", folder="/runs/stuck", **about)
    found = judged(row("failed", ended_at=NOW), died)
    assert found.headline == f"Failed at step 57 / 900{doubt}"
    assert bool(found.cause) == ("unknown" not in doubt) and found.fixes
    alone = of_incident(died, load_catalogue().pages, Reader("en"))
    assert (alone.headline, alone.cause) == (f"stuck: open{doubt}", found.cause)


def test_lost_rank_is_explained_without_a_page(make_incident: Callable[..., Incident]) -> None:
    found = judged(row("degraded"), make_incident(kind="finding", rule=RANK_GONE))
    assert found.cause == say("alerts.rank-gone") and found.why == say("alerts.rank-gone-why")
    assert len(found.fixes) == 3


@pytest.mark.parametrize(
    ("state", "level", "headline"),
    [
        ("failed", "critical", "Failed at step 57 / 900"),
        ("unwatched", "quiet", "Not watched: last seen at step 57 / 900"),
        ("starting", "quiet", "Starting: no step yet"),
        ("degraded", "warning", "Slower than before"),
    ],
)
def test_other_states_have_level_and_headline(state: str, level: str, headline: str) -> None:
    ended = NOW if state in ("finished", "failed", "unwatched") else None
    found = judged(row(state, ended_at=ended))
    assert (found.level, found.headline) == (level, headline)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_early_finish_is_not_reported_as_good(language: str) -> None:
    say = Reader(language).say
    early = judged(row("finished", ended_at=NOW), language=language)
    assert (early.level, early.headline) == ("quiet", say("is_finished_early", "57", "900"))
    assert early.facts == (say("is_finished_early_why"),)
    for step in (899.0, 900.0):  # steps may count from 0
        whole = judged(row("finished", step=step, ended_at=NOW))
        assert (whole.level, whole.headline) == ("good", f"Finished at step {step:.0f} / 900")


def test_failed_run_is_explained_by_its_final_incident(make_incident: Callable[..., Incident]) -> None:
    stall = make_incident(status="resolved", resolution="run-failed", opened_at=NOW - 90)
    end = make_incident(
        kind="ended", rule="cuda-oom", opened_at=NOW - 5, primary=primary(title="Out of memory")
    )
    found = judged(row("failed", ended_at=NOW, ending=Ending("failed", 1, detail="exit code 1")), stall, end)
    assert found.page.id == "cuda-oom" and found.facts[0] == "exit code 1"


def test_finished_run_reports_unfixed_findings(make_incident: Callable[..., Incident]) -> None:
    broken = make_incident(kind="finding", rule=RULE, status="resolved", resolution="unmended")
    found = judged(row("finished", ended_at=NOW), broken)
    assert (found.level, found.page.id) == ("warning", RULE)


def test_finished_run_ignores_recovered_stalls(make_incident: Callable[..., Incident]) -> None:
    got_over = make_incident(status="resolved", resolution="recovered")
    found = judged(row("finished", step=900.0, ended_at=NOW), got_over)
    assert found.level == "good" and not found.cause


def test_diagnosis_becomes_a_verdict() -> None:
    place = Place(0, "rank0.log", 168, None, 57, "")
    finding = Finding(RULE, "t", "cause", "fatal", 3, [0], place, place, note="No step followed.")
    diagnosis = Diagnosis("failed", primary(), [finding], ending="exit code 1")
    found = of_diagnosis(diagnosis, load_catalogue().pages, Reader("en"))
    assert (found.level, found.headline, found.note) == ("critical", "Failed", "No step followed.")
    assert any("rank0.log:168" in fact for fact in found.facts) and found.page is not None


def test_interrupted_run_is_not_called_failed(make_incident: Callable[..., Incident]) -> None:
    stopped = row(
        "interrupted",
        ended_at=NOW - 5,
        ending=Ending("interrupted", 130, "SIGINT", "It was interrupted (Ctrl-C, SIGINT)."),
    )
    found = judged(stopped)
    assert (found.level, found.headline) == ("quiet", "Interrupted by Control+C or SIGINT at step 57 / 900")
    assert found.facts == ("It was interrupted (Ctrl-C, SIGINT).",)
    assert judged(stopped, language="zh").headline == "被 Ctrl-C 或 SIGINT 中断，停在第 57 / 900 步"
    stalled = make_incident(rule=RULE, primary=primary(), status="resolved", resolution="run-stopped")
    assert judged(stopped, stalled).level == "warning"  # the stall is the reason why it was stopped


@pytest.mark.parametrize(
    ("ending", "step", "headline"),
    [
        (Ending("killed", 143, "SIGTERM"), 57, "Interrupted by SIGTERM at step 57 / 900"),
        (Ending("killed", 143, "SIGTERM"), None, "Interrupted by SIGTERM"),
        (Ending("time-limit", 124), 57, "Interrupted by its time limit at step 57 / 900"),
        (Ending("interrupted", 130, "SIGINT"), None, "Interrupted by Control+C or SIGINT"),
        (Ending("interrupted", 131, "SIGQUIT"), None, "Interrupted by SIGQUIT"),
    ],
)
def test_headline_of_an_interrupted_run_names_the_signal(
    ending: Ending, step: int | None, headline: str
) -> None:
    assert judged(row("interrupted", ended_at=NOW - 5, ending=ending, step=step)).headline == headline


@pytest.mark.parametrize("language", ["en", "zh"])
def test_advice_for_a_single_rank_is_the_same_in_both_languages(
    make_incident: Callable[..., Incident], language: str
) -> None:
    """The run's diagnosis is in English, and the reader may read Chinese."""
    stacks = StallStacks(1.0, 0.1, [StackGroup([0], "code", place="hang.py:5 in stuck")])
    fixes: list[Text] = [
        message("diagnosis.look-there", told=sentence(stacks)),
        message("diagnosis.alone-fix"),
    ]
    hung = primary(rule=SILENT_HANG, rank=0, why=message("diagnosis.alone-why"), fixes=fixes)
    stall = make_incident(rule=SILENT_HANG, primary=hung, stacks=stacks, resolution="run-stopped")
    found = judged(row("interrupted"), stall, language=language)
    assert found.why == say("diagnosis.alone-why", language)
    assert "hang.py:5" in found.fixes[0] and found.fixes[1:] == (say("diagnosis.alone-fix", language),)


@pytest.mark.parametrize(
    ("resolution", "english", "chinese"),
    [
        ("run-failed", "ended with the run: failed", "任务失败，事件随之结束"),
        ("run-stopped", "ended with the run: interrupted", "任务被中断，事件随之结束"),
        ("unmended", "not fixed when the run ended", "任务结束时仍未解决"),
        ("unknown", "agent gone", "agent 失联"),
        ("recovered", "resolved", "已结束"),
    ],
)
def test_incident_of_a_dead_run_is_not_called_resolved(
    make_incident: Callable[..., Incident], resolution: str, english: str, chinese: str
) -> None:
    found = make_incident(kind="finding", status="resolved", resolution=resolution, resolved_at=NOW)
    for language, state in (("en", english), ("zh", chinese)):
        reader = Reader(language, timezone.utc, NOW)
        about = of_incident(found, {}, reader)
        assert about.headline == f"stuck: {state}"
        icon, shown = str(incident_table([found], reader, {}).iloc[0, 0]).split(maxsplit=1)
        assert (icon == "✔", shown in state) == (resolution == "recovered", True)


@pytest.mark.parametrize(("language", "state"), [("en", "interrupted by SIGTERM"), ("zh", "被 SIGTERM 中断")])
def test_stall_ended_by_a_stop_is_not_called_recovered(
    make_incident: Callable[..., Incident], language: str, state: str
) -> None:
    ending = Ending("killed", 143, "SIGTERM")
    stall = make_incident(status="resolved", resolution="run-stopped", resolved_at=NOW, ending=ending)
    table = incident_table([stall], Reader(language, timezone.utc, NOW), {})
    assert table.iloc[0, 0] == f"■ {state}"  # short: all columns but the last one fit into the window
    assert table.columns[-1] in ("Title", "标题")


@pytest.mark.parametrize("spoken", ["en", "zh"])
@pytest.mark.parametrize(
    ("language", "blame"),
    [
        ("en", ": rank 1 holds up the run at ddp.py:5 in reward_fn"),
        ("zh", "：卡在 rank 1（ddp.py:5 的 reward_fn）"),
    ],
)
def test_title_of_a_known_stall_has_rank_and_location(
    make_incident: Callable[..., Incident], spoken: str, language: str, blame: str
) -> None:
    page = load_catalogue().pages[RULE]
    titles = {"en": page.title, "zh": page.title_zh}
    stacks = StallStacks(0.0, 0.1, [StackGroup([1], "code", place="ddp.py:5 in reward_fn")], odd=[1])
    stall = make_incident(rule=RULE, primary=primary(title=titles[spoken]), stacks=stacks)
    assert judged(row("stalled"), stall, language=language).cause == titles[language] + blame
