"""Reports of an agent to the other hosts, and its notifications without a coordinator."""

from __future__ import annotations

import msgspec
import pytest
from clustercases import Chat, Clock, incident, stacks

from stallwatch_exporter.cluster.backing import Refused
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.member import ALONE_SECONDS, Member, State
from stallwatch_exporter.cluster.wire import AgentReport, Reply
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.slow_hosts import RankStep
from stallwatch_rules.stacks.quiet_periods import Ruling

IDENTITY = RunIdentity(key="5f", job="8123.0", origin="slurm", node=1, agents=2)


class Line:
    """A backing that the test answers or disconnects."""

    def __init__(self) -> None:
        self.posts: list[AgentReport] = []
        self.reply: Reply | None = Reply()
        self.refusal = ""
        self.behind = 0  # reports that the coordinator has not read yet

    def post(self, report: AgentReport) -> Reply | None:
        self.posts.append(report)
        if self.refusal:
            raise Refused(self.refusal)
        if self.reply is None:
            return None
        return msgspec.structs.replace(self.reply, acknowledged={report.agent: report.number - self.behind})

    def close(self) -> None:
        pass


class Agent:
    """A member of a run whose rounds the test runs."""

    def __init__(self) -> None:
        self.clock, self.chat, self.line = Clock(), Chat(), Line()
        self.notices: list[str] = []
        self.left: list[float] = []
        self.trouble = ""
        self.member = Member(
            IDENTITY,
            "sft-8123.0",
            self.line,
            [self.fails, self.chat],
            agent="n1-1",
            host="n1",
            host_id="id",
            clock=self.clock,
            wall=self.clock.wall,
            notice=self.notices.append,
            leave=lambda *_: self.left.append(self.clock()),
            start=False,
        )

    def fails(self, _: Incident) -> None:
        if self.trouble:
            raise OSError(self.trouble)

    def opens(self, number: int = 1) -> Incident:
        found = incident(self.clock.wall(), number)
        self.member(found)
        return found

    def closes(self, found: Incident) -> Incident:
        at = self.clock.wall()
        over = msgspec.structs.replace(
            found, status="resolved", resolution="recovered", resolved_at=at, updated_at=at
        )
        self.member(over)
        return over

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.now += 0.5
            self.member.round()


def test_incident_is_posted_at_once_and_left_to_the_coordinator() -> None:
    agent = Agent()
    agent.member.round()
    agent.clock.now += 1.0
    agent.opens()
    agent.member.round()
    assert [len(post.incidents) for post in agent.line.posts] == [0, 1]
    agent.passes(10)
    assert not agent.chat.got


def test_agent_sends_unacknowledged_incidents_itself() -> None:
    agent = Agent()
    agent.line.reply = None
    found = agent.opens()
    agent.passes(ALONE_SECONDS - 0.5)
    assert not agent.chat.got
    agent.passes(1.0)
    assert [item.id for item in agent.chat.got] == [found.id]
    agent.line.reply = Reply()
    agent.passes(12)
    assert [item.aliases for item in agent.line.posts[-1].ledger] == [[f"n1-1 {found.id}"]]


def test_incident_sent_by_the_agent_itself_gets_an_unused_id() -> None:
    agent = Agent()
    at = agent.clock.wall()
    before = incident(at, 4, status="resolved", resolved_at=at, aliases=["n0-1 x"])
    agent.line.reply = Reply(ledger=[before])
    agent.passes(12)
    agent.line.reply = None
    mine = agent.opens()
    agent.passes(ALONE_SECONDS + 1)
    agent.closes(mine)
    agent.passes(ALONE_SECONDS + 1)
    sent = [(item.id.rpartition("/")[2], item.status) for item in agent.chat.got]
    assert sent == [("5", "open"), ("5", "resolved")]


def test_agent_closes_a_reported_incident_under_the_id_of_the_run() -> None:
    agent = Agent()
    mine = agent.opens()
    opened = mine.opened_at - 3.0
    run = incident(opened, 7, aliases=[f"n1-1 {mine.id}"])
    agent.line.reply = Reply(ledger=[run])
    agent.passes(12)
    agent.line.reply = None
    agent.closes(mine)
    agent.passes(ALONE_SECONDS + 1)
    assert [(item.id, item.opened_at, item.status) for item in agent.chat.got] == [
        (run.id, opened, "resolved")
    ]


def test_failing_sink_does_not_affect_other_sinks() -> None:
    agent = Agent()
    agent.line.reply, agent.trouble = None, "no space left"
    agent.opens()
    agent.passes(ALONE_SECONDS + 0.5)
    assert len(agent.chat.got) == 1


def test_reply_to_an_older_report_acknowledges_nothing() -> None:
    agent = Agent()
    agent.line.behind = 100
    agent.opens()
    agent.passes(2 * ALONE_SECONDS)
    assert not agent.chat.got, "somebody answers"
    agent.passes(2 * ALONE_SECONDS)
    assert len(agent.chat.got) == 1


