"""Agents that share a real PostgreSQL: one agent merges, whatever happens to it or to the server."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from postgres import Postgres
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from waiting import wait_until

from stallwatch_alerts.storage.cluster import PostgresBacking, Timing, is_cluster_engine
from stallwatch_alerts.storage.engine import migrate, open_engine
from stallwatch_alerts.storage.retention import prune
from stallwatch_exporter.cluster.backing import Refused
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.wire import MOST_BYTES, VERSION, AgentReport, Reply
from stallwatch_exporter.incident import Incident

RUN = RunIdentity(key="5f0c5f0c5f0c5f0c", job="8123.0", origin="slurm")
PATIENT = Timing(
    answer=100, statement=100, acknowledgement=90, beat=0.05, step=0.05, absent=0.2, frozen=100, retry=0.1
)
#: Short timeouts, after which a frozen or lost merger is replaced.
QUICK = replace(PATIENT, answer=0.5, statement=0.5, acknowledgement=0.3, frozen=1.0)


class Recorder:
    """Merger that records the reports that it gets, with their times."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.taken: list[AgentReport] = []
        self.calls: list[float] = []
        self.steps = 0
        self.going = threading.Event()  #: `step` blocks while this event is cleared
        self.going.set()
        self.refuses = ""  #: agent whose reports the merger refuses
        self.breaks_at = ""

    def take(self, report: AgentReport) -> Reply:
        self.calls.append(time.monotonic())
        if report.agent == self.breaks_at:
            raise KeyError("a fault")
        if report.agent == self.refuses:
            return Reply(refused="rank 3 is on another host, too")
        self.taken.append(report)
        return Reply(coordinator=self.name, acknowledged={report.agent: report.number})

    def step(self) -> None:
        self.calls.append(time.monotonic())
        self.steps += 1
        self.going.wait(100)

    def numbers(self) -> dict[str, int]:
        return {report.agent: report.number for report in self.taken}


class Agents:
    """Agents of one run, each with a backing and a recorder; `lines` holds their notices."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lines: list[str] = []
        self.recorders: dict[str, Recorder] = {}
        self.backings: dict[str, PostgresBacking] = {}
        self._numbers: dict[str, int] = {}

    def join(self, agent: str, url: str = "", timing: Timing = PATIENT) -> Recorder:
        made = self.recorders[agent] = Recorder(agent)
        self.backings[agent] = PostgresBacking(
            url or self.url, RUN, made, agent=agent, notice=self.lines.append, timing=timing
        )
        return made

    def post(self, agent: str, **fields: Any) -> Reply | None:
        number = self._numbers[agent] = self._numbers.get(agent, 0) + 1
        return self.backings[agent].post(report(agent, number=number, **fields))

    def coordinator(self, agent: str) -> str:
        """Post until an agent has merged the report, and return that agent."""
        found: list[Reply] = []

        def merged() -> bool:
            reply = self.post(agent)
            if reply is None or reply.acknowledged.get(agent) != self._numbers[agent]:
                return False
            found.append(reply)
            return True

        wait_until(merged)
        return found[0].coordinator

    def close(self) -> None:
        for recorder in self.recorders.values():
            recorder.going.set()
        for backing in self.backings.values():
            backing.close()


class Proxy:
    """Proxy in front of the server that can be cut off or fall silent."""

    def __init__(self, server: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-proxy-"))
        self._server = str(server / ".s.PGSQL.5432")
        self._passing = threading.Event()
        self._passing.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Keep every connection open, and forward nothing."""
        self._passing.clear()

    def cut(self) -> None:
        """Close every connection, and accept no new one."""
        for end in [self._listener, *self._ends]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def close(self) -> None:
        self._passing.set()
        self.cut()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._ends += [client, server]
            for item, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(item, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                self._passing.wait(100)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return


def report(agent: str, *, number: int = 1, **fields: Any) -> AgentReport:
    known: dict[str, Any] = {"key": RUN.key, "host": agent, "host_id": agent, "run": "sft-8123.0"}
    return AgentReport(agent=agent, number=number, **{**known, **fields})


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = open_engine(url)
    migrate(made)
    yield made
    made.dispose()


@pytest.fixture
def agents(url: str) -> Iterator[Agents]:
    made = Agents(url)
    yield made
    made.close()


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    made = Proxy(postgres.folder)
    yield made
    made.close()


def insert(engine: Engine, agent: str, content: bytes, *, version: int = VERSION, age: float = 0.0) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO cluster_reports"
                " (agent, key, host_id, attempt, number, version, updated_at, report)"
                " VALUES (:agent, :key, 'h', 0, 1, :version, extract(epoch FROM now()) - :age, :content)"
            ),
            {"agent": agent, "key": RUN.key, "version": version, "age": age, "content": content},
        )


