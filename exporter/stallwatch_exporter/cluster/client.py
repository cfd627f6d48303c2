"""Send the reports of a run's agents over HTTP to the first available host, or merge them in this agent.

There is no election. All agents use the order of hosts that the scheduler defines. If no earlier host in this
order responds, an agent merges the reports that it receives.
"""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallwatch_exporter.cluster import host
from stallwatch_exporter.cluster.backing import Merges
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.peer import ANSWER_SECONDS, Connection, Peer, Signed
from stallwatch_exporter.cluster.secrets import NoSecret, Secret, SecretSource
from stallwatch_exporter.cluster.server import (
    ClusterServer,
    Notices,
    OtherHosts,
    SameHost,
    listen,
    merged,
    most_connections,
)
from stallwatch_exporter.cluster.signing import REPORTS, Answer, Elsewhere, Malformed, pack, read, unpack
from stallwatch_exporter.cluster.wire import (
    BEAT_SECONDS,
    MOST_BYTES,
    MOST_REPORTS,
    AgentReport,
    Member,
    Post,
    Reply,
    aged,
    beat_of,
    digest_of,
)
from stallwatch_exporter.settings import JoinSettings

POST_SECONDS = 4.0  #: maximum duration of a post, in seconds
FIRST_PORT = 19402
_PORTS = 200  # number of possible ports, so that runs on one machine listen on different ports
_TRIES = 8
_MOST_OTHERS = 64  # maximum number of agents to remember, besides agents that can merge reports
_STARTING_SECONDS = 30.0  # maximum number of seconds that the agent at `join.address` needs to start
_AT_ONCE = 16  # maximum number of concurrent searches for agents
_SPARE_SECONDS = 0.25  # maximum wait of a post, in seconds, for hosts that did not respond earlier
_SEEN_LATELY = 0.5  # seconds after a response during which a coordinator is not queried again
_SIBLING_SECONDS = 5.0  # maximum response time, in seconds, of the agent that posts for its host
_AVOIDED_SECONDS = 30.0  # seconds until an agent that did not respond is contacted again
_MISSING_SECONDS = 900.0  # seconds to remember an agent that the coordinator no longer lists
_KEPT_SECONDS = 3600.0  # seconds between two updates of the secret file's timestamp