def test_lost_reports_do_not_separate_an_agent_that_gets_replies() -> None:
    agent = Agent()
    agent.member.round()
    answer, agent.line.reply = agent.line.reply, None
    agent.clock.now += 1.0
    agent.opens()
    agent.passes(ALONE_SECONDS - 2.0)  # time for two or three posts
    agent.line.reply = answer
    agent.passes(20)
    assert not agent.chat.got


def test_refusal_is_shown_once_and_the_agent_continues_separately() -> None:
    agent = Agent()
    agent.line.refusal = "n0:19402 has another secret"
    agent.opens()
    agent.passes(ALONE_SECONDS + 1)
    assert agent.notices == ["n0:19402 has another secret; this agent sends its own notifications"]
    assert len(agent.line.posts) == 1
    assert len(agent.chat.got) == 1


@pytest.mark.parametrize(
    ("quiet", "least", "posts"),
    [(11.0, 0.0, 8), (29.0, 0.0, 20), (31.0, 0.0, 20), (62.0, 0.0, 5), (200.0, 0.0, 2), (29.0, 2.0, 10)],
)
def test_quiet_agent_posts_most_often_near_its_threshold(quiet: float, least: float, posts: int) -> None:
    agent = Agent()
    agent.passes(20)
    calm = len(agent.line.posts)
    agent.line.reply = Reply(beat=least)
    agent.member.update(State(quiet=quiet, threshold=30.0))
    agent.passes(20)
    assert calm <= 3
    assert posts - 1 <= len(agent.line.posts) - calm <= posts + 1


def test_lost_post_of_a_quiet_host_is_repeated_soon() -> None:
    agent = Agent()
    agent.line.reply = Reply(beat=5.0)
    agent.member.update(State(quiet=29.0, threshold=30.0))
    agent.passes(6)
    calm = len(agent.line.posts)
    agent.line.reply = None
    agent.passes(10)
    assert calm <= 2 and len(agent.line.posts) - calm >= 5


def test_host_whose_ranks_continue_posts_at_once() -> None:
    agent = Agent()
    agent.member.update(State(quiet=29.0, threshold=30.0))
    agent.member.round()
    agent.clock.now += 0.5
    agent.member.update(State(quiet=0.0, threshold=30.0))
    agent.member.round()
    agent.passes(4)
    assert [post.quiet for post in agent.line.posts] == [29.0, 0.0]


def test_outcome_of_an_incident_soon_reaches_possible_coordinators() -> None:
    agent = Agent()
    agent.passes(20)
    found = agent.opens()
    began = len(agent.line.posts)
    agent.passes(8)
    assert 4 <= len(agent.line.posts) - began <= 5
    agent.line.reply = Reply(ledger=[msgspec.structs.replace(found, aliases=[f"n1-1 {found.id}"])])
    agent.passes(2)
    known = len(agent.line.posts)
    agent.passes(7)
    assert len(agent.line.posts) == known
    agent.closes(found)  # the run's incident stays open
    agent.passes(30)
    assert len(agent.line.posts) - known <= 9


def test_new_ranks_are_posted_at_once() -> None:
    agent = Agent()
    agent.member.round()
    agent.clock.now += 1.0
    agent.member.update(State(ranks="8-15"))
    agent.member.round()
    agent.passes(3)
    assert [post.ranks for post in agent.line.posts] == ["", "8-15"]


def test_closed_incident_is_reported_until_it_is_acknowledged() -> None:
    agent = Agent()
    over = agent.closes(agent.opens())
    agent.passes(12)
    assert [incident.status for incident in agent.line.posts[-1].incidents] == ["resolved"]
    agent.line.reply = Reply(ledger=[msgspec.structs.replace(over, aliases=[f"n1-1 {over.id}"])])
    agent.passes(24)
    assert agent.line.posts[-1].incidents == []
    assert [item.id for item in agent.line.posts[-1].ledger] == [over.id]


def test_ruling_of_the_run_expires() -> None:
    agent = Agent()
    agent.line.reply = Reply(ruling=Ruling("stalled", 30.0, "behind", 1))
    agent.member.update(State(quiet=29.0, threshold=30.0))
    agent.member.round()
    assert agent.member.ruling == Ruling("stalled", 30.0, "behind", 1)
    agent.line.reply = None
    agent.passes(4)
    assert agent.member.ruling is None


def test_end_of_the_run_is_posted_at_once() -> None:
    agent = Agent()
    agent.member.round()
    agent.clock.now += 1.0
    agent.member.end(Ending("finished", None))
    agent.member.round()
    assert agent.line.posts[-1].ending == Ending("finished", None)
    assert agent.line.posts[-1].ended_age == 0.0


def test_lost_report_of_the_end_is_posted_again() -> None:
    agent = Agent()
    agent.member.round()
    answer, agent.line.reply = agent.line.reply, None
    agent.clock.now += 1.0
    agent.member.end(Ending("finished", None))
    agent.member.round()
    agent.line.reply = answer
    agent.passes(2)
    assert [post.ending is not None for post in agent.line.posts] == [False, True, True]


