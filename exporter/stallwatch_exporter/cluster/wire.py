"""Messages between the agents of one run and its coordinator, as JSON; unknown keys are ignored.

Durations are ages in seconds, measured by the sender's monotonic clock, because the wall clocks of hosts
differ. Every report contains all that its host knows of open incidents, so that any agent can replace the
coordinator.
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

VERSION = 1
MOST_BYTES = 1 << 20  #: largest size of a post or a reply before compression
MOST_RANKS = 4096  #: maximum number of ranks on one host
MOST_REPORTS = 256  #: maximum number of reports (agents of one host) in one post
BEAT_SECONDS = 10.0  #: seconds between two posts while the run makes progress
QUIET_BEAT_SECONDS = 1.0  #: minimum seconds between two posts as a quiet run approaches its threshold
SILENT_BEATS = 3.0  #: a host without a post for this many beats is silent
_BEATS_BEFORE = 8.0  # number of posts from now to the threshold, and as many after it


def is_quiet(quiet: float, threshold: float | None) -> bool:
    """Return whether a spell without a sign of life is long enough for a closer look."""
    return threshold is not None and 3 * quiet >= threshold


def beat_of(quiet: float, threshold: float | None) -> float:
    """Return the seconds between two posts, which decrease as a quiet period approaches the threshold."""
    if threshold is None or not is_quiet(quiet, threshold):
        return BEAT_SECONDS
    return min(BEAT_SECONDS, max(QUIET_BEAT_SECONDS, abs(threshold - quiet) / _BEATS_BEFORE))


class Paces(msgspec.Struct, frozen=True):
    """Durations, in seconds, of one rank's steps that no coordinator has acknowledged."""

    rank: int
    before: int  #: number of earlier steps of this rank, by which a receiver recognizes repeats
    steps: list[int]
    own: list[float]  #: the rank's own part of each step, without its waits for others
    whole: list[float]
    tokens: list[int] = []  #: tokens of each step; empty if they are not counted


class AgentReport(msgspec.Struct, kw_only=True):
    """State of one agent, which watches one host, or one rank under ``srun … stallwatch run``."""

    key: str  #: key of the run
    agent: str  #: unique id: host id, process id and start time of the agent
    host: str
    host_id: str  #: hash of hostname and boot id, because hosts may have the same name
    address: str = ""  #: HOST:PORT of this agent's own coordinator; empty if it has none
    members: int = 0  #: `digest_of` the members that its host knows
    node: int | None = None
    run: str  #: name of the run on this host
    attempt: int = 0
    number: int  #: number of this report, increasing
    age: float = 0.0  #: seconds for which the report was held on its way; the other ages include it
    started_age: float = 0.0
    clock: float = 0.0  #: Unix seconds by the sender's clock, only to estimate its offset
    expected: int | None = None  #: number of agents of the run, if its scheduler gives it
    ranks: str = ""  #: ranks on this host, folded, such as ``8-15``
    world: int = 0
    phase: Phase = "train"
    step: int | None = None
    quiet: float = 0.0  #: seconds since the last sign of life
    threshold: float | None = None  #: learned threshold of the phase, in seconds
    ruling: Ruling | None = None  #: ruling on the current quiet period
    stacks: StallStacks | None = None  #: newest stack snapshot of the ranks in this quiet period
    stacks_age: float = 0.0
    paces: list[Paces] = []
    #: Open incidents without stacks, and closed ones until the ledger shows the run's incident as closed.
    incidents: list[Incident] = []
    #: Hosts of the run with their folded ranks, from the last reply: the agent that takes over notices if a
    #: host was lost together with the coordinator.
    hosts: dict[str, str] = {}
    ledger: list[Incident] = []  #: known incidents of the run for which notifications were sent
    ending: Ending | None = None
    ended_age: float | None = None


_AGES = ("started_age", "quiet", "stacks_age", "clock", "ended_age")


def aged(report: AgentReport, seconds: float) -> AgentReport:
    """Return a report as its agent would write it this many `seconds` later."""
    ages = {name: at + seconds for name in _AGES if (at := getattr(report, name)) is not None}
    return msgspec.structs.replace(report, **ages)


class Post(msgspec.Struct, kw_only=True):
    """All reports that one host sends at once, one for each of its agents."""

    v: int = VERSION
    reports: list[AgentReport]


class Member(msgspec.Struct, frozen=True):
    """An agent that can be the coordinator."""

    host_id: str
    host: str
    address: str
    node: int | None = None


def digest_of(members: Sequence[Member]) -> int:
    """Return a number by which a coordinator recognizes what a host knows: the list is long."""
    return zlib.crc32(msgspec.json.encode(members))


class Reply(msgspec.Struct, kw_only=True):
    """The coordinator's answer to a post."""

    v: int = VERSION
    coordinator: str = ""  #: the agent or the service that merges
    acknowledged: dict[str, int] = {}  #: by agent: number of the newest report whose incidents were merged
    beat: float = QUIET_BEAT_SECONDS  #: minimum seconds between two posts of a host without news
    members: list[Member] | None = None  #: null if the host already knows the members
    hosts: dict[str, str] = {}  #: folded ranks, by host, of the hosts that have not ended
    names: dict[str, str] = {}  #: by host id, the names of hosts that share their name with another one
    ruling: Ruling | None = None  #: ruling of the run, which combines the rulings of its hosts
    #: Sent incidents of the run, open or most recently closed, in brief: the next coordinator does not send
    #: these again.
    ledger: list[Incident] = []
    escalates: list[str] = []  #: ids of the incidents whose escalation the coordinator has planned
    refused: str = ""  #: reason why the report was refused, in one line for the agent's terminal
