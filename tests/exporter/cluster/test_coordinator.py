"""The reports of several hosts about one run become one incident, one message and one blamed rank."""

from __future__ import annotations

import tracemalloc
from itertools import permutations

import msgspec
import pytest
from clustercases import Chat, Clock, Host, incident, stacks

from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.merging import GATHER_SECONDS, RunEpisodes, View, in_brief, in_run
from stallwatch_exporter.cluster.wire import AgentReport
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.stacks.quiet_periods import Ruling
from stallwatch_rules.stacks.records import Collectives, StackGroup, StallStacks, Why


class Run:
    """Three hosts with a rank each, and the coordinator that merges their reports."""

    def __init__(self, **ahead: float) -> None:
        self.clock = Clock()
        self.chat = Chat()
        self.hosts = {
            name: Host(name, at, self.clock, ahead=ahead.get(name, 0.0))
            for at, name in enumerate(("n0", "n1", "n2"))
        }
        self.notices: list[str] = []
        self.counts: list[tuple[int | None, ...]] = []
        self.coordinator = self.another()

    def another(self, chat: Chat | None = None) -> Coordinator:
        return Coordinator(
            [chat or self.chat],
            hosts=lambda *counts: self.counts.append(counts),
            name="n0-1",
            clock=self.clock,
            wall=self.clock.wall,
            notice=self.notices.append,
        )

    def post(self, *names: str) -> None:
        for name in names or self.hosts:
            self.coordinator.take(self.hosts[name].report())
        self.coordinator.step()

    def passes(self, seconds: float, *names: str) -> None:
        """Advance the clock; these hosts post every second."""
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            for host in self.hosts.values():
                host.quiet += 1.0
            if names:
                self.post(*names)
            self.coordinator.step()

    def hangs(self, guilty: str = "n1") -> None:
        """Make all hosts quiet: the guilty host is in its own code, the others wait for it."""
        self.passes(20, *self.hosts)
        for host in self.hosts.values():
            mine = host.name == guilty
            look = (
                stacks("train.py:11 in score", host.rank)
                if mine
                else stacks("train.py:30 in step", host.rank, kind="collective")
            )
            host.facts = {"stacks": look, "stacks_age": 1.0}


def test_hang_reported_by_one_host_is_located_with_stacks_of_all_hosts() -> None:
    run = Run()
    run.hangs()
    run.post()
    run.clock.now += 0.5
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post("n1")
    assert not run.chat.got, "the others have not answered yet"
    run.clock.now += 1.0
    run.post()
    assert run.chat.stages == [("sft-8123.0/stall/silent-hang/1", "open")]
    sent = run.chat.got[0]
    assert (sent.rank, sent.host) == (1, "n1")
    assert sent.stacks is not None
    assert sorted(sent.stacks.hosts) == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("reporting", "folder"),
    [(["n0"], ("/runs/n0", "n0")), (["n0", "n1"], ("/runs/n1", "n1")), (["n2"], ("/runs/n2", "n2"))],
)
def test_process_file_and_folder_are_of_the_host_at_fault(
    reporting: list[str], folder: tuple[str, str]
) -> None:
    run = Run()
    run.hangs()
    for host in run.hosts.values():
        look = msgspec.structs.replace(
            host.facts["stacks"], file="a.txt", folder=f"/runs/{host.name}", pids={host.rank: 70 + host.rank}
        )
        host.facts["stacks"] = look
    for name in reporting:
        stall = incident(run.hosts[name].wall(), rule="silent-hang-no-error", folder=f"/runs/{name}")
        run.hosts[name].has(stall)
    run.post()
    run.passes(GATHER_SECONDS, *run.hosts)
    sent = run.chat.got[0]
    assert (sent.rank, sent.host, sent.folder, sent.folder_host) == (1, "n1", *folder)
    assert sent.stacks is not None
    assert (sent.stacks.pids, sent.stacks.files) == ({1: 71}, {"1": "/runs/n1/a.txt"})


def test_only_agent_of_a_run_sends_its_own_stacks() -> None:
    """The other hosts refuse its reports, or cannot be reached, so it is its own coordinator."""
    run = Run()
    alone = run.hosts["n1"]
    run.passes(20, "n1")
    look = msgspec.structs.replace(stacks("train.py:11 in score", 1), odd=[1], why="elsewhere")
    alone.facts = {"stacks": look, "stacks_age": 1.0}
    alone.has(incident(alone.wall(), rule="silent-hang-no-error"))
    run.passes(GATHER_SECONDS + 1, "n1")
    assert (run.chat.got[0].stacks, run.chat.got[0].rank, run.chat.got[0].host) == (look, 1, "n1")


@pytest.mark.parametrize("order", list(permutations(("n0", "n1", "n2"))))
def test_same_hang_reported_by_all_hosts_is_one_incident(order: tuple[str, ...]) -> None:
    run = Run(n0=20.0, n2=-30.0)
    run.hangs()
    for name in order:
        run.hosts[name].has(incident(run.hosts[name].wall()))
        run.post(name)
        run.clock.now += 1.0
    run.passes(5, *order)
    assert len({item.id for item in run.chat.got}) == 1
    assert run.chat.stages == [("sft-8123.0/stall/silent-hang/1", "open")]
    assert (run.chat.got[-1].rank, run.chat.got[-1].host) == (1, "n1")
    assert run.chat.got[-1].hosts == ["n0", "n1", "n2"]


