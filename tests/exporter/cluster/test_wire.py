"""Reports and replies survive encoding, and those of a newer version are readable."""

import msgspec

from stallwatch_exporter.cluster.wire import AgentReport, Member, Post, Reply
from stallwatch_rules.decoding import from_json
from stallwatch_rules.stacks.records import Collectives, RankGroup, StackGroup, StallStacks

STACKS = StallStacks(
    1.0,
    0.2,
    [StackGroup([8, 9], "collective", step=4, collectives={"world": Collectives(12, 11, "all_reduce")})],
    layout=[RankGroup("world", "0-15", "default", "world")],
    hosts={"n2": "8-15"},
)
REPORT = AgentReport(
    key="5f", agent="n2-1", host="n2", host_id="ab", run="sft-8123.0", number=7, ranks="8-15", stacks=STACKS
)


def test_post_round_trips() -> None:
    post = Post(reports=[REPORT])
    assert from_json(msgspec.json.encode(post), Post) == post


def test_reply_round_trips() -> None:
    reply = Reply(members=[Member("ab", "n2", "n2:19402", 1)], hosts={"n2": "8-15"})
    assert from_json(msgspec.json.encode(reply), Reply) == reply


def test_keys_of_a_newer_version_are_ignored() -> None:
    newer = msgspec.to_builtins(Post(reports=[REPORT]))
    newer["reports"][0]["thermometer"] = 60
    assert from_json(msgspec.json.encode(newer), Post) == Post(reports=[REPORT])