class HttpBacking:
    """Transport that sends reports over HTTP or, within a host, over a Unix socket. Implements `Backing`."""

    def __init__(
        self,
        identity: RunIdentity,
        join: JoinSettings,
        home: Path,
        merges: Merges,
        *,
        agent: str,
        host_id: str,
        notice: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        hostname: str = "",
    ) -> None:
        """Set up the transport.

        If this agent must merge the reports itself, `merges` processes them. `clock` must be monotonic.
        """
        self._identity = identity
        self._join = join
        self._home = home
        self._merges = merges
        self._agent = agent
        self._host_id = host_id
        self._hostname = hostname or socket.gethostname()
        self._clock = clock
        self._notices = Notices(notice, clock)
        self._source = SecretSource(join, home, identity.key)
        self._signed: Signed | None = None
        self._no_secret = False
        self._kept_at = clock()
        self._missed_from = clock() + _STARTING_SECONDS
        self._server: ClusterServer | None = None
        self._socket: ClusterServer | None = None
        self._avoided_until = float("-inf")
        self._host = HostReports(self._carry, clock)
        self._members: dict[str, Member] = {}  # agents that can merge reports, by host ID
        self._missing: dict[str, float] = {}  # time when the coordinator stopped listing an agent, by host ID
        self._members_digest = digest_of(())
        self._peers: dict[tuple[str, tuple[int, ...]], Peer] = {}
        self._searches = threading.Semaphore(_AT_ONCE)
        # Last agent that accepted reports, and the time of its last response.
        self._used: tuple[Peer, float] | None = None
        self._checking = threading.Lock()
        self._closed = False
        self._own_ports = self._ports()

    @property
    def address(self) -> str:
        """Address of this agent's server, or ``:19402`` if it listens on all addresses of the host."""
        if self._server is None:
            return ""
        is_specific = self._join.host not in ("", "0.0.0.0", "::")
        return host.join_address(self._join.host if is_specific else "", self._server.port)

    def post(self, report: AgentReport) -> Reply | None:
        """Send a report. Return the reply, or ``None`` if no reply arrives in time."""
        if self._closed:
            return None
        name = host.socket_name(self._home / "join", self._identity.key, self._host_id)
        for _ in range(2):
            if name is None or self._socket is not None or self._clock() < self._avoided_until:
                break
            try:
                if not self._is_first_here(name):
                    return self._to_sibling(name, report)
            except ConnectionError:
                continue  # the other agent has ended, so this agent can replace it
            except (OSError, ValueError, http.client.HTTPException, Malformed) as error:
                self._notices(
                    f"cannot use the agent that posts the reports of this host ({error}); "
                    "this agent posts its own reports"
                )
                self._avoided_until = self._clock() + _AVOIDED_SECONDS
        return self._host.post(report, own=True)

    def close(self) -> None:
        """Stop sending and cancel requests in progress."""
        self._closed = True
        self._host.close()
        for peer in list(self._peers.values()):
            peer.close()
        for server in (self._socket, self._server):
            if server is not None:
                server.close()

    def _is_first_here(self, name: str) -> bool:
        """Bind this host's socket and return whether this agent now posts for the host.

        Raises `OSError` if binding fails.
        """
        bound = host.bind(name)
        if bound is None:
            return False
        gate = SameHost(self._identity.key, lambda report: self._host.post(report, own=False), self._notices)
        self._socket = ClusterServer(gate, bound=bound, most=MOST_REPORTS)
        return True

    def _to_sibling(self, name: str, report: AgentReport) -> Reply | None:
        """Pass a report to the agent that posts for this host. Connection errors are raised."""
        body, encoding = pack(Post(reports=[report]))
        connection = Connection(name)
        try:
            with connection.within(_SIBLING_SECONDS):
                status, content, packed, _ = connection.exchange("POST", REPORTS, body, encoding)
        except BlockingIOError:
            return None  # too many agents use the socket at once
        finally:
            connection.close()
        if status == 503:
            return None
        if status != 200:
            raise Malformed(f"HTTP status {status}")
        answer = read(unpack(content, packed), Answer)
        return answer.of(report.agent)

    def _carry(self, reports: Sequence[AgentReport]) -> Answer | None:
        """Post the reports of this host's agents to the first agent of the run that accepts them."""
        end = time.monotonic() + POST_SECONDS
        signed = self._open()
        known = {"address": self.address, "members": self._members_digest}
        reports = [msgspec.structs.replace(report, **known) for report in reports]
        answer: Answer | None = None
        for part in _parts(reports, self._notices):
            newest = self._post(part, signed, end) if signed is not None else self._merge_here(part)
            if newest is None:
                return None
            refused = {**answer.refused, **newest.refused} if answer is not None else newest.refused
            answer = msgspec.structs.replace(newest, refused=refused)
        if answer is not None and answer.reply.members is not None:
            self._learn(answer.reply.members)
        return answer

    def _learn(self, listed: Sequence[Member]) -> None:
        """Record the agents that, according to the coordinator, can merge the run's reports.

        A new coordinator lists only the hosts that have posted to it. This agent also remembers the other
        hosts. Otherwise, this agent would forget a host that takes precedence and would itself merge a part
        of the run.
        """
        now, known, new = self._clock(), self._known(), {member.host_id: member for member in listed}
        self._missing = {id: self._missing.get(id, now) for id in known.keys() - new.keys()}
        self._members = known | new
        self._members_digest = digest_of(listed)

    def _known(self) -> dict[str, Member]:
        """Return the agents that can merge reports, except agents that have been missing for a long time."""
        now = self._clock()
        return {
            id: member
            for id, member in self._members.items()
            if now - self._missing.get(id, now) < _MISSING_SECONDS
        }

    def _post(self, reports: Sequence[AgentReport], signed: Signed, end: float) -> Answer | None:
        tried: set[int] = set()
        spare = _SPARE_SECONDS
        ahead = self._ahead()
        for index, peer in enumerate(ahead):
            if self._closed:
                return None
            # Query the first agent alone because it nearly always answers.
            is_new, began = peer.is_new, time.monotonic()
            for other in ahead[index : index + (_AT_ONCE if index else 1)]:
                other.look(signed)
            is_there = peer.wait(min(ANSWER_SECONDS, end - began) if is_new else spare)
            if not is_new:
                spare = max(0.0, spare - (time.monotonic() - began))
            if not is_there:
                if is_new and time.monotonic() >= end:
                    return None
                continue
            if peer.hello is not None and peer.hello.agent == self._agent:
                break  # the agent that responded is this agent itself
            if (answer := self._try(peer, reports, signed, end, tried)) is not None:
                return answer
        return self._merge_here(reports)

    def _try(
        self, peer: Peer, reports: Sequence[AgentReport], signed: Signed, end: float, tried: set[int]
    ) -> Answer | None:
        """Post the reports to an agent. If the agent names another agent, post the reports to that agent."""
        while id(peer) not in tried and (left := end - time.monotonic()) > 0:
            tried.add(id(peer))
            answer = peer.post(reports, signed, min(ANSWER_SECONDS, left))
            if isinstance(answer, Answer):
                self._used = (peer, self._clock())
                return answer
            if answer is None or answer.host_id == self._host_id:
                return None
            named = self._named(answer)
            if named is None:
                return None
            was_new = named.is_new
            named.look(signed)
            if not named.wait(min(ANSWER_SECONDS, max(0.0, end - time.monotonic())) if was_new else 0.0):
                return None
            peer = named
        return None

    def _named(self, other: Elsewhere) -> Peer | None:
        for peer in self._peers.values():
            if peer.hello is not None and peer.hello.host_id == other.host_id:
                return peer
        where, port = host.split_address(other.address)
        return self._peer(where, (port,)) if where and port else None

    def _merge_here(self, reports: Sequence[AgentReport]) -> Answer | None:
        """Merge the reports in this agent because no agent that takes precedence accepted them."""
        self._used = None
        where, _ = host.split_address(self._join.address)
        if where and not host.is_this_host(where, self._hostname) and self._clock() >= self._missed_from:
            self._notices(
                f"{self._join.address} does not respond; until it does, this agent merges the run's reports"
            )
        here = f"{self._hostname}{self.address}" if self.address[:1] == ":" else self.address
        try:
            return merged(self._merges, [msgspec.structs.replace(report, address=here) for report in reports])
        except Exception as error:
            self._notices(f"the reports of the run could not be merged ({type(error).__name__}: {error})")
            return None

    def _elsewhere(self) -> Elsewhere | None:
        """Return another agent that merges the reports, or ``None`` if no such agent responds."""
        with self._checking:
            used, signed = self._used, self._signed
            if used is None or signed is None:
                return None
            peer, seen = used
            if self._clock() - seen > _SEEN_LATELY:
                if not peer.is_there(signed, ANSWER_SECONDS / 2):
                    if self._used is used:
                        self._used = None
                    return None
                self._used = (peer, self._clock())
            hello = peer.hello
            return Elsewhere(host_id=hello.host_id, address=peer.name) if hello is not None else None

    def _ahead(self) -> list[Peer]:
        """Return the agents that take precedence over this agent for merging, in order of precedence."""
        identity, ports = self._identity, self._run_ports
        found: list[Peer] = []
        where, port = host.split_address(self._join.address)
        if where:
            found.append(self._peer(where, [*([port] if port else []), *ports]))
        own = self._own_index()
        if identity.hosts:
            found += [self._peer(host.split_address(name)[0], ports) for name in identity.hosts[:own]]
        elif identity.master:
            name = host.split_address(identity.master)[0]
            if identity.node == 0 or host.is_this_host(name, self._hostname):
                return found
            found.append(self._peer(name, ports))
        if own is None:
            found += self._members_before()
        if len(self._peers) > 2 * len(found) + _MOST_OTHERS:  # forget the old ports of restarted agents
            self._peers = {key: peer for key, peer in self._peers.items() if peer in found}
        return list(dict.fromkeys(found))

    def _members_before(self) -> Iterator[Peer]:
        def place(node: int | None, host_id: str) -> tuple[bool, int, str]:
            return node is None, node or 0, host_id

        own_place = place(self._identity.node, self._host_id)
        for member in sorted(self._known().values(), key=lambda member: place(member.node, member.host_id)):
            where, port = host.split_address(member.address)
            if where and port and place(member.node, member.host_id) < own_place:
                known = self._named(Elsewhere(host_id=member.host_id, address=member.address))
                if known is not None:
                    yield known

    def _own_index(self) -> int | None:
        """Return this host's index in the scheduler's list, or ``None`` if the list does not contain it."""
        hosts, node = self._identity.hosts, self._identity.node
        if node is not None and 0 <= node < len(hosts):
            return node
        for index, name in enumerate(hosts):
            if host.is_this_host(name, self._hostname):
                return index
        return None

    def _peer(self, where: str, ports: Sequence[int]) -> Peer:
        key = (where, tuple(ports))
        if key not in self._peers:
            self._peers[key] = Peer(where, ports, self._notices, self._clock, self._searches)
        return self._peers[key]

    @property
    def _run_ports(self) -> list[int]:
        if self._join.port:
            return [self._join.port]
        first = zlib.crc32(self._identity.key.encode()) % _PORTS
        return [FIRST_PORT + (first + index) % _PORTS for index in range(_TRIES)]

    def _ports(self) -> list[int]:
        """Return the ports to listen on. A port that the user set in `join.address` comes first."""
        where, port = host.split_address(self._join.address)
        own = [port] if port and host.is_this_host(where, self._hostname) else []
        return [*own, *self._run_ports]

    def _open(self) -> Signed | None:
        """Start listening and return the identity that is used to sign requests.

        Return ``None`` while there is no secret. The agent then works alone.
        """
        if self._signed is None and not self._no_secret:
            try:
                secret = self._source.get(self._clock())
            except NoSecret as problem:
                self._no_secret = True
                self._notices(str(problem))
                return None
            if secret is None:
                return None
            # Start with a number that is higher than the request numbers of all earlier agents with the
            # same name.
            count = itertools.count(time.time_ns())
            self._signed = Signed(self._identity.key, self._agent, secret, lambda: next(count))
            self._listen(secret)
        if self._signed is not None and self._clock() - self._kept_at > _KEPT_SECONDS:
            self._kept_at = self._clock()
            # Use a thread because a file system that does not respond must not delay the posts.
            threading.Thread(target=self._source.keep, name="stallwatch-cluster-secret", daemon=True).start()
        return self._signed

    def _listen(self, secret: Secret) -> None:
        key = self._identity.key
        gate = OtherHosts(
            secret.text,
            self._agent,
            self._host_id,
            lambda _: self._merges,
            self._notices,
            knows=lambda other: other == key,
            elsewhere=self._elsewhere,
        )
        agents = max(self._identity.agents or 0, len(self._identity.hosts))
        try:
            self._server = listen(
                gate, self._join.host, self._own_ports, secret.server, most_connections(agents)
            )
        except OSError as error:
            self._notices(
                f"other hosts cannot join this agent ({error.strerror or error}); "
                "set join.port to a free port"
            )


