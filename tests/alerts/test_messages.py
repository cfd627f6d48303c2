"""Messages to people contain the facts in both languages, and log text in them is harmless."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from stallwatch_alerts.messages.compose import ending_line, render, render_test
from stallwatch_alerts.notice import incident_notice
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.locale import duration_text
from stallwatch_rules.messages import bilingual, message
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.stacks.concluding import ONE_PROCESS, with_advice
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import with_title_prefix

Stall = Callable[..., Incident]


@pytest.mark.parametrize(
    ("seconds", "english", "chinese"),
    [
        (0.2, "0.2 s", "0.2 秒"),
        (42, "42 s", "42 秒"),
        (60, "1 min", "1 分钟"),
        (190, "3 min 10 s", "3 分 10 秒"),
        (3599.7, "1 h", "1 小时"),
        (3900, "1 h 5 min", "1 小时 5 分"),
        (183600, "2 d 3 h", "2 天 3 小时"),
    ],
)
def test_durations_are_readable(seconds: float, english: str, chinese: str) -> None:
    assert duration_text(seconds) == english
    assert duration_text(seconds, "zh") == chinese


def test_stall_message_contains_duration_and_threshold(stall: Stall) -> None:
    message = render(stall(), "en", None)
    assert message.title == "[myrun] stalled: no step for 42 s after step 160 of 900"
    for fact in (
        "42 s",
        "30 s",
        "node-1",
        "rank 1",
        "step 160 of 900",
        "training",
        "0.63214",
        "'loss': 0.63214",
    ):
        assert fact in message.text


def test_stall_title_depends_on_step_and_phase(stall: Stall) -> None:
    assert render(stall(step=None), "en", None).title == "[myrun] stalled: no step for 42 s"
    in_eval = render(stall(phase="eval"), "en", None)
    assert in_eval.title == "[myrun] stalled: no progress for 42 s in evaluation"
    at_end = render(stall(phase="idle"), "en", None)
    assert at_end.title == "[myrun] stalled: no progress for 42 s after the last step"


def test_stall_during_startup_mentions_the_limit_for_startup(stall: Stall) -> None:
    incident = stall(phase="init", step=None)
    english, chinese = (render(incident, language, None).text for language in ("en", "zh"))
    assert "rhythm" not in english and "The limit for startup is 30 s." in english
    assert "节奏" not in chinese and "超过了启动阶段的时限（30 秒）" in chinese


def test_stall_before_the_threshold_is_learned_does_not_call_it_learned(stall: Stall) -> None:
    incident = stall(threshold_seconds=90.0, stalled_seconds=95.0, learning=True)
    english, chinese = (render(incident, language, None).text for language in ("en", "zh"))
    assert "learned from this run's steps" not in english
    assert "Stallwatch to learn a stall threshold. Until then, the limit is 1 min 30 s." in english
    assert "自己的节奏" not in chinese and "卡住阈值暂定为 1 分 30 秒" in chinese


def test_minimum_threshold_is_not_called_learned(stall: Stall) -> None:
    incident = stall(at_floor=True)
    english, chinese = (render(incident, language, None).text for language in ("en", "zh"))
    assert "learned" not in english and "Stallwatch waits at least 30 s before it reports" in english
    assert "节奏" not in chinese and "Stallwatch 至少等待 30 秒才会报告卡住。" in chinese


@pytest.mark.parametrize("over", [False, True])
def test_end_of_a_run_mentions_a_record_outside_the_state_folder(stall: Stall, over: bool) -> None:
    where = message(
        "run.kept-elsewhere", path="/tmp/stallwatch-0-1/runs/myrun", why="No space left on device"
    )
    found = stall(kind="ended", ending=Ending("failed", 1), kept=where)
    found.status = "resolved" if over else "open"
    english, chinese = render(found, "en", None).text, render(found, "zh", None).text
    assert "The record of the run is in /tmp/stallwatch-0-1/runs/myrun" in english
    assert "/tmp/stallwatch-0-1/runs/myrun" in chinese and "状态目录无法写入" in chinese


def test_recovery_reports_its_duration(stall: Stall) -> None:
    incident = stall(status="resolved", resolution="recovered", resolved_at=1190.0, updated_at=1190.0)
    message = render(incident, "en", None)
    assert message.title == "[myrun] recovered after 3 min 10 s"
    assert "making progress again" in message.text
    assert render(incident, "zh", None).title == "[myrun] 已恢复，卡住了 3 分 10 秒"


def test_stall_reported_at_its_threshold_lasts_longer_than_it(stall: Stall) -> None:
    incident = stall(stalled_seconds=3.004, threshold_seconds=3.0)
    message = render(incident, "en", None)
    text = message.text
    assert "no step for more than 3 s after step" in message.title
    assert "for more than 3 s. The stall threshold, learned from this run's steps, is 3 s." in text
    assert "已 3 秒以上没有完成" in render(incident, "zh", None).text


def test_incident_of_a_lost_agent_is_not_called_recovered(stall: Stall, oom_page: RulePage) -> None:
    gone = {"status": "resolved", "resolution": "unknown", "resolved_at": 1190.0, "updated_at": 1190.0}
    message = render(stall(**gone), "en", None)
    assert message.title == "[myrun] agent gone: stalled when last seen"
    assert "not known whether the run continues" in message.text and "3 min 10 s after" in message.text
    assert "recovered" not in message.text and "over" not in message.text
    assert render(stall(**gone), "zh", None).title == "[myrun] agent 失联：失联前处于卡住状态"
    found = render(stall(kind="finding", rule="cuda-oom", **gone), "en", oom_page)
    assert found.title == "[myrun] agent gone: fatal: CUDA out of memory (rank 1)"
    assert incident_notice(stall(**gone), "en", None).level == "warning"


def test_incident_whose_tail_was_stopped_is_no_longer_watched(stall: Stall) -> None:
    ending = Ending("unknown", None)
    over = stall(
        status="resolved", resolution="unknown", resolved_at=1190.0, updated_at=1190.0, ending=ending
    )
    message = render(over, "en", None)
    assert message.title == "[myrun] no longer watched: stalled when last seen"
    assert "stallwatch tail was stopped" in message.text and "3 min 10 s after" in message.text
    assert "How the run ended" not in message.text and "killed" not in message.text


@pytest.mark.parametrize(("resolution", "word"), [("run-finished", "finished"), ("run-failed", "failed")])
def test_stall_that_ends_with_the_run_is_not_called_recovered(
    stall: Stall, resolution: str, word: str
) -> None:
    message = render(stall(status="resolved", resolution=resolution), "en", None)
    assert word in message.title
    assert "recovered" not in message.title


def test_stall_after_a_warning_counts_from_the_last_step(stall: Stall) -> None:
    message = render(stall(opened_at=1000.0, updated_at=1100.0, stalled_seconds=31.0), "en", None)
    assert "no step for 31 s" in message.title


def test_stall_ended_by_ctrl_c_announces_no_further_message(stall: Stall) -> None:
    """An interrupted run is not an incident, so its end is not sent."""
    ending = Ending("interrupted", 130, "SIGINT")
    stopped = stall(status="resolved", resolution="run-stopped", stalled_seconds=48.0, ending=ending)
    english, chinese = (render(stopped, language, None) for language in ("en", "zh"))
    assert english.title == "[myrun] interrupted by Control+C or SIGINT, after a stall of 48 s"
    assert chinese.title == "[myrun] 卡住 48 秒后，任务被 Ctrl-C 或 SIGINT 中断"
    assert "interrupted by Control+C or SIGINT" in english.text and "被 Ctrl-C 或 SIGINT 中断" in chinese.text
    assert "message of its own" not in english.text and "另发" not in chinese.text
    assert "failed" not in english.text and "失败" not in chinese.text
    assert incident_notice(stopped, "en", None).level == "info"


def failed(stall: Stall, primary: Primary | None, **changes: object) -> Incident:
    ending = Ending("failed", 1, None, "The command returned 1.", 7500.0)
    fields = {
        "kind": "ended",
        "status": "resolved",
        "resolution": "run-failed",
        "stalled_seconds": None,
        "rule": "cuda-oom",
        "rank": None,
        "primary": primary,
        "ending": ending,
        "evidence": [],
    }
    return stall(**{**fields, **changes})


@pytest.mark.parametrize(("language", "title"), [("en", "failed with exit code 1"), ("zh", "失败，退出码 1")])
def test_failure_without_a_known_cause_names_its_exit_code(stall: Stall, language: str, title: str) -> None:
    assert render(failed(stall, None, rule="unknown-failure"), language, None).title == f"[myrun] {title}"


def test_unknown_failure_has_next_steps(stall: Stall) -> None:
    steps = [message("report.next-own-line", frame="train.py:8 in load")]
    about = {"rule": "unknown-failure", "exception": "ValueError: bad (train.py:8)", "rank": 3}
    died = failed(stall, None, next_steps=steps, folder="/runs/a b", **about)
    shown = render(died, "en", None)
    assert shown.title == "[myrun] failed: ValueError: bad (train.py:8) (rank 3)"
    assert "No rule explains the failure." in shown.text
    assert "1. First look at 'train.py:8 in load'" in shown.text
    assert shown.text.endswith("    stallwatch diagnose --explain '/runs/a b'")


def test_failure_names_cause_rank_fixes_and_ending(
    stall: Stall, oom_primary: Primary, oom_page: RulePage
) -> None:
    message = render(failed(stall, oom_primary, note="It stopped the run."), "en", oom_page)
    assert message.title == "[myrun] failed: CUDA out of memory (rank 7)"
    for fact in (
        "CUDA out of memory (cuda-oom), fatal",
        "It stopped the run.",
        "An allocation did not fit.",
        "    torch.OutOfMemoryError: CUDA out of memory.",
        "1. Lower micro_batch_size.",
        "3. Use offload.",
        "exit code 1, after 2 h 5 min",
        "The command returned 1.",
    ):
        assert fact in message.text
    assert "Fourth." not in message.text


@pytest.mark.parametrize(("language", "ended"), [("en", "failed: "), ("zh", "失败：")])
def test_title_of_an_unknown_failure_is_its_exception(stall: Stall, language: str, ended: str) -> None:
    found = "ValueError: bad batch at index 77 (train.py:8)"
    died = failed(stall, None, rule="unknown-failure", exception=found)
    assert render(died, language, None).title == f"[myrun] {ended}{found}"
    died = failed(stall, None, rule="unknown-failure", exception="ValueError: @all " + "x" * 500)
    title = render(died, language, None).title
    assert title.startswith(f"[myrun] {ended}ValueError: ＠all xxx") and len(title) < 150


def test_chinese_message_uses_the_chinese_page(
    stall: Stall, oom_primary: Primary, oom_page: RulePage
) -> None:
    message = render(failed(stall, oom_primary), "zh", oom_page)
    assert message.title == "[myrun] 失败：CUDA 显存不足（rank 7）"
    for fact in ("致命", "一次显存申请失败。", "1. 减小 micro_batch_size。", "退出码 1", "2 小时 5 分"):
        assert fact in message.text
    assert "allocation" not in message.text.replace("allocate", "")


def test_long_texts_end_with_a_sentence_and_fixes_are_whole(
    stall: Stall, oom_primary: Primary, oom_page: RulePage
) -> None:
    oom_primary.why = "The *first* sentence says it all. " * 20
    oom_primary.fixes = [f"Fix {number}: " + "do this and that; " * 14 + "then done." for number in range(4)]
    incident = failed(stall, oom_primary, evidence=["e" * 400] * 5, note="n" * 400)
    message = render(incident, "en", oom_page)
    assert "The first sentence says it all.\n" in message.text
    assert message.text.endswith((";", "."))
    assert "1. Fix 0" in message.text and "3. Fix 2" not in message.text
    assert len(message.text) <= 1500


def test_harmless_at_sign_is_kept(stall: Stall) -> None:
    assert "cache @ step 10" in render(stall(evidence=["Invalidate trace cache @ step 10"]), "en", None).text


def test_stall_is_not_attributed_to_an_unrelated_finding(stall: Stall, oom_primary: Primary) -> None:
    message = render(stall(primary=oom_primary, rank=None), "en", None)
    assert "CUDA out of memory" not in message.title + message.text.replace(oom_primary.evidence[0], "")
    assert "rank" not in message.text


def test_links_and_markup_of_pages_are_removed(stall: Stall, oom_page: RulePage) -> None:
    text = render(failed(stall, None), "en", oom_page).text
    assert "see the notes" in text
    assert "http" not in text
    assert "`" not in text


@pytest.mark.parametrize(
    ("ending", "english", "chinese"),
    [
        (Ending("oom-killed", 137, "SIGKILL"), "killed by the kernel's OOM killer", "OOM killer"),
        (Ending("killed", 143, "SIGTERM"), "interrupted by SIGTERM", "被 SIGTERM 中断"),
        (Ending("time-limit", 143, "SIGTERM"), "interrupted by its time limit", "到达时间上限被中断"),
        (
            Ending("interrupted", 130, "SIGINT"),
            "interrupted by Control+C or SIGINT",
            "被 Ctrl-C 或 SIGINT 中断",
        ),
        (Ending("killed", 137, "SIGKILL"), "killed by SIGKILL", "被 SIGKILL 终止"),
        (Ending("unknown", None), "cause unknown", "原因不明"),
    ],
)
def test_endings_are_described_in_both_languages(
    stall: Stall, ending: Ending, english: str, chinese: str
) -> None:
    incident = failed(stall, None, ending=ending)
    assert english in render(incident, "en", None).title
    assert chinese in render(incident, "zh", None).title


def test_exit_code_is_mentioned_once() -> None:
    ending = Ending("failed", 1, detail=message("run.exited", code=1))
    assert ending_line(ending, "en") == "How the run ended: failed, exit code 1"
    assert ending_line(Ending("finished", 0, None, "", 3900), "zh") == "退出情况：已完成，耗时 1 小时 5 分"


def test_finding_reports_its_impact_and_its_end(stall: Stall, oom_page: RulePage) -> None:
    incident = stall(kind="finding", rule="cuda-oom", harm="degrading", rank=3)
    assert render(incident, "en", oom_page).title == "[myrun] degrading: CUDA out of memory (rank 3)"
    over = stall(kind="finding", rule="cuda-oom", rank=3, status="resolved", resolution="recovered")
    assert render(over, "en", oom_page).title == "[myrun] over: CUDA out of memory (rank 3)"


HOSTILE = (
    '<!channel> @here @everyone <@U024BE7LH> <at id="all">x</at> [free](http://evil.example/a) `x` **b** '
    "<script>alert(1)</script> &lt;!here&gt; &amp;gt; \u202egnp \x1b[31m ~~s~~ ||hid|| @所有人 mail@x.org"
)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_hostile_log_text_creates_no_mentions_or_links(
    stall: Stall, oom_primary: Primary, language: str
) -> None:
    oom_primary.title = oom_primary.why = HOSTILE
    oom_primary.fixes = [HOSTILE]
    incident = failed(
        stall, oom_primary, run=HOSTILE, host=HOSTILE, note=HOSTILE, evidence=[HOSTILE + "\nsecond\rline"]
    )
    incident.ending = Ending("failed", 1, None, HOSTILE)
    message = render(incident, language, None)
    for part in (message.title, message.text):
        for forbidden in (
            "@",
            "<",
            ">",
            "](",
            "://",
            "`",
            "**",
            "~~",
            "||",
            "&lt;",
            "&gt;",
            "\u202e",
            "\x1b",
            "\r",
        ):
            assert forbidden not in part, forbidden
    assert "\n" not in message.title
    assert "evil.example" in message.text  # the text stays readable
    assert "second line" not in message.text.split("\n")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_message_has_a_bounded_length(stall: Stall, oom_primary: Primary, language: str) -> None:
    oom_primary.fixes = ["f" * 5000] * 9
    oom_primary.why = oom_primary.title = "w" * 5000
    incident = failed(stall, oom_primary, run="r" * 5000, note="n" * 5000, evidence=["e" * 50_000] * 20)
    message = render(incident, language, None)
    assert len(message.text) <= 1500
    assert len(message.title) <= 200


def test_test_message_is_in_the_configured_language() -> None:
    assert "test message" in render_test("en").title
    assert "测试消息" in render_test("zh").title


def test_lost_rank_has_its_own_text(stall: Stall) -> None:
    """No rule page describes a lost rank, because a log does not show it."""
    gone = stall(
        kind="finding",
        rule="rank-gone",
        note=message("diagnosis.rank-gone", ranks="1"),
        primary=None,
    )
    english, chinese = (render(gone, language, None) for language in ("en", "zh"))
    assert english.title == "[myrun] fatal: a rank's process is gone, but the other ranks continue (rank 1)"
    assert chinese.title == "[myrun] 致命：有 rank 的进程已退出，其余 rank 仍在运行（rank 1）"
    for fact in ("The process of rank 1 is gone", "dmesg", "--kill-on-bad-exit"):
        assert fact in english.text
    for fact in ("rank 1 的进程已退出", "dmesg", "--kill-on-bad-exit"):
        assert fact in chinese.text
    assert "process" not in chinese.text.replace("killed process", "")
    over = render(stall(kind="finding", rule="rank-gone", primary=None, status="resolved"), "en", None)
    assert over.title == "[myrun] over: a rank's process is gone, but the other ranks continue (rank 1)"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_run_of_one_process_does_not_mention_other_ranks(stall: Stall, language: str) -> None:
    """Its stack is not known yet, or the chat has another language than the run."""
    hung = Primary(
        SILENT_HANG, "No step", "symptom", "fatal", 0.5, 0, "log", 1, None, 9, [], {}, "A collective.", []
    )
    found = with_advice(Diagnosis("stalled", primary=hung), ONE_PROCESS)
    incident = stall(rule=SILENT_HANG, primary=found.primary)
    text = render(incident, language, load_catalogue().pages[SILENT_HANG]).text
    assert not any(word in text for word in ("collective", "all_gather", "集合通信", "每个 rank"))
    assert ("Only one process" if language == "en" else "只有一个进程") in text


@pytest.mark.parametrize(
    ("language", "blame"), [("en", ": rank 1 holds up the run (at |在)"), ("zh", "：卡在 rank 1")]
)
@pytest.mark.parametrize("name", ["step", "step" * 200])
def test_cause_of_a_stall_mentions_rank_and_location_once(
    stall: Stall, language: str, blame: str, name: str
) -> None:
    rule = "gloo-collective-timeout"
    page = load_catalogue().pages[rule]
    title = {"en": page.title, "zh": page.title_zh}[language]
    primary = Primary(
        rule, bilingual(page.title, page.title_zh), "symptom", "fatal", 0.9, 1, "", 0, None, 9, [], {}, "", []
    )
    stacks = StallStacks(0.0, 0.1, [StackGroup([1], "code", place=f"train.py:5 in {name}")], odd=[1])
    primary.title = with_title_prefix(primary.title, stacks)
    for changes in ({}, {"status": "resolved", "resolution": "run-stopped"}):
        text = render(stall(rule=rule, primary=primary, stacks=stacks, **changes), language, page).text
        line = next(line for line in text.splitlines() if title in line)
        assert re.search(re.escape(title) + blame, line)
    ended = render(
        stall(rule=rule, kind="ended", primary=primary, ending=Ending("failed", 1)), language, page
    )
    assert re.search(re.escape(title) + blame, ended.title)
    assert ended.title.count("rank 1") == 1
