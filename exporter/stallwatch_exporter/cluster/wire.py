"""Messages between the agents of one run and its coordinator. JSON; unknown keys are ignored.

Lengths of time are ages in seconds, measured by the sender's monotonic clock: wall clocks of hosts differ.
Every report holds all that its host knows of open incidents, so a coordinator can be replaced at any time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.patience import Ruling
from stallwatch_rules.stacks.records import StallStacks

VERSION = 1
MOST_BYTES = 1 << 20  #: of a post or a reply, before compression
MOST_RANKS = 4096  #: of one host
MOST_REPORTS = 256  #: agents of one host in one post
BEAT_SECONDS = 10.0  #: between two posts while all is well
QUIET_BEAT_SECONDS = 1.0  #: as a quiet run approaches its threshold
SILENT_BEATS = 3.0  #: a host without a post for this many beats is silent
_BEATS_BEFORE = 8.0  # from now to the threshold, and as many after it


def is_quiet(quiet: float, threshold: float | None) -> bool:
    """Return whether a spell without a sign of life is long enough for a closer look."""
    return threshold is not None and 3 * quiet >= threshold


def beat_of(quiet: float, threshold: float | None) -> float:
    """Return the seconds between two posts: fewer as a quiet spell approaches the threshold."""
    if threshold is None or not is_quiet(quiet, threshold):
        return BEAT_SECONDS
    return min(BEAT_SECONDS, max(QUIET_BEAT_SECONDS, abs(threshold - quiet) / _BEATS_BEFORE))


class Paces(msgspec.Struct, frozen=True):
    """The seconds that steps of one rank took: those that no coordinator has acknowledged."""

    rank: int
    before: int  #: steps of this rank before these, by which a receiver recognizes repeats
    steps: list[int]
    own: list[float]  #: the rank's own part, without its waits for others
    whole: list[float]
    tokens: list[int] = []  #: of each step; empty: not counted


class AgentReport(msgspec.Struct, kw_only=True):
    """One agent's state, of one host or of one rank under ``srun … stallwatch run``."""

    key: str  #: of the run
    agent: str  #: unique: host id, process and start of the agent
    host: str
    host_id: str  #: hostname and boot id, hashed: hosts may have the same name
    address: str = ""  #: HOST:PORT of this agent's own coordinator; empty if it has none
    members: int = 0  #: `digest_of` those that its host knows
    node: int | None = None
    run: str  #: the label
    attempt: int = 0
    number: int  #: of this report, counted up
    age: float = 0.0  #: of the report itself, if it was held on its way; the other ages include it
    started_age: float = 0.0
    clock: float = 0.0  #: Unix seconds by the sender's clock: only to estimate its offset
    expected: int | None = None  #: agents of the run, if its scheduler gives the number
    ranks: str = ""  #: on this host, folded, such as ``8-15``
    world: int = 0
    phase: Phase = "train"
    step: int | None = None
    quiet: float = 0.0  #: seconds since the last sign of life
    threshold: float | None = None  #: the learned one of the phase
    ruling: Ruling | None = None  #: of the current quiet spell
    stacks: StallStacks | None = None  #: of its newest inspection of the ranks in this spell
    stacks_age: float = 0.0
    paces: list[Paces] = []
    #: Open incidents, and closed ones until the ledger shows the run's incident as closed. No stacks.
    incidents: list[Incident] = []
    #: The run's hosts with their folded ranks, as the last reply named them: the agent that takes over
    #: notices if a host was lost together with the coordinator.
    hosts: dict[str, str] = {}
    ledger: list[Incident] = []  #: the run's incidents with sent messages, as far as it knows
    ending: Ending | None = None
    ended_age: float | None = None


_AGES = ("started_age", "quiet", "stacks_age", "clock", "ended_age")


def aged(report: AgentReport, seconds: float) -> AgentReport:
    """Return a report as its agent would write it this many `seconds` later."""
    ages = {name: at + seconds for name in _AGES if (at := getattr(report, name)) is not None}
    return msgspec.structs.replace(report, **ages)


class Post(msgspec.Struct, kw_only=True):
    """Everything that one host sends at once: one report for each of its agents."""

    v: int = VERSION
    reports: list[AgentReport]


class Member(msgspec.Struct, frozen=True):
    """One agent that can coordinate."""

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
    coordinator: str = ""  #: the agent, or the service, that merges
    acknowledged: dict[str, int] = {}  #: by agent: the newest report whose incidents were taken
    beat: float = QUIET_BEAT_SECONDS  #: the least time between two posts of a host without news
    members: list[Member] | None = None  #: null: those that the host knows
    hosts: dict[str, str] = {}  #: that have not ended: folded ranks, by host
    names: dict[str, str] = {}  #: by host id: another name for a host that has the name of another one
    ruling: Ruling | None = None  #: of the run: its hosts together decide what none can alone
    #: The run's incidents with sent messages, open or closed last, in brief: the next coordinator knows from
    #: them what not to send again.
    ledger: list[Incident] = []
    escalates: list[str] = []  #: ids of the incidents whose escalation the coordinator has planned
    refused: str = ""  #: why the report was not taken, in one line for the agent's terminal