class HostReports:
    """Collect the newest reports from all agents on this host and send them in one post.

    An unchanged report waits for the next post, and its agent gets the last reply immediately. Therefore, a
    host sends one post per interval, regardless of the number of its agents.
    """

    def __init__(
        self, carry: Callable[[Sequence[AgentReport]], Answer | None], clock: Callable[[], float]
    ) -> None:
        self._carry = carry
        self._clock = clock
        self._changed = threading.Condition()
        #: Newest report and its arrival time, by agent.
        self._waiting: dict[str, tuple[AgentReport, float]] = {}
        #: Result of `_news` for each agent's last report that the coordinator received, by agent.
        self._carried: dict[str, tuple[object, ...]] = {}
        self._answer: Answer | None = None
        self._carried_at = float("-inf")
        self._round = 0
        self._busy = False
        self._closed = False

    def post(self, report: AgentReport, *, own: bool) -> Reply | None:
        """Add a report and return the reply to the post that includes this report.

        If the report can wait for the next post, return the last reply immediately.
        """
        with self._changed:
            if len(self._waiting) >= MOST_REPORTS and report.agent not in self._waiting:
                return None
            self._waiting[report.agent] = (report, self._clock())
            if not own and self._answer is not None and not self._is_pressing(report):
                return self._answer.of(report.agent)
            round_ = self._round + (2 if self._busy else 1)
            end = time.monotonic() + POST_SECONDS
            while self._busy and self._round < round_:
                if not self._changed.wait(end - time.monotonic()) and time.monotonic() >= end:
                    return None
            if self._closed:
                return None
            if self._round >= round_:
                return self._answer.of(report.agent) if self._answer is not None else None
            self._busy = True
            taken, self._waiting = self._waiting, {}
        answer: Answer | None = None
        try:
            answer = self._carry([aged(report, self._clock() - came) for report, came in taken.values()])
        finally:
            with self._changed:
                self._busy = False
                self._round += 1
                self._answer = answer
                self._carried_at = self._clock()
                if answer is None:
                    self._waiting = {**taken, **self._waiting}
                else:
                    known = {agent: _news(report) for agent, (report, _) in taken.items()}
                    self._carried = dict(list({**self._carried, **known}.items())[-MOST_REPORTS:])
                self._changed.notify_all()
        return answer.of(report.agent) if answer is not None else None

    def close(self) -> None:
        """Wake all threads that are waiting for a post, because no more posts are sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_pressing(self, report: AgentReport) -> bool:
        if self._carried.get(report.agent) != _news(report):
            return True
        least = self._answer.reply.beat if self._answer is not None else 0.0
        beat = max(least, beat_of(report.quiet, report.threshold))
        return beat < BEAT_SECONDS and self._clock() - self._carried_at >= beat


def _news(report: AgentReport) -> tuple[object, ...]:
    """Return the parts of a report that are posted immediately if they change."""
    return report.incidents, report.ending, report.ledger, report.phase


def _parts(reports: Sequence[AgentReport], notices: Notices) -> Iterator[Sequence[AgentReport]]:
    """Split the reports into groups that are each small enough for one post."""
    if len(msgspec.json.encode(reports)) < MOST_BYTES - 64:
        yield reports
    elif len(reports) > 1:
        half = len(reports) // 2
        yield from _parts(reports[:half], notices)
        yield from _parts(reports[half:], notices)
    elif reports[0].stacks is not None or reports[0].paces:
        notices("the report of this host is too large, so it is sent without the stacks of the ranks")
        yield from _parts([msgspec.structs.replace(reports[0], stacks=None, paces=[])], notices)
    else:
        notices("the report of this host is too large and is not sent")