def kill_merger(engine: Engine) -> None:
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT pg_terminate_backend(session) FROM cluster_runs"))


def test_one_agent_merges_the_reports_of_all_agents(agents: Agents) -> None:
    for agent in ("n1", "n2", "n3"):
        agents.join(agent)
    assert {agents.coordinator(agent) for agent in ("n1", "n2", "n3") * 3} == {"n1"}
    wait_until(lambda: agents.recorders["n1"].steps > 3)
    assert agents.recorders["n1"].numbers() == {"n1": 3, "n2": 3, "n3": 3}
    assert not agents.recorders["n2"].calls and not agents.recorders["n3"].calls
    assert agents.lines == []


def test_concurrent_agents_agree_on_one_coordinator(agents: Agents) -> None:
    names = [f"n{number}" for number in range(8)]
    for agent in names:
        agents.join(agent)
    found: list[str] = []
    threads = [threading.Thread(target=lambda a=a: found.append(agents.coordinator(a))) for a in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [name for name, recorder in agents.recorders.items() if recorder.calls] == [found[0]]


def test_leaving_coordinator_is_replaced_and_its_ledger_is_kept(
    agents: Agents, stall: Callable[..., Incident]
) -> None:
    only_by_posts = replace(PATIENT, acknowledgement=20, absent=50, retry=100)
    agents.join("n1", timing=only_by_posts)
    second = agents.join("n2", timing=only_by_posts)
    entry = stall()
    assert agents.post("n1", ledger=[entry]) is not None
    assert agents.coordinator("n2") == "n1"
    agents.backings["n1"].close()
    assert agents.post("n1") is None
    reply = agents.post("n2")
    assert reply is not None and reply.coordinator == "n2"
    assert [each.ledger for each in second.taken if each.agent == "n1"] == [[entry]]


def test_coordinator_that_loses_its_session_is_replaced(
    agents: Agents, engine: Engine, url: str, proxy: Proxy, postgres: Postgres
) -> None:
    first = agents.join("n1", url.replace(str(postgres.folder), str(proxy.folder)))
    second = agents.join("n2")
    assert agents.coordinator("n1") == agents.coordinator("n2") == "n1"
    proxy.cut()
    wait_until(lambda: agents.coordinator("n2") == "n2")
    assert max(first.calls) < min(second.calls)
    assert {"n1", "n2"} <= set(second.numbers())


def test_session_ended_by_the_server_is_renewed(agents: Agents, engine: Engine) -> None:
    for agent in ("n1", "n2"):
        agents.join(agent)
    assert agents.coordinator("n1") == agents.coordinator("n2") == "n1"
    before = len(agents.recorders["n1"].taken)
    kill_merger(engine)
    merger = agents.coordinator("n2")
    assert agents.coordinator("n1") == agents.coordinator("n2") == merger
    again = {each.agent for each in agents.recorders["n1"].taken[before:] + agents.recorders["n2"].taken}
    assert again == {"n1", "n2"}
    assert agents.lines == []


def test_disconnected_coordinator_is_replaced_and_stops_merging(
    agents: Agents, url: str, proxy: Proxy, postgres: Postgres
) -> None:
    """The server does not notice: the connection stays open, and the lock is held."""
    first = agents.join("n1", url.replace(str(postgres.folder), str(proxy.folder)), QUICK)
    second = agents.join("n2", timing=QUICK)
    assert agents.coordinator("n1") == agents.coordinator("n2") == "n1"
    proxy.fall_silent()
    wait_until(lambda: agents.coordinator("n2") == "n2")
    assert agents.post("n1") is None
    wait_until(lambda: second.steps > 5)
    assert max(first.calls) < min(second.calls)


def test_hanging_coordinator_is_replaced_until_it_responds(agents: Agents) -> None:
    first = agents.join("n1", timing=QUICK)
    second = agents.join("n2", timing=QUICK)
    assert agents.coordinator("n1") == agents.coordinator("n2") == "n1"
    first.going.clear()
    wait_until(lambda: agents.coordinator("n2") == "n2")
    assert agents.post("n1") is None  # the merger thread hangs, and posts do not wait for it
    calls = len(first.calls)
    first.going.set()
    wait_until(lambda: agents.coordinator("n1") == "n2")
    assert len(first.calls) == calls and second.steps


def test_restart_of_the_server_loses_nothing(agents: Agents, engine: Engine, postgres: Postgres) -> None:
    for agent in ("n1", "n2", "n3"):
        agents.join(agent)
    assert {agents.coordinator(agent) for agent in ("n1", "n2", "n3")} == {"n1"}
    before = {name: len(recorder.taken) for name, recorder in agents.recorders.items()}
    with engine.begin() as connection:
        connection.execute(text("CHECKPOINT"))  # posts do not wait for the disk
    postgres.stop()
    postgres.start()
    merger = agents.coordinator("n2")
    assert agents.coordinator("n2") == merger
    again = {each.agent for each in agents.recorders[merger].taken[before[merger] :]}
    assert again == {"n1", "n2", "n3"}
    assert agents.coordinator("n1") == agents.coordinator("n3") == merger


def test_posts_fail_quickly_with_one_notice_while_the_server_is_down(
    agents: Agents, postgres: Postgres
) -> None:
    agents.join("n1", timing=replace(QUICK, reconnect=0.02))
    assert agents.coordinator("n1") == "n1"
    postgres.stop()
    try:
        assert [agents.post("n1") for _ in range(3)] == [None, None, None]
    finally:
        postgres.start()
    (line,) = agents.lines
    assert line.startswith("the database in [alerts] incidents_url does not respond: ")
    assert agents.coordinator("n1") == "n1"
    assert len(agents.lines) == 1


def test_locked_table_does_not_delay_posts(agents: Agents, engine: Engine) -> None:
    agents.join("n1", timing=QUICK)
    assert agents.coordinator("n1") == "n1"
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE cluster_reports"))
        assert agents.post("n1") is None
    assert agents.coordinator("n1") == "n1"


def test_thousand_agents_are_merged_as_one_run(agents: Agents, engine: Engine) -> None:
    for number in range(1023):
        insert(engine, f"n{number}", msgspec.json.encode(report(f"n{number}", ranks=str(number))))
    merger = agents.join("here")
    reply = agents.post("here", started_age=3600.0)
    assert reply is not None and len(reply.acknowledged) == 1024
    assert {each.ranks for each in merger.taken if each.agent != "here"} == {str(n) for n in range(1023)}


def test_unreadable_report_does_not_hide_others(agents: Agents, engine: Engine) -> None:
    newer = msgspec.to_builtins(report("newer-keys"))
    insert(engine, "newer-keys", msgspec.json.encode({**newer, "thermometer": 60}))
    insert(engine, "cut", msgspec.json.encode(newer)[:-7])
    insert(engine, "bytes", b"\xff\x00garbage")
    insert(engine, "deep", b"[" * 100_000)
    insert(engine, "wrong", msgspec.json.encode({**newer, "number": "seven"}))
    insert(engine, "newer", msgspec.json.encode(newer), version=VERSION + 1)
    insert(engine, "large", b" " * (MOST_BYTES + 1))
    merger = agents.join("n1")
    for _ in range(2):
        assert agents.coordinator("n1") == "n1"
    assert set(merger.numbers()) == {"n1", "newer-keys"}
    left_out = ("bytes", "cut", "deep", "large", "newer", "wrong")
    assert [line.partition(" is ignored: ")[0] for line in sorted(agents.lines)] == [
        f"the report of {agent!r}" for agent in left_out
    ]


@pytest.mark.parametrize("content", [b"garbage", msgspec.json.encode(Reply(v=VERSION + 1))])
def test_unreadable_reply_is_ignored(agents: Agents, engine: Engine, content: bytes) -> None:
    merger = agents.join("n1")
    agents.join("n2", timing=replace(PATIENT, acknowledgement=0.0))
    assert agents.coordinator("n1") == "n1"
    merger.going.clear()
    steps = merger.steps
    wait_until(lambda: merger.steps > steps)  # the old merger writes no more
    with engine.begin() as connection:
        connection.execute(text("UPDATE cluster_runs SET reply = :reply"), {"reply": content})
    assert agents.post("n2") is None and agents.post("n2") is None
    (line,) = agents.lines
    assert line.startswith("the merged report of all hosts is ignored: ")


def test_ages_of_a_stored_report_increase(agents: Agents, engine: Engine) -> None:
    kept = report("n1", quiet=5.0, started_age=500.0, clock=1e9, stacks_age=1.0)
    insert(engine, "n1", msgspec.json.encode(kept), age=100.0)
    merger = agents.join("n2")
    assert agents.post("n2", started_age=400.0) is not None
    (read,) = [each for each in merger.taken if each.agent == "n1"]
    waited = read.quiet - 5.0
    assert 100.0 <= waited < 300.0
    assert (read.age, read.started_age, read.clock, read.stacks_age) == pytest.approx(
        (waited, 500.0 + waited, 1e9 + waited, 1.0 + waited)
    )
    assert read.ended_age is None


def test_reports_from_before_the_start_belong_to_an_earlier_run(agents: Agents, engine: Engine) -> None:
    insert(engine, "n1", msgspec.json.encode(report("n1")), age=100.0)
    merger = agents.join("n2")
    assert agents.post("n2", started_age=50.0) is not None
    assert set(merger.numbers()) == {"n2"}


def test_refusal_reaches_only_the_refused_agent(agents: Agents) -> None:
    first = agents.join("n1")
    first.refuses = "n2"
    for agent in ("n2", "n3"):
        agents.join(agent)
    assert agents.coordinator("n1") == "n1"
    reply = agents.post("n2")
    assert reply is not None and reply.refused == "rank 3 is on another host, too"
    for agent in ("n1", "n3"):
        reply = agents.post(agent)
        assert reply is not None and reply.refused == "" and reply.coordinator == "n1"


def test_failed_coordinator_does_not_delay_other_agents(agents: Agents) -> None:
    agents.join("n1").breaks_at = "n2"
    agents.join("n2", timing=QUICK)
    agents.join("n3")
    assert agents.coordinator("n1") == "n1"
    reply = agents.post("n2")
    assert reply is None or "n2" not in reply.acknowledged
    assert agents.coordinator("n3") == "n1"
    wait_until(lambda: agents.lines)
    assert agents.lines == ["the report of 'n2' is ignored: 'a fault'"]


def test_oversized_report_is_not_sent(agents: Agents) -> None:
    agents.join("n1")
    assert agents.post("n1", ranks="1" * MOST_BYTES) is None
    assert agents.post("n1", ranks="1" * MOST_BYTES) is None
    (line,) = agents.lines
    assert "the report of 'n1' is ignored: it has 10" in line
    assert agents.coordinator("n1") == "n1"


def test_wrong_password_is_reported_in_one_line_without_it(postgres: Postgres, agents: Agents) -> None:
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    other = agents.url.replace("watcher@", "locked:s3cr3t%2Fpw@")
    engines = [open_engine(agents.url), open_engine(other)]

    def is_locked() -> bool:  # the server reads its new rules after a moment
        try:
            engines[1].connect().close()
        except OperationalError:
            return True
        engines[1].dispose()
        return False

    try:
        with engines[0].begin() as connection:
            connection.execute(text("CREATE ROLE locked LOGIN PASSWORD 'another'"))
            rules.write_text("local all locked scram-sha-256\n" + before)
            connection.execute(text("SELECT pg_reload_conf()"))
        wait_until(is_locked)
        agents.join("n1", other)
        for _ in range(2):
            with pytest.raises(Refused) as refusal:
                agents.post("n1")
    finally:
        rules.write_text(before)
        for each in engines:
            each.dispose()
    said = str(refusal.value)
    assert "password authentication failed" in said
    assert "\n" not in said and "s3cr3t" not in said


def test_missing_database_is_refused(agents: Agents) -> None:
    agents.join("n1", agents.url.replace("/alerts", "/no-such-alerts"))
    with pytest.raises(Refused, match="does not exist"):
        agents.post("n1")
    assert agents.lines == []


def test_missing_driver_is_reported_with_the_install_command(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    agents.join("n1")
    with pytest.raises(Refused, match=re.escape("pip install 'stallwatch[postgres]'")):
        agents.post("n1")


def test_agent_starts_without_importing_sqlalchemy() -> None:
    code = "import sys, stallwatch_alerts.storage.cluster; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_old_reports_are_deleted(engine: Engine) -> None:
    insert(engine, "old", b"{}", age=100 * 86400.0)
    insert(engine, "new", b"{}")
    with engine.begin() as connection:
        for key, at in (("left", 0.0), ("now", time.time())):
            connection.execute(
                text("INSERT INTO cluster_runs VALUES (:key, 'n1', 7, :at)"), {"key": key, "at": at}
            )
    assert prune(engine, time.time(), 90) == 2
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT agent FROM cluster_reports")).all() == ["new"]
        assert connection.scalars(text("SELECT key FROM cluster_runs")).all() == ["now"]


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("postgresql://u:p@db/alerts", True),
        ("postgresql+psycopg://u@/alerts?host=/run", True),
        ("sqlite:///incidents.db", False),
        ("", False),
        ("no url", False),
    ],
)
def test_only_postgresql_urls_are_accepted(url: str, fits: bool) -> None:
    assert is_cluster_engine(url) is fits
