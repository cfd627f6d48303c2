"""The message about a stall says where the odd ranks are, in either language."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from stallwatch.cli.watching import TerminalSink
from stallwatch_alerts.messages import compose
from stallwatch_alerts.messages.cause import cause_of
from stallwatch_alerts.notice import Notice, incident_notice
from stallwatch_alerts.people import Silence
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_exporter.incident import Incident
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.stacks.records import StackGroup, StallStacks, Why


def located(odd: list[int], why: Why = "elsewhere", *, ranks: int = 4) -> Incident:
    others = [rank for rank in range(ranks) if rank not in odd]
    groups = (
        [StackGroup(others, "collective", what="all_gather", place="train.py:42 in step")] if others else []
    )
    for rank in odd:
        groups.append(StackGroup([rank], "data", what="DataLoader.__next__", place="<!channel>:30 in main"))
    return stall(StallStacks(5.0, 0.1, groups, odd, why, file="stacks-1.txt"))


def stall(stacks: StallStacks | None = None) -> Incident:
    return Incident(
        id=f"r/stall/{SILENT_HANG}/1",
        run="r",
        kind="stall",
        rule=SILENT_HANG,
        severity="critical",
        status="open",
        episode=1,
        opened_at=0.0,
        updated_at=0.0,
        stalled_seconds=42.0,
        stacks=stacks,
    )


THERE = " at ‹!channel›:30 in main"  #: place of the odd ranks with escaped markup


@pytest.mark.parametrize(
    ("incident", "language", "title"),
    [
        (located([1]), "en", f", rank 1 holds up the run{THERE}"),
        (located([1, 3]), "en", f", ranks 1, 3 hold up the run{THERE}"),
        (
            located([2], "diverged"),
            "en",
            ", rank 2 took a different path than the other ranks at ‹!channel›:30 in main",
        ),
        (
            located([0, 1], "diverged", ranks=2),
            "en",
            ", ranks 0, 1 took different paths at ‹!channel›:30 in main",
        ),
        (located([], ""), "en", ", at train.py:42 in step"),
        (located([1]), "zh", "，卡在 rank 1（‹!channel›:30 的 main）"),
    ],
)
def test_title_contains_the_odd_ranks_and_their_location(
    incident: Incident, language: str, title: str
) -> None:
    stalled = {"en": "[r] stalled: no step for 42 s", "zh": "[r] 卡住：已 42 秒没有新的 step"}[language]
    assert incident_notice(incident, language, None).message.title == stalled + title


def single(**about: Any) -> Incident:
    group = StackGroup([0], about.pop("kind", "code"), place="train.py:9 in main", **about)
    return stall(StallStacks(5.0, 0.1, [group], pids={0: 7}))


@pytest.mark.parametrize(
    ("incident", "state", "advice"),
    [
        (single(), "", "This call waits for something"),
        (single(condition="stopped"), " (stopped by a signal)", "kill -CONT 7"),
        (single(kind="input"), " (waiting for input)", "Answer in the terminal"),
        (single(kind="lock"), " (waiting for a file lock)", "end that process"),
        (single(kind="process"), " (waiting for a child process)", "what the child process is doing"),
        (single(busy=True), " (busy without progress)", "This code uses processor time"),
        (single(kind="data"), "", "workers of the data loader"),
    ],
)
def test_title_states_why_a_rank_waits(incident: Incident, state: str, advice: str) -> None:
    message = incident_notice(incident, "en", None).message
    assert message.title.endswith(f"at train.py:9 in main{state}") and advice in message.text


def test_text_contains_the_escaped_sentence() -> None:
    notice = incident_notice(located([1]), "en", None)
    assert (
        "Ranks 0, 2, 3 wait in all_gather (train.py:42 in step); "
        "rank 1 is in DataLoader.__next__ (data loading, ‹!channel›:30 in main)."
    ) in notice.message.text.splitlines()
    assert notice.facts["odd_ranks"] == "1" and notice.facts["status"] == "open"


def test_message_contains_host_process_and_commands() -> None:
    incident = located([1])
    assert incident.stacks is not None
    incident.stacks.pids = {0: 4710, 1: 4711}
    incident.host, incident.rank, incident.folder = "node-1", 1, "/var/lib/my runs/r"
    text = incident_notice(incident, "en", None).message.text
    assert "Run: r on node-1\nAt: rank 1 (PID 4711)" in text
    assert text.endswith(
        "Where to look next:\n"
        "    py-spy dump --pid 4711\n"
        "    less '/var/lib/my runs/r/stacks-1.txt'\n"
        "    stallwatch diagnose '/var/lib/my runs/r'"
    )
    incident.stacks.groups[-1].condition = "stopped"
    text = incident_notice(incident, "zh", None).message.text
    assert "rank 1（PID 4711）" in text and "    kill -CONT 4711\n" in text
    assert "用 `kill -CONT 4711` 让进程继续运行" in text or "kill -CONT 4711 让进程继续运行" in text


def test_worker_of_a_data_loader_is_shown() -> None:
    incident = located([1])
    assert incident.stacks is not None
    group, incident.stacks.pids = incident.stacks.groups[-1], {1: 4711}
    incident.folder = "/runs/r"
    group.worker, group.worker_frames = 4712, ["/t/train.py:9 in __getitem__", "/t/train.py:4 in fetch"]
    for language, head in (
        ("en", "Stack of the rank's data loader worker (PID 4712):"),
        ("zh", "的调用栈："),
    ):
        text = incident_notice(incident, language, None).message.text
        assert f"{head}\n    /t/train.py:9 in __getitem__\n    /t/train.py:4 in fetch\n" in text
        assert "    py-spy dump --pid 4712\n    py-spy dump --pid 4711\n" in text


def test_findings_that_are_not_a_cause_are_background() -> None:
    incident = located([1])
    incident.background = ["zero3-trace-cache-invalidated"]
    for language, line in (
        ("en", "Also found, but probably not the cause: zero3-trace-cache-invalidated"),
        ("zh", "同时发现，但多半不是原因：zero3-trace-cache-invalidated"),
    ):
        text = incident_notice(incident, language, None).message.text
        assert line in text.splitlines() and "Likely cause" not in text and "可能的原因" not in text


def test_diverged_ranks_get_advice() -> None:
    for language, advice in (("en", "call different collectives"), ("zh", "调用的集合通信不一致")):
        incident = msgspec.structs.replace(located([0, 1], "diverged", ranks=2), rule=SILENT_HANG)
        assert advice in incident_notice(incident, language, None).message.text


def test_stack_shows_the_innermost_frame_and_the_users_frame() -> None:
    library = "/opt/venv/lib/python3.11/site-packages/requests"
    calls = [f"{library}/api.py:{number} in call" for number in range(9)]
    frames = ["/opt/train/train.py:9 in main", "/opt/train/rewards.py:4 in score", *calls]
    waiting = StackGroup([1], "network", place="rewards.py:4 in score", frames=frames)

    def shown() -> list[str]:
        found = stall(StallStacks(5.0, 0.1, [waiting], [1], "elsewhere"))
        lines = incident_notice(found, "en", None).message.text.splitlines()
        return [line.strip() for line in lines if line.startswith("    ")]

    assert shown() == [*frames[:2], "…", *calls[-2:]]
    waiting.frames = frames[:2]
    assert shown() == frames[:2]


@pytest.mark.parametrize(
    ("group", "language", "says"),
    [
        (StackGroup([1], "network"), "en", "Set a timeout for the call"),
        (StackGroup([1], "network"), "zh", "加超时"),
        (StackGroup([1], "code", "stopped"), "en", "kill -CONT"),
        (StackGroup([1], "code", locked_out=True), "en", "--native"),
    ],
)
def test_message_contains_advice_for_the_odd_rank(group: StackGroup, language: str, says: str) -> None:
    waits = StackGroup([0, 2], "collective", what="all_gather")
    found = stall(StallStacks(5.0, 0.1, [waits, group], [1], "elsewhere"))
    assert says in incident_notice(found, language, None).message.text
    only = stall(StallStacks(5.0, 0.1, [group]))
    assert says in incident_notice(only, language, None).message.text, "a run of one rank"
    both = stall(StallStacks(5.0, 0.1, [group, StackGroup([3], "debugger")], [1, 3], "elsewhere"))
    assert says not in incident_notice(both, language, None).message.text, "they do different things"


class Chat:
    name = "chat"

    def __init__(self) -> None:
        self.titles: list[str] = []

    def send(self, notice: Notice) -> None:
        self.titles.append(notice.message.title)


def test_late_stacks_do_not_cause_a_second_message() -> None:
    chat = Chat()
    sink = ChatSink(AlertSettings(urls=("x://",)), Catalogue.of([]), connect=lambda _: chat)
    for incident in (stall(), stall(), located([1]), located([1])):
        sink(incident)
    assert sink.close(120)
    assert chat.titles == ["[r] stalled: no step for 42 s"]


def test_terminal_shows_a_located_stall_once() -> None:
    stream = io.StringIO()
    sink = TerminalSink(Catalogue.of([]), "en", stream)
    for incident in (located([1]), located([1])):
        sink(incident)
    assert sink.close(120)
    assert stream.getvalue().count("rank 1 holds up the run") == 1
    assert stream.getvalue().count("stalled:") == 1


def test_silenced_stall_stays_silenced_if_its_rule_changes() -> None:
    cause, hang = "zero3-trace-cache-invalidated", "silent-hang-no-error"
    found = msgspec.structs.replace(located([1]), id=f"r/stall/{cause}/1", rule=hang)
    died = msgspec.structs.replace(found, kind="ended")
    silences = [Silence(0.0, 100.0, rule=rule) for rule in ("zero3-*", hang, "cuda-*")]
    assert [silence.quiets(found, 50.0) for silence in silences] == [True, True, False]
    assert [silence.quiets(died, 50.0) for silence in silences] == [False, True, False]
    assert not silences[0].quiets(found, 100.0)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_location_cannot_mention_a_channel(language: str) -> None:
    page = load_catalogue().pages[SILENT_HANG]
    text = compose.render(located([2], "diverged"), language, page).text
    assert "<!channel>" not in text and "TORCH_DISTRIBUTED_DEBUG=DETAIL" in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_advice_names_no_command_for_a_process_that_has_ended(language: str) -> None:
    page = load_catalogue().pages[SILENT_HANG]
    for condition, locked_out in (("alive", False), ("alive", True), ("stopped", False)):
        group = StackGroup([0], "code", condition, place="a.py:5 in f", locked_out=locked_out)
        open_one = stall(StallStacks(1.0, 0.1, [group], pids={0: 4711}))
        over = msgspec.structs.replace(open_one, status="resolved", resolution="run-stopped")
        before, after = (render(cause_of(each, page).fixes[0], language) for each in (open_one, over))
        assert "a.py:5" in before and "4711" in before
        assert "a.py:5" in after and "4711" not in after
