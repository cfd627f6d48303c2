"""Connect an agent to the coordinator of its multi-host run: post reports, and process the replies.

Normally, the coordinator notifies users of the run's incidents. After five seconds without a reply, the agent
notifies users itself and reports these notifications to the coordinator later.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.backing import Backing, Refused
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.merging import (
    AWAITED_SECONDS,
    KEPT_SECONDS,
    in_brief,
    joined_ledgers,
    kept_ledger,
    number_of,
    qualified,
)
from stallwatch_exporter.cluster.slowness import UnacknowledgedSteps
from stallwatch_exporter.cluster.wire import (
    BEAT_SECONDS,
    QUIET_BEAT_SECONDS,
    AgentReport,
    Reply,
    beat_of,
    is_quiet,
)
from stallwatch_exporter.incident import Incident, Sink, optional_methods
from stallwatch_exporter.notices import Guard, surviving
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.quiet_periods import Ruling
from stallwatch_rules.stacks.records import StallStacks

ALONE_SECONDS = 5.0  #: seconds without a reply after which the agent notifies users itself
_UNHEARD = 3  # multiple of `ALONE_SECONDS`, used if replies arrive but do not acknowledge the change
LEAVING_SECONDS = 5.0  #: seconds in which this agent can merge and send the last changes before it exits
LOOK_SECONDS = 0.05
_FRESH_SECONDS = 2.0  # seconds that a ruling of all hosts stays valid, in addition to one beat
_AGAIN_SECONDS = 0.5  # seconds between two posts of a change that has not been acknowledged
_SENDING_SECONDS = 10.0  # seconds after a change during which an agent posts often, until users are notified
_SENDING_BEAT = 2.0


class State(msgspec.Struct, frozen=True, kw_only=True):
    """State of an agent's host at one moment. Times are from the agent's monotonic clock."""

    ranks: str = ""
    world: int = 0
    phase: Phase = "train"
    step: int | None = None
    quiet: float = 0.0
    threshold: float | None = None  #: quiet time, in seconds, after which a stall is suspected
    ruling: Ruling | None = None
    stacks: StallStacks | None = None
    stacks_at: float = 0.0


class Member:
    """Agent in a multi-host run. The agent has a sink for its incidents and a thread that posts its reports.

    `update` and the sink do not block. The thread calls `step` about once a second to run the coordinator
    within this agent.
    """

    def __init__(
        self,
        identity: RunIdentity,
        run: str,
        backing: Backing,
        sinks: Sequence[Sink],
        *,
        agent: str,
        host: str,
        host_id: str,
        address: Callable[[], str] = lambda: "",
        step: Callable[[], None] = lambda: None,
        leave: Callable[[Sequence[Incident], Sequence[str]], None] = lambda _ledger, _escalates: None,
        shown: Callable[[Incident], None] = lambda _: None,
        renamed: Callable[[str], None] = lambda _: None,
        is_settled: Callable[[], bool] = lambda: True,
        is_known: Callable[[], bool] = lambda: True,
        is_waiting: Callable[[], bool] = lambda: False,
        alone_seconds: float = ALONE_SECONDS,
        clock: Callable[[], float] = steady.now,
        wall: Callable[[], float] = time.time,
        notice: Callable[[str], None] = lambda _: None,
        start: bool = True,
    ) -> None:
        """Start the thread that posts reports.

        Some functions control the coordinator within this agent. `address` returns the address on which it
        listens, and `step` processes its pending work. `is_settled` returns whether it has sent all
        notifications, `is_known` returns whether the other hosts know about these notifications, and
        `is_waiting` returns whether a notification waits for the reports of other hosts.
        `leave` is called if another coordinator accepts the reports, and receives the ledger and the
        escalated IDs of that coordinator.

        `shown` receives the incidents that this agent alone passed to `sinks`. If another host of the run has
        the same name, `renamed` receives the new name of this host. After `alone_seconds` without a reply,
        the agent notifies users itself.
        """
        self._identity = identity
        self._run = run
        self._backing = backing
        self._sinks = sinks
        self._agent, self._host, self._host_id, self._address = agent, host, host_id, address
        self._step = step
        self._leave = leave
        self._shown, self._renamed = shown, renamed
        self._is_settled, self._others_know, self._is_waiting = is_settled, is_known, is_waiting
        self._alone_seconds = alone_seconds
        self._clock = clock
        self._wall = wall
        self._notice = surviving(notice)
        self._guarded = Guard(self._notice)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._state = State()
        self._ending: Ending | None = None
        self._ended_at = 0.0
        self._ended_in: int | None = None  # number of the first report that contains the ending
        self._end_is_known = False
        self._started = clock()
        self.paces = UnacknowledgedSteps()  #: receives the steps of the local ranks
        self._number = 0
        self._mine: dict[str, Incident] = {}  # open incidents and unreported closed incidents, by ID
        self._closed_at: dict[str, float] = {}
        self._changed_at = -math.inf
        self._is_known = True  # true if all changes were reported to users, according to the last reply
        self._waiting: dict[str, float] = {}  # time of the first unacknowledged change, by incident ID

        # Each posted incident, and the number of the first report that contains it, by incident ID.
        self._posted: dict[str, tuple[Incident, int]] = {}
        self._names: dict[str, tuple[str, float]] = {}  # public ID and opening time, by the incident's own ID
        self._alone: dict[str, Incident] = {}  # incidents that this agent reported to users, by public ID
        self._ledger: dict[str, Incident] = {}
        self._reply: Reply | None = None
        self._answered_at = -BEAT_SECONDS
        self._posted_at = -math.inf
        self._is_unanswered = False  # true if the last post received no reply
        self._posted_as = _news(self._state)
        self._refused = ""
        self._thread = threading.Thread(target=self._run_thread, name="stallwatch cluster", daemon=True)
        if start:
            with suppress(RuntimeError):  # if no thread can be started, the agent works alone
                self._thread.start()

    # ---- interface for the agent

    def __call__(self, incident: Incident) -> None:
        """Record a change to one of this agent's incidents and post the change."""
        with self._lock:
            kept = msgspec.structs.replace(incident)
            self._mine[incident.id] = kept
            if incident.status == "resolved":
                self._closed_at[incident.id] = self._clock()
            self._waiting.setdefault(incident.id, self._clock())
            self._changed_at, self._is_known = self._clock(), False
        self._wake.set()

    def alive(self, problem: str) -> None:
        """Report to the sinks that the agent is alive. This method is called about once a second."""
        for alive in optional_methods(self._sinks, "alive"):
            alive(problem)
        self.notify_alone()

    def take_over(self, reported: Sequence[Incident]) -> None:
        """Adopt the open incidents that this agent reported to users before it joined the run."""
        with self._lock:
            for incident in reported:
                self._mine[incident.id] = msgspec.structs.replace(incident)
                alone = self._alone_as(incident)
                self._alone[alone.id] = alone
        self._show()

    def follow(self, former: Member) -> None:
        """Take over from the member that represented this agent before the ranks identified the run."""
        former._closing = True
        former._wake.set()
        with former._lock, self._lock:
            self._mine |= former._mine
            self._closed_at |= former._closed_at
            self._waiting |= former._waiting
            self._names |= former._names
            self._alone |= former._alone
            self._ledger |= former._ledger
            former._waiting.clear()
        with suppress(Exception):
            former._backing.close()
        self._show()

    def _show(self) -> None:
        for incident in list(self._alone.values()):
            with self._guarded("reporting an incident"):
                self._shown(incident)
        self._wake.set()

    def update(self, state: State) -> None:
        """Set the current state of the agent. Urgent changes are posted immediately."""
        with self._lock:
            self._state = state
            if self._posted_as != _news(state):
                self._wake.set()

    def end(self, ending: Ending) -> None:
        """Record how the command ended and post this ending."""
        with self._lock:
            self._ending, self._ended_at = ending, self._clock()
        self._wake.set()

    @property
    def ruling(self) -> Ruling | None:
        """Ruling of all hosts on the current quiet period, or ``None`` if the ruling is unknown."""
        fresh = self._clock() - self._answered_at < _FRESH_SECONDS + self._beat()
        return self._reply.ruling if self._reply is not None and fresh else None

    def notify_alone(self) -> None:
        """Notify users of changes that the coordinator did not acknowledge in time."""
        with self._lock:
            now, limit = self._clock(), self._alone_seconds
            limit *= 1 if now - self._answered_at >= limit else _UNHEARD
            due = [name for name, since in self._waiting.items() if now - since >= limit]
            for name in due:
                del self._waiting[name]
            incidents = [self._alone_as(self._mine[name]) for name in due if name in self._mine]
            for incident in incidents:
                self._alone[incident.id] = incident
        for incident in incidents:
            for sink in (*self._sinks, self._shown):
                with self._guarded("reporting an incident"):
                    sink(incident)

    def _alone_as(self, incident: Incident) -> Incident:
        """Return a copy of the incident that has the ID under which this agent notifies users on its own.

        If an open incident of the run includes this incident, the copy gets the ID of that incident.
        Otherwise, the copy gets an ID that no known incident has.
        """
        alias = qualified(self._agent, incident)
        if incident.id not in self._names:
            known = list(self._ledger.values())
            run = next(
                (incident for incident in known if incident.status == "open" and alias in incident.aliases),
                None,
            )
            used = [number_of(other) for other in known if other.began_as == incident.began_as]
            number = max([incident.episode, *(taken + 1 for taken in used)])
            name = f"{incident.id.rpartition('/')[0]}/{number}"
            self._names[incident.id] = (run.id, run.opened_at) if run else (name, incident.opened_at)
        name, opened_at = self._names[incident.id]
        return msgspec.structs.replace(incident, id=name, opened_at=opened_at, aliases=[alias])

    def close(self, timeout: float = LEAVING_SECONDS) -> None:
        """Post the last changes and wait until the coordinator within this agent has sent everything.

        The method waits for at most `timeout` seconds, and slightly longer if other agents must still learn
        which notifications were sent. It never raises an error.
        """
        began = time.monotonic()
        end = began + timeout
        while time.monotonic() < end and self._thread.is_alive():
            with self._lock:
                done = not self._waiting and (self._ending is None or self._end_is_known)
            if done and self._is_settled():
                if self._others_know():
                    break
                # Otherwise, the next coordinator would notify users again.
                end = began + timeout + BEAT_SECONDS
            elif self._is_waiting():
                end = began + timeout + AWAITED_SECONDS
            time.sleep(LOOK_SECONDS)
        self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, began + timeout - time.monotonic()) + LOOK_SECONDS)
        with self._lock:
            now = self._clock()
            self._waiting = dict.fromkeys(self._waiting, now - _UNHEARD * self._alone_seconds)
        self.notify_alone()
        with suppress(Exception):
            self._backing.close()

    # ---- the thread

    def _run_thread(self) -> None:
        while not self._closing:
            self._wake.wait(min(1.0, self.due_in()))
            self._wake.clear()
            try:
                self.round()
            except Exception as error:  # the agent continues after any error, alone if necessary
                self._notice(f"reporting to the other hosts failed ({type(error).__name__}: {error})")
                time.sleep(QUIET_BEAT_SECONDS)

    def due_in(self) -> float:
        """Return the number of seconds until the next post is due."""
        with self._lock:
            urgent = self._waiting or (self._ending is not None and not self._end_is_known)
            urgent = urgent or self._posted_as != _news(self._state)
            beat = _AGAIN_SECONDS if urgent else self._beat()
            return max(LOOK_SECONDS, self._posted_at + beat - self._clock())

    def round(self) -> None:
        """If a report is due, post it. Process the pending work of the coordinator within this agent."""
        if self.due_in() <= LOOK_SECONDS and not self._refused:
            self._post()
        self._step()
        self.notify_alone()

    def _post(self) -> None:
        report = self.report()
        self._posted_at = self._clock()
        try:
            reply = self._backing.post(report)
        except Refused as error:
            self._refused, self._end_is_known = str(error), True
            self._notice(f"{self._refused}; this agent sends its own notifications")
            return
        self._is_unanswered = reply is None
        if reply is None:
            return
        if reply.coordinator not in ("", self._agent):
            self._leave(reply.ledger, reply.escalates)
        if reply.refused and reply.refused != getattr(self._reply, "refused", ""):
            self._notice(reply.refused)
        if (name := reply.names.get(self._host_id, self._host)) != self._host:
            self._notice(
                f"another host of the run is also named {self._host}; this host is called {name} from now on"
            )
            self._host = name
            self._renamed(name)
        with self._lock:
            self._reply = reply
            if reply.refused:
                return
            self._answered_at = self._clock()
            acknowledged = reply.acknowledged.get(self._agent, 0)
            self._end_is_known = self._ended_in is not None and self._ended_in <= acknowledged
            for name, (incident, number) in self._posted.items():
                # An incident that changed after the post must be posted again.
                if number <= acknowledged and self._mine.get(name) is incident:
                    self._waiting.pop(name, None)
            self.paces.acknowledged(acknowledged)
            self._remember(reply.ledger)

    def _remember(self, ledger: Sequence[Incident]) -> None:
        known = joined_ledgers([self._ledger.values(), map(in_brief, self._alone.values()), ledger])
        now, wall = self._clock(), self._wall()
        mine = {
            qualified(self._agent, incident) for incident in self._mine.values() if incident.status == "open"
        }
        self._ledger = kept_ledger(known, wall, mine)
        self._alone.clear()
        sent = {(alias, incident.status) for incident in known for alias in incident.aliases}
        self._is_known = all(
            (qualified(self._agent, incident), incident.status) in sent for incident in self._mine.values()
        )
        over = {alias for incident in known if incident.status == "resolved" for alias in incident.aliases}
        for name, since in list(self._closed_at.items()):
            incident = self._mine.get(name)
            if incident is None or incident.status == "open":
                del self._closed_at[name]  # the incident was reopened
            elif qualified(self._agent, incident) in over or now - since > KEPT_SECONDS:
                del self._closed_at[name], self._mine[name]
                self._posted.pop(name, None)
                self._names.pop(name, None)

    def report(self) -> AgentReport:
        """Return a report that contains the agent's current state and all its incidents."""
        with self._lock:
            self._number += 1
            if self._ending is not None and self._ended_in is None:
                self._ended_in = self._number
            for name, incident in self._mine.items():
                if name not in self._posted or self._posted[name][0] is not incident:
                    self._posted[name] = incident, self._number
            now, state = self._clock(), self._state
            facts = msgspec.structs.asdict(state)
            stacks_at = facts.pop("stacks_at")
            self._posted_as = _news(state)
            incidents = [msgspec.structs.replace(incident, stacks=None) for incident in self._mine.values()]
            return AgentReport(
                key=self._identity.key,
                agent=self._agent,
                host=self._host,
                host_id=self._host_id,
                address=self._address(),
                node=self._identity.node,
                run=self._run,
                attempt=self._identity.attempt,
                number=self._number,
                started_age=now - self._started,
                clock=self._wall(),
                expected=self._identity.agents,
                **facts,
                stacks_age=now - stacks_at if state.stacks is not None else 0.0,
                paces=self.paces.report(self._number),
                incidents=incidents,
                hosts=self._reply.hosts if self._reply is not None else {},
                ledger=joined_ledgers([self._ledger.values(), map(in_brief, self._alone.values())]),
                ending=self._ending,
                ended_age=now - self._ended_at if self._ending is not None else None,
            )

    def _beat(self) -> float:
        if self._is_unanswered and is_quiet(self._state.quiet, self._state.threshold):
            return QUIET_BEAT_SECONDS  # otherwise, this silent host would be blamed for the stall
        least = self._reply.beat if self._reply is not None else 0.0
        beat = beat_of(self._state.quiet, self._state.threshold)
        # The coordinator can end when all hosts know which notifications were sent.
        is_awaited = not self._is_known and self._clock() - self._changed_at < _SENDING_SECONDS
        return max(least, min(beat, _SENDING_BEAT) if is_awaited else beat)


def _news(state: State) -> tuple[str, bool]:
    """Return values that are posted immediately if they change: the ranks, and whether the host is quiet."""
    return state.ranks, is_quiet(state.quiet, state.threshold)