def test_stacks_are_reported_once_for_all_incidents() -> None:
    agent = Agent()
    found = incident(agent.clock.wall())
    found.stacks = stacks("train.py:11 in score", 1)
    agent.member(found)
    agent.member.round()
    assert agent.line.posts[-1].incidents[0].stacks is None


def test_agent_and_its_own_coordinator_send_each_incident_once() -> None:
    agent = Agent()
    coordinator = Coordinator([agent.chat], name="n1-1", clock=agent.clock, wall=agent.clock.wall)
    agent.line.post = coordinator.take  # type: ignore[method-assign]
    agent.member._step = coordinator.step
    agent.closes(agent.opens())
    found = agent.opens(2)
    agent.passes(6)
    agent.closes(found)
    agent.passes(6)
    assert agent.chat.stages == [(found.id, "open"), (found.id, "resolved")]
    assert coordinator.is_settled


def test_own_coordinator_is_left_when_another_accepts_the_reports() -> None:
    agent = Agent()
    agent.line.reply = Reply(coordinator="n1-1")
    agent.passes(12)
    assert not agent.left
    agent.line.reply = Reply(coordinator="n0-1")
    agent.passes(12)
    assert agent.left


def test_incident_with_an_open_warning_stays_in_the_ledger() -> None:
    """Without the record, a new coordinator would report the warning again."""
    agent = Agent()
    open_one = agent.opens()
    over = msgspec.structs.replace(
        open_one, status="resolved", resolved_at=agent.clock.wall(), aliases=[f"n1-1 {open_one.id}"]
    )
    agent.line.reply = Reply(ledger=[over])
    agent.passes(12)
    agent.line.reply = Reply()
    agent.passes(1200)
    assert agent.line.posts[-1].ledger == [over]
    agent.closes(open_one)
    agent.passes(1300)
    assert [(item.id, item.aliases) for item in agent.line.posts[-1].ledger] == [(over.id, [])]


def test_coordinator_stays_until_other_hosts_have_the_ledger() -> None:
    line, asked = Line(), iter([False, False, True])
    member = Member(
        IDENTITY,
        "sft-8123.0",
        line,
        [],
        agent="n1-1",
        host="n1",
        host_id="id",
        is_known=lambda: next(asked),
    )
    member.end(Ending("failed", None))
    member.close()
    assert next(asked, None) is None


@pytest.mark.parametrize("waits", [True, False])
def test_coordinator_stays_while_a_message_waits_for_other_hosts(waits: bool) -> None:
    settled = iter([*[False] * 8, True])
    member = Member(
        IDENTITY,
        "sft-8123.0",
        Line(),
        [],
        agent="n1-1",
        host="n1",
        host_id="id",
        is_settled=lambda: next(settled),
        is_waiting=lambda: waits,
    )
    member.end(Ending("failed", None))
    member.close(timeout=0.01)
    assert (next(settled, None) is None) == waits


def test_steps_of_ranks_are_reported_until_they_are_acknowledged() -> None:
    agent = Agent()
    agent.line.behind = 1
    agent.member.paces.take(1, 7, RankStep(0.5, 1.0))
    agent.member.round()
    agent.passes(20)
    assert [[pace.steps for pace in post.paces] for post in agent.line.posts] == [[[7]], [[7]], []]


def test_incident_sent_separately_is_handed_to_the_next_coordinator() -> None:
    agent, record = Agent(), list[Incident]()
    coordinator = Coordinator([agent.chat, record.append], clock=agent.clock, wall=agent.clock.wall)
    agent.member._leave, agent.member._shown = coordinator.leave, coordinator.note_shown
    agent.line.reply = None
    found = agent.opens()
    found.evidence.append("a line")
    agent.passes(ALONE_SECONDS + 12)
    (alone,) = agent.line.posts[-1].ledger
    agent.line.reply = Reply(coordinator="n0-1", ledger=[alone], escalates=[alone.id])
    agent.passes(24)
    assert (agent.chat.released, agent.chat.adopted, record) == ([alone.id], [], [])
    at = agent.clock.wall()
    over = {"status": "resolved", "resolution": "recovered", "resolved_at": at, "updated_at": at}
    agent.line.reply.ledger = [msgspec.structs.replace(alone, **over)]
    agent.passes(12)
    assert [(item.id, item.status) for item in agent.chat.adopted] == [(alone.id, "resolved")]
    assert [(item.status, item.evidence) for item in record] == [("resolved", ["a line"])]


def test_host_with_a_duplicate_name_uses_the_coordinators_name_for_it() -> None:
    agent, names = Agent(), list[str]()
    agent.member._renamed = names.append
    agent.line.reply = Reply(names={"id": "n1-10.0.0.9", "x": "n1-10.0.0.7"})
    agent.passes(24)
    assert [post.host for post in agent.line.posts] == ["n1", "n1-10.0.0.9", "n1-10.0.0.9"]
    assert names == ["n1-10.0.0.9"]
    assert agent.notices == [
        "another host of the run is also named n1; this host is called n1-10.0.0.9 from now on"
    ]
    agent.line.reply = Reply()  # of a coordinator that does not know of the other one
    agent.passes(12)
    assert agent.line.posts[-1].host == "n1-10.0.0.9"
