"""A chat message about a run over several hosts: the rank, its host, and the number of answering hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stallwatch_alerts.messages.compose import TEXT_LIMIT, TITLE_LIMIT, render
from stallwatch_alerts.messages.ranks import fold_hosts
from stallwatch_exporter.incident import Incident
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import sentence

Stall = Callable[..., Incident]


def stacks(**changes: Any) -> StallStacks:
    """Return stacks of three ranks on three hosts, with rank 1 in another place."""
    facts: dict[str, Any] = {
        "groups": [
            StackGroup([0, 2], "collective", what="all_reduce", place="train.py:30 in step"),
            StackGroup([1], "code", place="train.py:11 in score", frames=["train.py:11 in score"]),
        ],
        "odd": [1],
        "why": "elsewhere",
        "hosts": {"n1": "0", "n2": "1", "n3": "2"},
        "pids": {1: 4711},
        "confidence": 0.95,
    }
    return StallStacks(1000.0, 1.0, **{**facts, **changes})


def primary(rule: str, *, fixes: list[Text]) -> Primary:
    return Primary(rule, "t", "symptom", "fatal", 0.9, 0, "", 0, None, 40, [], {}, "", fixes)


def over_hosts(stall: Stall, **changes: Any) -> Incident:
    known = {"host": "n2", "rank": 1, "hosts": ["n1", "n2", "n3"], "folder": "/runs/sft"}
    return stall(**{**known, "stacks": stacks(), **changes})


def test_message_contains_rank_host_and_number_of_responses(stall: Stall) -> None:
    message = render(over_hosts(stall), "en", None)
    assert "rank 1 on n2 holds up the run at train.py:11 in score" in message.title
    lines = message.text.splitlines()
    assert "3 of 3 hosts answered." in lines
    assert "Run: myrun on 3 hosts" in lines
    assert any(line.startswith("At: rank 1 (PID 4711) on n2, step 160") for line in lines)
    assert "    ssh n2 py-spy dump --pid 4711" in lines


def test_message_in_chinese_contains_rank_and_hosts(stall: Stall) -> None:
    message = render(over_hosts(stall), "zh", None)
    assert "卡在 n2 上的 rank 1" in message.title
    assert "共 3 台主机，3 台有响应。" in message.text
    assert "任务：myrun（3 台主机）" in message.text


def test_run_on_one_host_does_not_mention_hosts(stall: Stall) -> None:
    alone = stacks(hosts={})
    message = render(stall(host="node-1", rank=1, stacks=alone), "en", None)
    assert "rank 1 holds up the run at train.py:11 in score" in message.title
    assert "Run: myrun on node-1" in message.text
    assert "hosts" not in message.text and "ssh" not in message.text


def test_silent_hosts_are_named_if_nothing_else_is_known(stall: Stall) -> None:
    silent = stacks(groups=[], odd=[], why="", hosts={"n1": "0", "n2": "1"}, silent=["n3"])
    text = render(over_hosts(stall, stacks=silent), "en", None).text
    assert "2 of 3 hosts answered. No answer from n3." in text


def test_last_lines_that_are_not_steps_are_quoted_beside_the_stacks(stall: Stall) -> None:
    lines = ["s3: 503 SlowDown (attempt 44), retrying in 2 s", "step 110/400 loss 0.5"]
    text = render(over_hosts(stall, stacks=stacks(), evidence=lines, primary=None), "en", None).text
    assert f"Last output:\n    {lines[0]}\n" in text and lines[1] not in text


@pytest.mark.parametrize(
    ("changes", "title", "advice"),
    [
        ({"odd": [2], "why": "unreachable", "silent": ["n3"]}, "host n3 does not answer", "ping"),
        (
            {"odd": [1, 2], "why": "unreachable", "silent": ["n2", "n3"]},
            "hosts n2, n3 do not answer",
            "ping",
        ),
        ({"odd": [], "why": "outside"}, "all ranks wait for something other than a rank", "MASTER_ADDR"),
        ({"odd": [], "why": "frozen"}, "all ranks stopped at the same time", "suspended"),
        ({"odd": [], "why": "", "candidates": [1, 2]}, "which of ranks 1, 2", ""),
        ({"odd": [1], "why": "unfinished"}, "rank 1 on n2 holds up the run", "ibstat"),
        ({"odd": [0, 1], "why": "behind"}, "ranks 0, 1 on n1, n2 hold up the run", ""),
        ({"odd": [1], "why": "diverged"}, "rank 1 on n2 took a different path than the other ranks", ""),
    ],
)
def test_every_reason_has_its_title_and_advice(
    stall: Stall, changes: dict[str, Any], title: str, advice: str
) -> None:
    for language in ("en", "zh"):
        message = render(over_hosts(stall, stacks=stacks(**changes)), language, None)
        if language == "en":
            assert title in message.title
            assert advice in message.text
        assert "{" not in message.title + message.text


def test_commands_run_on_the_host_of_each_process(stall: Stall) -> None:
    groups = [StackGroup([1], "collective"), StackGroup([0, 2], "code", place="train.py:11 in score")]
    both = stacks(groups=groups, odd=[0, 2], pids={0: 100, 2: 300})
    lines = render(over_hosts(stall, stacks=both), "en", None).text.splitlines()
    assert "    ssh n1 py-spy dump --pid 100" in lines and "    ssh n3 py-spy dump --pid 300" in lines


def test_files_and_folder_are_on_their_hosts(stall: Stall) -> None:
    known = stacks(files={"1": "/data/it's/stacks.txt"})
    lines = render(over_hosts(stall, stacks=known, folder_host="n1"), "en", None).text.splitlines()
    assert [line for line in lines if line.startswith("    ssh")] == [
        "    ssh n2 py-spy dump --pid 4711",
        """    ssh n2 'less '"'"'/data/it'"'"'"'"'"'"'"'"'s/stacks.txt'"'"''""",
        "    ssh n1 stallwatch diagnose /runs/sft",
    ]
    alone = over_hosts(stall, hosts=["n2"], stacks=stacks(hosts={}, file="stacks.txt"))
    lines = render(alone, "en", None).text.splitlines()
    assert [line for line in lines if line.startswith("    ssh")] == [
        "    ssh n2 py-spy dump --pid 4711",
        "    ssh n2 less /runs/sft/stacks.txt",
        "    ssh n2 stallwatch diagnose /runs/sft",
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_advice_does_not_repeat_the_stacks_of_the_first_reporting_host(stall: Stall, language: str) -> None:
    own = sentence(stacks(groups=[StackGroup([0], "collective")], odd=[], hosts={}, elsewhere=2))
    assert isinstance(own, Message)
    look = own + message("diagnosis.all-stacks", file="stacks-n1.txt")
    incident = over_hosts(stall, rule="silent-hang-no-error")
    incident.primary = primary(incident.rule, fixes=[look, "Set a timeout."])
    text = render(incident, language, None).text
    assert "stacks-n1.txt" not in text and "2. Set a timeout." in text


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "`ssh n2 py-spy dump --pid 4711`"),
        ({"locked_out": True}, "`ssh n2 py-spy dump --native --pid 4711`"),
        ({"condition": "stopped"}, "`ssh n2 kill -CONT 4711`"),
    ],
)
def test_remedy_for_a_rank_runs_on_its_host(stall: Stall, changes: dict[str, Any], command: str) -> None:
    groups = [StackGroup([0, 2], "collective"), StackGroup([1], "code", **changes)]
    assert command in render(over_hosts(stall, stacks=stacks(groups=groups)), "en", None).text


@pytest.mark.parametrize("host", ["-oProxyCommand=reboot", "n2;reboot", "n 2", ""])
def test_invalid_host_names_are_not_used_in_commands(stall: Stall, host: str) -> None:
    odd = stacks(hosts={"n1": "0", host: "1", "n3": "2", "n4": "x-y,9-"})
    text = render(over_hosts(stall, stacks=odd, host=host), "en", None).text
    assert "    py-spy dump --pid 4711" in text.splitlines() and "ssh" not in text


def test_finding_names_the_host_of_its_rank(stall: Stall) -> None:
    found = over_hosts(stall, kind="finding", rule="cuda-oom", stacks=None, threshold_seconds=None)
    message = render(found, "en", None)
    assert "(rank 1 on n2)" in message.title and "Run: myrun on 3 hosts" in message.text


@pytest.mark.parametrize("odd", [[611], list(range(0, 1024, 2)), list(range(1024)), []])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_message_about_a_thousand_ranks_is_short(stall: Stall, odd: list[int], language: str) -> None:
    names = [f"gpu-a{number:03}.cluster-of-a-long-name.example" for number in range(128)]
    hosts = {name: f"{8 * number}-{8 * number + 7}" for number, name in enumerate(names)}
    others = [rank for rank in range(1024) if rank not in odd]
    groups = [StackGroup(ranks, "collective", what="all_reduce") for ranks in (others, odd) if ranks]
    many = stacks(groups=groups, odd=odd, hosts=hosts, why="behind", candidates=list(range(0, 1024, 2)))
    message = render(over_hosts(stall, hosts=names, host=names[76], rank=611, stacks=many), language, None)
    assert len(message.title) <= TITLE_LIMIT and len(message.text) <= TEXT_LIMIT
    assert "128" in message.text
    assert not message.title.endswith("…")


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        (["n1", "n2", "n3", "n7"], "n1–n3, n7"),
        (["n3", "n1", "n2", "n1"], "n1–n3"),
        ([f"n{number}" for number in range(1, 129)], "n1–n128"),
        (["gpu07", "gpu08", "gpu10"], "gpu07, gpu08, gpu10"),
        (["n0", "n1", "n10"], "n0, n1, n10"),
        (["a1.lab", "a2.lab", "b1.lab"], "a1.lab, a2.lab, b1.lab"),
        (["head", "n9"], "head, n9"),
        ([f"{letter}{letter}-host" for letter in "abcdefghijk"], "11 hosts"),
        (["**n1**"], "n1"),
        ([], ""),
    ],
)
def test_names_of_hosts_are_folded_or_counted(hosts: list[str], folded: str) -> None:
    assert fold_hosts(hosts, "en").replace("*", "").replace("∗", "") == folded