def test_incident_closes_once_when_all_hosts_continue() -> None:
    run = Run()
    run.hangs()
    for host in run.hosts.values():
        host.has(incident(host.wall()))
    run.post()
    run.passes(3, *run.hosts)
    for host in run.hosts.values():
        at = host.wall()
        over = next(iter(host.incidents.values()))
        host.has(
            msgspec.structs.replace(
                over, status="resolved", resolution="recovered", resolved_at=at, updated_at=at
            )
        )
        run.post(host.name)
        run.clock.now += 1.0
    run.passes(5, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open", "resolved"]


def test_stall_lasts_from_the_earliest_beginning_that_an_agent_reported() -> None:
    """The agent of n0 was stopped and continued, so it noticed the stall late."""
    run = Run()
    run.hangs()
    began = run.clock.wall() - 20
    late = {"n0": 15.0, "n1": 0.0, "n2": 0.25}
    run.passes(20, *run.hosts)
    for host in run.hosts.values():
        since = began + late[host.name]
        facts = {"stalled_since": since, "stalled_seconds": host.wall() - since}
        host.has(incident(host.wall(), rule="silent-hang-no-error", **facts))
        run.clock.now += 0.5
    run.post()
    run.passes(3, *run.hosts)
    at = run.clock.wall()
    for host in run.hosts.values():
        over = next(iter(host.incidents.values()))
        facts = {"resolution": "recovered", "resolved_at": at, "updated_at": at}
        lasted = at - began - late[host.name]
        host.has(msgspec.structs.replace(over, status="resolved", stalled_seconds=lasted, **facts))
    run.post()
    opened, closed = run.chat.got[0], run.chat.got[-1]
    assert (closed.stage, closed.stalled_since, closed.stalled_seconds) == ("resolved", began, at - began)
    assert opened.stalled_since == began


@pytest.mark.parametrize("late", [-5.0, 5.0])
def test_closing_message_names_the_host_of_the_opening_message(late: float) -> None:
    """A problem of all hosts ends the run on all of them. Another host ends first."""
    run = Run()
    run.passes(2, *run.hosts)
    facts = {"kind": "finding", "rule": "gloo-connect-full-mesh-failed"}
    run.hosts["n1"].has(incident(run.clock.wall(), **facts))
    run.post()
    run.passes(GATHER_SECONDS, *run.hosts)
    assert (run.chat.got[-1].host, run.chat.got[-1].stage) == ("n1", "open")
    run.hosts["n0"].has(incident(run.clock.wall() + late, **facts))
    run.post()
    ending = Ending("failed", 1)
    for name in ("n0", "n1", "n2"):
        host = run.hosts[name]
        found = next(iter(host.incidents.values()), incident(host.wall(), **facts))
        at = run.clock.wall()
        over = {"status": "resolved", "resolution": "run-failed", "resolved_at": at, "updated_at": at}
        host.has(msgspec.structs.replace(found, kind="ended", ending=ending, **over))
        host.facts = {"ending": ending}
        run.post(name)
    run.passes(5, *run.hosts)
    assert (run.chat.got[-1].host, run.chat.got[-1].rank, run.chat.got[-1].stage) == ("n1", 1, "resolved")


def test_silent_host_delays_the_message_only_briefly() -> None:
    run = Run()
    run.hangs()
    run.post()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post("n1")
    run.passes(GATHER_SECONDS, "n1")
    assert [stage for _, stage in run.chat.stages] == ["open"]


def test_second_stall_is_a_new_incident_with_a_new_id() -> None:
    run = Run()
    for number, name in ((1, "n1"), (1, "n2")):
        host = run.hosts[name]
        host.has(incident(host.wall(), number, step=number))
        run.passes(4, *run.hosts)
        at = host.wall()
        over = next(iter(host.incidents.values()))
        host.has(
            msgspec.structs.replace(
                over, status="resolved", resolution="recovered", resolved_at=at, updated_at=at
            )
        )
        run.passes(200, *run.hosts)
    ids = list(dict.fromkeys(item.id for item in run.chat.got))
    assert ids == ["sft-8123.0/stall/silent-hang/1", "sft-8123.0/stall/silent-hang/2"]


def test_crash_that_spreads_to_other_hosts_is_one_incident() -> None:
    run = Run()
    for name, after, rule in (("n1", 0, "cuda-oom"), ("n0", 20, "peer-gone"), ("n2", 40, "peer-gone")):
        run.passes(after, *run.hosts)
        host, at = run.hosts[name], run.hosts[name].wall()
        ended = incident(
            at, kind="ended", rule=rule, status="resolved", resolution="run-failed", resolved_at=at
        )
        host.has(ended)
        host.facts["ending"] = Ending("failed", None)
        run.post(name)
    run.passes(10, *run.hosts)
    assert run.chat.stages == [("sft-8123.0/ended/cuda-oom/1", "resolved")]
    assert run.chat.got[0].host == "n1"


def test_new_coordinator_does_not_resend_sent_incidents() -> None:
    run = Run()
    run.hangs()
    for host in run.hosts.values():
        host.has(incident(host.wall()))
    run.post()
    run.passes(3, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n0"].report()).ledger
    assert [item.id for item in ledger] == ["sft-8123.0/stall/silent-hang/1"]
    other = Chat()
    run.coordinator = run.another(other)
    run.clock.now += 5.0
    for host in run.hosts.values():
        host.facts["ledger"] = ledger
    run.post()
    run.passes(5, *run.hosts)
    assert [item.id for item in other.adopted] == ["sft-8123.0/stall/silent-hang/1"]
    assert {(item.id, item.opened_at) for item in other.got} <= {
        (item.id, item.opened_at) for item in run.chat.got
    }


def test_new_coordinator_sends_incidents_that_were_not_sent() -> None:
    run = Run()
    run.chat.holds = True
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post()
    run.passes(5, *run.hosts)
    assert run.chat.stages
    assert run.coordinator.take(run.hosts["n0"].report()).ledger == []


def test_incidents_sent_by_separate_agents_merge_and_close_under_both_ids() -> None:
    run = Run()
    known = []
    for name in ("n0", "n1"):
        host = run.hosts[name]
        mine = incident(host.wall(), 1 if name == "n0" else 2)
        host.has(mine)
        alone = msgspec.structs.replace(mine, aliases=[f"{host.agent} {mine.id}"])
        known.append(alone)
        host.facts["ledger"] = [alone]
        run.clock.now += 1.0
    run.post()
    run.passes(4, *run.hosts)
    for name in ("n0", "n1"):
        host, at = run.hosts[name], run.hosts[name].wall()
        over = next(iter(host.incidents.values()))
        host.has(
            msgspec.structs.replace(
                over, status="resolved", resolution="recovered", resolved_at=at, updated_at=at
            )
        )
    run.passes(4, *run.hosts)
    closed = {item.id for item in run.chat.got if item.status == "resolved"}
    assert closed == {item.id for item in known}


def test_incident_has_one_run_name_if_hosts_use_different_names() -> None:
    run = Run()
    run.hangs()
    run.post()
    at = run.hosts["n0"].wall()
    run.hosts["n0"].has(incident(at, run="launch-1"))
    run.hosts["n1"].has(guilty := incident(at, run="launch-2"))
    run.post()
    run.passes(4, *run.hosts)
    over = msgspec.structs.replace(guilty, status="resolved", resolution="recovered", resolved_at=at + 5)
    run.hosts["n0"].incidents.clear()
    run.hosts["n1"].has(msgspec.structs.replace(over, updated_at=at + 5))
    run.passes(4, *run.hosts)
    assert run.chat.got[0].rank == 1
    assert {(item.id, item.run) for item in run.chat.got} == {("launch-1/stall/silent-hang/1", "launch-1")}


@pytest.mark.parametrize(("goes_on", "seconds"), [(True, 60), (False, 900)])
def test_lost_host_leaves_no_incident_open(goes_on: bool, seconds: float) -> None:
    run = Run()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post()
    run.passes(3, *run.hosts)
    run.hosts["n0"].facts["quiet"] = run.hosts["n2"].facts["quiet"] = 0.0 if goes_on else 40.0
    run.passes(seconds - 5, "n0", "n2")
    assert run.chat.got[-1].status == "open"
    run.passes(10, "n0", "n2")
    assert run.chat.got[-1].status == "resolved"
    assert run.chat.got[-1].resolution == "unknown"


def test_notice_names_two_agents_that_report_the_same_rank() -> None:
    run = Run()
    run.post()
    twin = Host("n9", 1, run.clock)
    run.coordinator.take(twin.report(started_age=1.0))
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(5, *run.hosts)
    assert run.notices == [
        "several agents (on n1 and n9) report rank 1; only the agent that started last counts"
    ]


def named_alike(run: Run) -> Host:
    """The third host has the name of the first."""
    twin = run.hosts["n2"]
    twin.facts = {"host": "n0", "host_id": "other", "address": "10.0.0.9:1"}
    return twin


def test_hosts_with_the_same_name_get_distinct_names() -> None:
    run = Run()
    named_alike(run)
    run.post("n0", "n1")
    before = run.coordinator.take(run.hosts["n1"].report()).hosts
    run.hosts["n1"].facts = {"hosts": before}
    run.passes(2, *run.hosts)
    reply = run.coordinator.take(run.hosts["n1"].report())
    assert reply.hosts == {"n0": "0", "n1": "1", "n0-10.0.0.9": "2"}
    assert reply.names == {"other": "n0-10.0.0.9"}
    assert run.notices == [
        "two hosts of the run have the name n0; one of them is called n0-10.0.0.9 from now on"
    ]
    assert run.counts[-1] == (3, 3, 0)
    run.coordinator = run.another()  # that gets the report of the other one first
    for host in (run.hosts["n2"], run.hosts["n1"]):
        host.facts["hosts"] = reply.hosts
    run.hosts["n2"].facts["host"] = reply.names["other"]
    run.passes(20, "n2", "n1", "n0")
    again = run.coordinator.take(run.hosts["n1"].report())
    assert (again.hosts, again.names, len(run.notices)) == (reply.hosts, {}, 1)


@pytest.mark.parametrize("guilty", ["n0", "n2"])
def test_blame_distinguishes_hosts_with_the_same_name(guilty: str) -> None:
    run = Run()
    named_alike(run)
    run.hangs(guilty)
    look = run.hosts["n2"].facts
    named_alike(run).facts |= look
    for host in run.hosts.values():
        host.has(incident(host.wall()))
    run.post()
    run.passes(4, *run.hosts)
    sent = run.chat.got[-1]
    assert (sent.rank, sent.host) == ((0, "n0") if guilty == "n0" else (2, "n0-10.0.0.9"))
    assert sent.hosts == ["n0", "n0-10.0.0.9", "n1"]


def test_hosts_with_the_same_name_and_address_stay_separate() -> None:
    run = Run()
    for name in ("n0", "n1", "n2"):
        run.hosts[name].facts = {"host": "box", "host_id": f"id-{name}", "address": "10.0.0.9:1"}
    run.post()
    run.clock.now += 1.0
    reply = run.coordinator.take(run.hosts["n1"].report())
    assert sorted(reply.hosts) == ["box", "box-10.0.0.9", "box-id-n2"]


def test_coordinator_without_its_own_agent_sends_nothing_more() -> None:
    run = Run()
    run.hangs()
    for host in run.hosts.values():
        host.has(incident(host.wall()))
    run.post()
    run.passes(3, *run.hosts)
    run.coordinator.leave()
    run.passes(120)
    assert [stage for _, stage in run.chat.stages] == ["open"]
    assert run.counts[-1] == (None, None, None)


def test_counts_are_of_hosts_not_of_agents() -> None:
    run = Run()
    run.post()
    second = Host("n1", 3, run.clock, expected=6)
    run.coordinator.take(second.report(agent="n1-2"))
    run.coordinator.step()
    assert run.counts[-1] == (3, 3, 0)
    run.passes(40, "n0")
    assert run.counts[-1] == (3, 1, 2)


def test_late_reports_are_ignored() -> None:
    run = Run()
    host = run.hosts["n1"]
    late = host.report()
    host.has(incident(host.wall()))
    run.post()
    run.coordinator.take(late)
    run.passes(4, "n0", "n2")
    assert run.chat.stages == [("sft-8123.0/stall/silent-hang/1", "open")]


@pytest.mark.parametrize(("hosts", "beat"), [(3, 1.0), (96, 2.0), (1024, 5.0)])
def test_post_interval_grows_with_the_number_of_hosts(hosts: int, beat: float) -> None:
    run = Run()
    host = run.hosts["n1"]
    assert run.coordinator.take(host.report()).beat == 1.0
    for at in range(2 * hosts):  # two agents on each host
        run.coordinator.take(Host(f"m{at // 2}", at, run.clock).report(agent=f"a{at}"))
    host.quiet = 11.0
    run.clock.now += 1.0
    run.coordinator.take(host.report())
    assert run.coordinator.take(host.report()).beat == pytest.approx(beat, abs=0.1)


def test_values_repeated_by_all_agents_are_stored_once() -> None:
    run = Run()
    hosts = [Host(f"m{at}", at, run.clock, expected=64) for at in range(64)]
    for _ in range(2):
        run.clock.now += 2.0
        replies = [run.coordinator.take(host.report()) for host in hosts]
        for host, reply in zip(hosts, replies, strict=True):
            host.facts = {"hosts": dict(reply.hosts), "ledger": [incident(run.clock.wall())]}
    tracemalloc.start()
    try:
        for host in hosts:
            run.coordinator.take(msgspec.json.decode(msgspec.json.encode(host.report()), type=AgentReport))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64 * 2500


def test_quiet_run_of_a_thousand_agents_gets_one_ruling() -> None:
    run = Run()
    look = stacks("train.py:30 in step", 0, kind="collective")
    waits = {"quiet": 25.0, "ruling": Ruling("waiting", 180.0, "others"), "stacks_age": 1.0, "world": 1024}
    hosts = [Host(f"m{at // 8}", at, run.clock, expected=1024) for at in range(1024)]
    for host in hosts:
        group = msgspec.structs.replace(look.groups[0], ranks=[host.rank])
        host.facts = {
            **waits,
            "agent": f"a{host.rank}",
            "stacks": msgspec.structs.replace(look, groups=[group]),
        }
        run.coordinator.take(host.report())
    run.clock.now += 1.0
    ruling = run.coordinator.take(hosts[0].report()).ruling
    assert ruling is not None
    assert ruling.status == "stalled"


def ends(run: Run, *names: str, **about: object) -> None:
    """Resolve all incidents that these hosts report."""
    for name in names:
        host = run.hosts[name]
        facts = {"status": "resolved", "resolution": "recovered", "resolved_at": host.wall(), **about}
        for opened in list(host.incidents.values()):
            host.has(msgspec.structs.replace(opened, updated_at=host.wall(), **facts))


def test_crash_after_a_recovered_stall_is_a_new_incident() -> None:
    run = Run()
    host = run.hosts["n1"]
    host.has(incident(host.wall()))
    run.passes(4, *run.hosts)
    ends(run, "n1")
    run.passes(60, *run.hosts)
    at = host.wall()
    ended = incident(
        at, kind="ended", rule="cuda-oom", status="resolved", resolution="run-failed", resolved_at=at
    )
    host.has(ended)
    host.facts["ending"] = Ending("failed", None)
    run.passes(6, *run.hosts)
    assert run.chat.stages[2:] == [("sft-8123.0/ended/cuda-oom/1", "resolved")]


def test_abandoned_coordinator_closes_no_incident() -> None:
    run, chat = Run(), Chat()
    run.coordinator = stepped_in = run.another(chat)
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    assert [stage for _, stage in chat.stages] == ["open"]
    run.coordinator = run.another()
    stepped_in.leave()
    assert not chat.released, "perhaps nobody else escalates it"
    for _ in range(2):
        stepped_in.leave([], ["sft-8123.0/stall/silent-hang/1"])
    assert chat.released == ["sft-8123.0/stall/silent-hang/1"]
    for _ in range(90):
        run.passes(1, *run.hosts)
        stepped_in.step()
    assert [stage for _, stage in chat.stages] == ["open"]


def test_coordinator_that_merges_again_starts_without_old_state() -> None:
    """Incidents from its first time may be closed, so a new report is not added to them."""
    run = Run()
    host = run.hosts["n1"]
    host.has(incident(host.wall()))
    run.passes(4, *run.hosts)
    first, run.coordinator = run.coordinator, run.another(Chat())
    first.leave()
    ends(run, "n1")
    run.passes(2, *run.hosts)
    host.incidents.clear()
    run.passes(3600, "n0")
    run.coordinator = first
    host.has(incident(host.wall(), 2, step=4000))
    run.passes(4, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open", "open"]


def test_paused_coordinator_does_not_drop_agents() -> None:
    run = Run()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n0"].report()).ledger
    run.clock.now += 90.0
    run.hosts["n0"].facts["ledger"] = ledger
    run.post("n0")
    run.passes(3, *run.hosts)
    assert run.chat.stages == [("sft-8123.0/stall/silent-hang/1", "open")]


def test_incident_closed_by_a_separate_host_stays_open_for_the_others() -> None:
    run = Run()
    for name, number in (("n0", 1), ("n1", 1), ("n2", 2)):
        run.hosts[name].has(incident(run.hosts[name].wall(), number))
    run.passes(4, *run.hosts)
    run.passes(5, "n0", "n1")
    cut_off = run.hosts["n2"]
    ends(run, "n2")
    alone = next(iter(cut_off.incidents.values()))
    earlier = alone.opened_at - 1.0
    cut_off.facts["ledger"] = [
        msgspec.structs.replace(alone, aliases=[f"{cut_off.agent} {alone.id}"], opened_at=earlier)
    ]
    run.passes(5, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open"]
    ends(run, "n0", "n1")
    run.passes(5, *run.hosts)
    assert ("sft-8123.0/stall/silent-hang/1", "resolved") in run.chat.stages


@pytest.mark.parametrize("later", [-5.0, 5.0])
def test_incident_opened_by_a_separate_host_closes_under_its_sent_id(later: float) -> None:
    run = Run()
    for name, number in (("n0", 1), ("n2", 2)):
        run.hosts[name].has(incident(run.hosts[name].wall(), number))
    run.passes(4, *run.hosts)
    opened, cut_off = run.chat.got[0].opened_at, run.hosts["n2"]
    alone = next(iter(cut_off.incidents.values()))
    known = msgspec.structs.replace(alone, aliases=[f"{cut_off.agent} {alone.id}"], opened_at=opened + later)
    cut_off.facts["ledger"] = [known]
    run.passes(4, *run.hosts)
    ends(run, "n0", "n2")
    run.passes(4, *run.hosts)
    closed = {(item.id, item.opened_at) for item in run.chat.got if item.status == "resolved"}
    assert closed == {("sft-8123.0/stall/silent-hang/1", opened), (known.id, known.opened_at)}


def test_host_with_a_restarted_agent_is_not_silent() -> None:
    run = Run()
    run.hangs()
    run.post()
    anew = Host("n1", 1, run.clock)
    anew.quiet = run.hosts["n1"].quiet
    anew.facts = {**run.hosts["n1"].facts, "agent": "n1-2", "started_age": 1.0}
    run.hosts["n1"] = anew
    run.passes(20, *run.hosts)
    run.hosts["n2"].has(incident(run.hosts["n2"].wall()))
    run.passes(4, *run.hosts)
    sent = run.chat.got[-1].stacks
    assert sent is not None and sent.silent == []


def test_failing_sink_does_not_affect_other_sinks() -> None:
    def fails(_: object) -> None:
        raise OSError("no space left")

    run = Run()
    run.coordinator = Coordinator(
        [fails, run.chat], name="n0-1", clock=run.clock, wall=run.clock.wall, notice=run.notices.append
    )
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open"]
    assert run.notices == ["reporting an incident failed (OSError: no space left); the run continues"]


def test_unchanged_stack_snapshots_are_reported_once_a_minute() -> None:
    run = Run()
    run.hangs()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    sent = len(run.chat.got)
    for second in range(50):
        for host in run.hosts.values():
            look = host.facts["stacks"]
            host.facts["stacks"] = msgspec.structs.replace(look, time=float(second))
        run.passes(1, *run.hosts)
    assert len(run.chat.got) == sent
    guilty, other = run.hosts["n1"], run.hosts["n2"]
    guilty.facts["stacks"] = stacks("train.py:30 in step", guilty.rank, kind="collective")
    other.facts["stacks"] = stacks("train.py:11 in score", other.rank)
    run.passes(1, *run.hosts)
    assert len(run.chat.got) == sent + 1


@pytest.mark.parametrize("anew", [False, True])
def test_warning_that_outlives_its_incident_opens_no_second_one(anew: bool) -> None:
    run = Run()
    host = run.hosts["n1"]
    host.has(incident(host.wall(), kind="finding", rule="loss-spike", severity="warning"))
    run.passes(4, *run.hosts)
    stall = incident(host.wall())
    host.has(stall)
    run.passes(4, *run.hosts)
    over = {"status": "resolved", "resolution": "recovered", "resolved_at": host.wall()}
    host.has(msgspec.structs.replace(stall, updated_at=host.wall(), **over))
    run.passes(4, *run.hosts)
    del host.incidents[stall.id]
    ledger = run.coordinator.take(host.report()).ledger
    run.passes(700, *run.hosts)
    if anew:
        run.coordinator, host.facts["ledger"] = run.another(), ledger
    run.passes(20, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open", "worse", "resolved"]


def test_new_coordinator_closes_incidents_known_only_to_lost_hosts() -> None:
    run = Run()
    lost = run.hosts.pop("n0")
    lost.has(incident(lost.wall()))
    run.coordinator.take(lost.report())
    run.passes(4, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n1"].report()).ledger
    run.chat = Chat()
    run.coordinator = run.another()
    run.hosts["n1"].facts = {"ledger": ledger, "quiet": 0.0}
    run.passes(50, *run.hosts)
    assert not run.chat.got
    run.passes(100, *run.hosts)
    assert [(item.id, item.resolution) for item in run.chat.got] == [(ledger[0].id, "unknown")]
    assert run.chat.got[0].opened_at == ledger[0].opened_at


def test_new_coordinator_does_not_reuse_ids() -> None:
    """Hosts count separately: the first stall of one host may be the third stall of the run."""
    run = Run()
    for number in (1, 2):
        run.hosts["n1"].has(incident(run.hosts["n1"].wall(), number, step=40 * number))
        run.passes(4, *run.hosts)
        ends(run, "n1")
        run.passes(200, *run.hosts)
        run.hosts["n1"].incidents.clear()
    run.passes(3600, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n0"].report()).ledger
    run.coordinator = run.another()
    run.hosts["n0"].facts["ledger"] = ledger
    run.post()
    run.hosts["n2"].has(incident(run.hosts["n2"].wall(), 1, step=4000))
    run.passes(4, *run.hosts)
    assert [name.rpartition("/")[2] for name, stage in run.chat.stages if stage == "open"] == ["1", "2", "3"]


def crashes(run: Run, name: str, rule: str) -> None:
    """End the command of this host with a failure."""
    host = run.hosts[name]
    at = host.wall()
    ended = incident(at, kind="ended", rule=rule, status="resolved", resolution="run-failed", resolved_at=at)
    host.has(ended)
    host.facts["ending"] = Ending("failed", None)
    run.post(name)


def test_crash_that_spreads_after_the_first_host_left_is_one_incident() -> None:
    run = Run()
    run.passes(5, *run.hosts)
    crashes(run, "n0", "cuda-oom")
    run.passes(4, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n1"].report()).ledger
    del run.hosts["n0"]
    run.coordinator = run.another()
    run.hosts["n1"].facts["ledger"] = ledger
    run.passes(20, *run.hosts)
    for name in ("n2", "n1"):
        crashes(run, name, "peer-gone")
        run.passes(5, *run.hosts)
    assert run.chat.stages == [("sft-8123.0/ended/cuda-oom/1", "resolved")]


def test_host_that_reports_a_hang_after_a_takeover_joins_its_incident() -> None:
    run = Run()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    ledger = run.coordinator.take(run.hosts["n2"].report()).ledger
    run.coordinator = run.another()
    run.hosts["n2"].facts["ledger"] = ledger
    run.hosts["n2"].has(incident(run.hosts["n2"].wall()))
    run.post("n2")
    run.passes(1, *run.hosts)
    ends(run, "n1", "n2")
    run.passes(5, *run.hosts)
    assert [stage for _, stage in run.chat.stages] == ["open", "resolved"]


def test_leaving_coordinator_waits_until_other_hosts_have_the_ledger() -> None:
    run = Run()
    run.passes(5, *run.hosts)
    assert run.coordinator.is_known
    crashes(run, "n0", "cuda-oom")
    run.passes(4, "n0")
    assert run.coordinator.is_settled
    assert not run.coordinator.is_known
    run.post("n1")
    assert not run.coordinator.is_known
    run.hosts["n2"].facts["ending"] = Ending("failed", None)
    run.post("n2")
    assert not run.coordinator.is_known, "n1 would miss n2"
    run.passes(1, "n1")
    assert run.coordinator.is_known


def test_leaving_coordinator_does_not_wait_for_uninvolved_hosts() -> None:
    run = Run()
    host = run.hosts["n1"]
    host.has(incident(host.wall()))
    run.passes(4, *run.hosts)
    ends(run, "n1")
    run.passes(2, "n1")
    assert run.chat.stages[-1][1] == "resolved"
    run.passes(1, "n1")
    assert run.coordinator.is_known, "n2 has not posted since"
    run.hosts["n2"].has(incident(run.hosts["n2"].wall(), 2, step=90))
    run.passes(4, "n1", "n2")
    run.post("n2")
    assert not run.coordinator.is_known, "n1 may have a part in it"


def test_agent_that_returns_after_it_seemed_lost_gets_a_new_incident() -> None:
    run = Run()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post()
    run.passes(3, *run.hosts)
    run.hosts["n0"].facts["quiet"] = 0.0  # training continues, but the host's link is down
    run.passes(70, "n0", "n2")  # the link of n1 is down
    run.passes(5, *run.hosts)
    host, at = run.hosts["n1"], run.hosts["n1"].wall()
    over = next(iter(host.incidents.values()))
    host.has(
        msgspec.structs.replace(
            over, status="resolved", resolution="recovered", resolved_at=at, updated_at=at
        )
    )
    run.passes(5, *run.hosts)
    assert [(item[-1:], stage) for item, stage in run.chat.stages] == [
        ("1", "open"),
        ("1", "resolved"),
        ("2", "open"),
        ("2", "resolved"),
    ]


@pytest.mark.parametrize("who", [("n0", "n2"), ()])
def test_host_that_reconnects_during_a_hang_joins_the_same_incident(
    who: tuple[str, ...],
) -> None:
    run = Run()
    run.hangs()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    run.passes(300, *who)  # the other hosts are quiet, or the coordinator reaches no host
    run.passes(5, *run.hosts)
    ends(run, "n1")
    run.passes(5, *run.hosts)
    assert [(item[-1:], stage) for item, stage in run.chat.stages] == [("1", "open"), ("1", "resolved")]
    assert run.chat.got[-1].resolution == "recovered"


@pytest.mark.parametrize("who", [("n0", "n2"), ()])
@pytest.mark.parametrize("late", [1, 9])
def test_disconnected_host_can_be_the_last_to_report_that_the_run_continues(
    who: tuple[str, ...], late: int
) -> None:
    run = Run()
    run.hangs()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    run.passes(300, *who)
    for host in run.hosts.values():
        host.facts = {"quiet": 0.0}
    run.passes(late, "n0", "n2")
    assert [stage for _, stage in run.chat.stages] == ["open"]
    ends(run, "n1")
    run.passes(30, *run.hosts)
    assert [(item[-1:], stage) for item, stage in run.chat.stages] == [("1", "open"), ("1", "resolved")]
    assert run.chat.got[-1].resolution == "recovered"


def test_less_certain_blame_does_not_replace_the_reported_one() -> None:
    run = Run()
    run.hangs()
    for host in run.hosts.values():
        counts = {"0": Collectives(59 if host.name == "n1" else 60)}
        host.facts["stacks"].groups[0].collectives = counts
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(3, *run.hosts)
    victim = run.hosts["n0"]
    run.passes(20, "n0", "n2")  # the posts of n1 are lost
    victim.has(incident(victim.wall()))
    run.passes(20, "n0", "n2")
    assert run.chat.got[-1].hosts == ["n0", "n1"]
    found = [item.stacks for item in run.chat.got if item.stacks is not None]
    assert {(item.why, *item.odd, item.confidence) for item in found} == {("elsewhere", 1, 0.97)}


def test_new_coordinator_blames_a_host_lost_with_the_old_one() -> None:
    run = Run()
    run.hangs("n0")
    reply = run.coordinator.take(run.hosts["n1"].report())
    assert reply.hosts == {"n0": "0", "n1": "1", "n2": "2"}
    run.coordinator = run.another()  # n0 lost its power, so n1 coordinates
    for name in ("n1", "n2"):
        run.hosts[name].facts |= {"hosts": reply.hosts, "ruling": Ruling("waiting", 180.0, "others")}
    run.passes(20, "n1", "n2")
    reply = run.coordinator.take(run.hosts["n1"].report())
    assert reply.ruling is not None
    assert (reply.ruling.status, reply.ruling.reason) == ("stalled", "behind")
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, "n1", "n2")
    stacks_sent = run.chat.got[-1].stacks
    assert stacks_sent is not None
    assert (stacks_sent.why, stacks_sent.odd, stacks_sent.silent) == ("unreachable", [0], ["n0"])


def test_new_coordinator_does_not_expect_hosts_that_ended_before() -> None:
    run = Run()
    run.hosts["n0"].facts["ending"] = Ending("finished", None)
    run.post()
    run.clock.now += 1.0
    reply = run.coordinator.take(run.hosts["n1"].report())
    assert sorted(reply.hosts) == ["n1", "n2"]


class Shared:
    """A database of all hosts: the coordinator that closed the incident has written it there."""

    is_shared = True

    def __init__(self) -> None:
        self.got: list[Incident] = []

    def __call__(self, incident: Incident) -> None:
        self.got.append(incident)


def test_incident_closed_by_another_coordinator_is_closed_without_a_message() -> None:
    run = Run()
    record: list[Incident] = []
    shared = Shared()
    run.coordinator = Coordinator(
        [run.chat, record.append, shared], name="n0-1", clock=run.clock, wall=run.clock.wall
    )
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.post()
    run.passes(3, *run.hosts)
    (known,) = run.coordinator.take(run.hosts["n1"].report()).ledger
    run.coordinator.leave([known])
    at = run.clock.wall()
    over = {"status": "resolved", "resolution": "recovered", "resolved_at": at, "updated_at": at}
    run.coordinator.leave([msgspec.structs.replace(known, **over, stalled_seconds=61.0)])
    assert [(item.status, item.resolution) for item in record[-1:]] == [("resolved", "recovered")]
    assert record[-1].stalled_seconds == 61.0
    assert [item.status for item in run.chat.adopted] == ["resolved"]
    assert {item.status for item in run.chat.got} == {item.status for item in shared.got} == {"open"}


def test_planned_escalations_are_reported_so_that_they_happen_once() -> None:
    run = Run()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall()))
    run.passes(4, *run.hosts)
    first, run.coordinator = run.coordinator, run.another(Chat())
    run.hosts["n1"].facts["ledger"] = first.take(run.hosts["n1"].report()).ledger
    run.post()
    reply = run.coordinator.take(run.hosts["n1"].report())
    first.leave(reply.ledger, reply.escalates)
    assert (reply.escalates, run.chat.released) == ([], [])
    run.coordinator._sinks[0].planned.add(reply.ledger[0].id)  # type: ignore[attr-defined]
    run.passes(1, *run.hosts)
    reply = run.coordinator.take(run.hosts["n1"].report())
    first.leave(reply.ledger, reply.escalates)
    assert run.chat.released == reply.escalates == [reply.ledger[0].id]


def test_incident_closed_during_an_absence_is_closed_with_all_known_facts() -> None:
    run = Run()
    record: list[Incident] = []
    run.coordinator = Coordinator(
        [run.chat, record.append], name="n0-1", clock=run.clock, wall=run.clock.wall
    )
    run.hangs()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall(), evidence=["a line"]))
    run.passes(4, *run.hosts)
    (known,) = run.coordinator.take(run.hosts["n1"].report()).ledger
    run.clock.now += 20.0
    at = run.clock.wall()
    over = {"status": "resolved", "resolution": "recovered", "resolved_at": at, "updated_at": at}
    run.hosts["n1"].incidents.clear()
    run.hosts["n1"].facts = {"ledger": [msgspec.structs.replace(known, **over)], "quiet": 0.0}
    run.post("n1")
    assert [item.status for item in record] == ["open", "resolved"]
    assert (record[-1].stacks, record[-1].evidence) == (record[0].stacks, ["a line"])
    assert record[0].stacks is not None
    assert [item.status for item in run.chat.adopted] == ["resolved"]


def test_rank_without_reports_is_attributed_to_the_silent_host() -> None:
    run = Run()
    run.hangs("n0")
    run.hosts["n0"].facts = {"ranks": ""}
    run.post()
    for name in ("n1", "n2"):
        run.hosts[name].has(incident(run.hosts[name].wall(), rule="silent-hang-no-error"))
    run.passes(20, "n1", "n2")
    sent = run.chat.got[-1]
    assert sent.stacks is not None
    assert (sent.stacks.why, sent.rank, sent.host) == ("unreachable", 0, "n0")


def waits(host: Host) -> None:
    look = stacks("train.py:30 in step", host.rank, kind="collective")
    host.facts = {"stacks": look, "stacks_age": 1.0}


def test_host_that_responds_without_stacks_is_not_blamed() -> None:
    run = Run()
    run.hangs("n0")
    run.hosts["n0"].facts, run.hosts["n2"].facts = {"ranks": "0"}, {"ranks": "2"}
    run.post()
    run.hosts["n1"].has(incident(run.hosts["n1"].wall(), rule="silent-hang-no-error"))
    run.passes(20, "n1", "n2")
    sent = run.chat.got[-1]
    assert sent.stacks is not None
    assert (sent.stacks.odd, sent.stacks.silent, sent.host) == ([0], ["n0"], "n0")


def test_silent_host_stays_blamed_if_all_ranks_wait_after_its_return() -> None:
    run = Run()
    run.hangs("n0")
    run.hosts["n1"].has(incident(run.hosts["n1"].wall(), rule="silent-hang-no-error"))
    run.passes(20, "n1", "n2")
    waits(run.hosts["n0"])
    run.passes(5, *run.hosts)
    run.hosts["n0"].has(incident(run.hosts["n0"].wall(), rule="silent-hang-no-error"))
    run.passes(70, *run.hosts)
    found = [
        (item.stacks.why, item.stacks.odd, item.host) for item in run.chat.got if item.stacks is not None
    ]
    # at the opening, the host was not yet known to be silent
    assert found[1:] == [("unreachable", [0], "n0")] * 2
    assert len(run.chat.got[-1].hosts) == 2


@pytest.mark.parametrize(
    ("later", "why", "blamed"),
    [
        ([0, 1], "unfinished", [1]),
        ([], "unfinished", [1]),
        ([1], "unfinished", [1]),
        ([2], "unfinished", [2]),
        ([1], "elsewhere", [1]),
        ([0, 1], "elsewhere", [0, 1]),
    ],
)
def test_returned_host_stays_blamed_while_its_ranks_wait(
    later: list[int], why: Why, blamed: list[int]
) -> None:
    hosts = {"n0": "0", "n1": "1", "n2": "2"}
    cut = StallStacks(0.0, 1.0, odd=[1], why="unreachable", silent=["n1"], hosts=hosts, confidence=0.85)
    back = StallStacks(0.0, 1.0, odd=later, why=why, hosts=hosts, confidence=0.92)
    got = reported(cut, back)
    assert [item.odd for item in got] == [[1], blamed]
    assert got[-1].why == (why if why == "elsewhere" or blamed == [2] else "unreachable")


@pytest.mark.parametrize(
    ("first", "why", "had_posted", "silent", "posts", "blamed"),
    [
        ([1], "elsewhere", "n0 n1 n2", [], "n0 n1", [1]),
        ([1], "elsewhere", "n0 n1", [], "n0 n1", [2]),
        ([1], "elsewhere", "n0 n1", ["n2"], "n0 n1", [2]),
        ([1], "elsewhere", "n0 n1", ["n2"], "n0", [1]),
        ([], "", "n0 n1 n2", [], "n0 n1", [2]),
        ([], "", "n0 n1", [], "n0", [2]),
    ],
)
def test_host_that_falls_silent_during_a_stall_does_not_replace_the_blame(
    first: list[int], why: Why, had_posted: str, silent: list[str], posts: str, blamed: list[int]
) -> None:
    hosts, now = ({name: name[1] for name in names.split()} for names in (had_posted, posts))
    whole = StallStacks(0.0, 1.0, odd=first, why=why, silent=silent, hosts=hosts, confidence=0.6)
    cut = StallStacks(0.0, 1.0, odd=[2], why="unreachable", silent=["n2"], hosts=now, confidence=0.85)
    found = reported(whole, cut)
    assert [item.odd for item in found] == [first, blamed]
    assert found[-1].silent == ["n2"]


def test_host_that_dies_after_a_stall_is_blamed_for_the_next_stall() -> None:
    hosts = {"n0": "0", "n1": "1", "n2": "2"}
    whole = StallStacks(0.0, 1.0, odd=[1], why="elsewhere", hosts=hosts, confidence=0.6)
    cut = StallStacks(0.0, 1.0, odd=[2], why="unreachable", silent=["n2"], confidence=0.85)
    assert [item.odd for item in reported(whole, cut, second_stall=True)][-1] == [2]


def test_new_coordinator_keeps_the_blame_if_it_cannot_reach_the_blamed_host() -> None:
    hosts = {"n0": "0", "n1": "1", "n2": "2"}
    groups = [
        StackGroup([0, 2], "collective", place="train.py:30 in step"),
        StackGroup([1], "code", place="train.py:11 in score"),
    ]
    whole = StallStacks(0.0, 1.0, groups, odd=[1], why="elsewhere", hosts=hosts, confidence=0.97)
    cut = StallStacks(0.0, 1.0, odd=[1, 2], why="unreachable", silent=["n1", "n2"], confidence=0.85)
    last = reported(whole, cut, taken_over=True)[-1]
    assert (last.odd, last.why, last.silent) == ([1], "elsewhere", ["n1", "n2"])
    assert [group.place for group in last.groups] == ["train.py:11 in score"]


@pytest.mark.parametrize(("had_posted", "blamed"), [("n0 n2", [1]), ("n0", [1, 2])])
def test_second_silent_host_shares_the_blame_only_without_earlier_stacks(
    had_posted: str, blamed: list[int]
) -> None:
    hosts = {name: name[1] for name in had_posted.split()}
    first = StallStacks(0.0, 1.0, odd=[1], why="unreachable", silent=["n1"], hosts=hosts, confidence=0.85)
    both = StallStacks(0.0, 1.0, odd=[1, 2], why="unreachable", silent=["n1", "n2"], confidence=0.85)
    assert [item.odd for item in reported(first, both)] == [[1], blamed]


def reported(
    first: StallStacks, later: StallStacks, *, second_stall: bool = False, taken_over: bool = False
) -> list[StallStacks]:
    """Return the stacks in the reports of one or two stalls: `first`, and `later` after a minute.

    If `taken_over` is true, another coordinator makes the later report.
    """
    clock, got = Clock(), list[Incident]()
    view = [View(first)]
    episodes = RunEpisodes(got.append, lambda: view[0], lambda: True, clock)
    stall = in_run(incident(clock.wall(), rule="silent-hang-no-error"), "a0", "n0", 0.0)
    finding = {"kind": "finding", "rule": "loss-nan", "id": "a0 sft/finding/loss-nan/1"}
    if second_stall:  # an open finding keeps the episode of both stalls open
        episodes.take(msgspec.structs.replace(stall, **finding))
    episodes.take(stall)
    episodes.flush()
    clock.now += 60.0
    at = stall.updated_at + 60.0
    if second_stall:
        over = {"status": "resolved", "resolution": "recovered", "resolved_at": at, "updated_at": at}
        episodes.take(msgspec.structs.replace(stall, **over))
        episodes.flush()
        clock.now += 60.0
        stall = msgspec.structs.replace(stall, id="a0 sft/stall/x/2", opened_at=at + 60.0)
    view[0] = View(later)
    if taken_over:
        episodes = RunEpisodes(got.append, lambda: view[0], lambda: True, clock)
        episodes.adopt(in_brief(got[-1]))
    episodes.take(msgspec.structs.replace(stall, updated_at=at + 60.0))
    episodes.flush()
    return [item.stacks for item in got if item.stacks is not None]
