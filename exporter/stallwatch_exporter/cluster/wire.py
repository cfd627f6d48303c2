"""JSON messages between the agents of a run and the run's coordinator. Unknown keys are ignored.

Times are sent as ages in seconds, measured by the sender's monotonic clock, because the hosts' wall clocks
differ. Every report contains everything that its host knows about open incidents, so any agent can replace
the coordinator.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.quiet_periods import Ruling
from stallwatch_rules.stacks.records import StallStacks

VERSION = 2
MOST_BYTES = 1 << 20  #: maximum size of a post or a reply before compression, in bytes
MOST_RANKS = 4096  #: maximum number of ranks on one host
MOST_REPORTS = 256  #: maximum number of reports in one post, one for each agent of a host
BEAT_SECONDS = 10.0  #: seconds between two posts while the run makes progress
QUIET_BEAT_SECONDS = 1.0  #: minimum post interval, in seconds, as a quiet run approaches its threshold
SILENT_BEATS = 3.0  #: number of beats without a post after which a host counts as silent
_BEATS_BEFORE = 8.0  # divisor: the next post is due after 1/8 of the time until or since the threshold


def is_quiet(quiet: float, threshold: float | None) -> bool:
    """Return whether the time without a sign of life is long enough to require closer monitoring."""
    return threshold is not None and 3 * quiet >= threshold


def beat_of(quiet: float, threshold: float | None) -> float:
    """Return the seconds between two posts. This interval shrinks as the quiet time nears the threshold."""
    if threshold is None or not is_quiet(quiet, threshold):
        return BEAT_SECONDS
    return min(BEAT_SECONDS, max(QUIET_BEAT_SECONDS, abs(threshold - quiet) / _BEATS_BEFORE))


class Paces(msgspec.Struct, frozen=True):
    """Durations, in seconds, of the unacknowledged steps of one rank."""

    rank: int
    before: int  #: number of earlier steps of this rank, used by receivers to detect repeated steps
    steps: list[int]
    own: list[float]  #: duration of each step, excluding the time in which the rank waits for other ranks
    whole: list[float]
    tokens: list[int] = []  #: tokens of each step, or empty if they are not counted


class AgentReport(msgspec.Struct, kw_only=True):
    """Report from one agent, which watches a host or, under ``srun … stallwatch run``, a single rank."""

    key: str  #: key of the run
    agent: str  #: unique ID: host ID, process ID, and start time of the agent
    host: str
    host_id: str  #: ID from `host.host_id`, because several hosts can have the same name
    address: str = ""  #: HOST:PORT of this agent's own coordinator, or empty if it has none
    members: int = 0  #: digest of the members that this host knows, from `digest_of`
    node: int | None = None
    run: str  #: name of the run on this host
    attempt: int = 0
    number: int  #: number of this report, which increases with each report
    age: float = 0.0  #: Seconds for which the report was delayed. The other ages include this delay.
    started_age: float = 0.0
    clock: float = 0.0  #: Unix seconds on the sender's clock, used only to estimate the clock's offset
    expected: int | None = None  #: number of the run's agents, or ``None`` if no scheduler provides it
    ranks: str = ""  #: folded ranks on this host, such as ``8-15``
    world: int = 0
    phase: Phase = "train"
    step: int | None = None
    quiet: float = 0.0  #: seconds since the last sign of life
    threshold: float | None = None  #: learned threshold of the phase, in seconds
    ruling: Ruling | None = None  #: ruling on the current quiet period
    stacks: StallStacks | None = None  #: newest stack snapshot of the ranks in this quiet period
    stacks_age: float = 0.0
    paces: list[Paces] = []
    #: Open incidents without stacks, and closed incidents until they are closed in the ledger.
    incidents: list[Incident] = []
    #: Folded ranks, by host of the run, from the last reply. With this data, a new coordinator detects hosts
    #: that were lost together with the previous coordinator.
    hosts: dict[str, str] = {}
    ledger: list[Incident] = []  #: known incidents of the run for which notifications were sent
    ending: Ending | None = None
    ended_age: float | None = None


_AGES = ("started_age", "quiet", "stacks_age", "clock", "ended_age")


def aged(report: AgentReport, seconds: float) -> AgentReport:
    """Return the report with ages increased by `seconds`, as if its agent had written the report later."""
    ages = {name: at + seconds for name in _AGES if (at := getattr(report, name)) is not None}
    return msgspec.structs.replace(report, **ages)


class Post(msgspec.Struct, kw_only=True):
    """All reports that a host sends together, one report for each of its agents."""

    v: int = VERSION
    reports: list[AgentReport]


class Member(msgspec.Struct, frozen=True):
    """An agent that can be the coordinator."""

    host_id: str
    host: str
    address: str
    node: int | None = None


def digest_of(members: Sequence[Member]) -> int:
    """Return a checksum of a list. A list is sent only to hosts whose list has a different checksum."""
    return zlib.crc32(msgspec.json.encode(members))


class Reply(msgspec.Struct, kw_only=True):
    """The coordinator's answer to a post."""

    v: int = VERSION
    coordinator: str = ""  #: agent or service that merges the reports
    acknowledged: dict[str, int] = {}  #: number of the newest merged report, by agent
    beat: float = QUIET_BEAT_SECONDS  #: minimum interval, in seconds, between two posts if nothing changed
    members: list[Member] | None = None  #: ``None`` if the host has the current list
    hosts: dict[str, str] = {}  #: folded ranks of the hosts that have not ended, by host
    names: dict[str, str] = {}  #: unique names for hosts that have the same name, by host ID

    #: Ruling of the run, which combines the rulings of its hosts.
    ruling: Ruling | None = None
    #: Shortened incidents of the run that were sent and are open or recently closed. The next coordinator
    #: does not resend these incidents.
    ledger: list[Incident] = []
    escalates: list[str] = []  #: IDs of the incidents whose escalation the coordinator has planned
    refused: str = ""  #: reason for the refusal of the report, as one line for the agent's terminal
