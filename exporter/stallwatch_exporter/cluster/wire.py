"""What agents of one run and its coordinator send each other. JSON; keys that are unknown are ignored.

Lengths of time are ages in seconds, measured by the sender's monotonic clock: wall clocks of hosts differ.
Every report holds all that its host knows of what is open, so a coordinator can be replaced at any moment.
"""

from __future__ import annotations

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
QUIET_BEAT_SECONDS = 1.0  #: as a quiet run comes to its threshold
SILENT_BEATS = 3.0  #: without a post for so many beats, a host is silent
_BEATS_BEFORE = 8.0  # from now to the threshold, and as many after it


def is_quiet(quiet: float, threshold: float | None) -> bool:
    """Return whether a spell without a sign of life is long enough to look closer."""
    return threshold is not None and 3 * quiet >= threshold


def beat_of(quiet: float, threshold: float | None) -> float:
    """Return the seconds between two posts: the closer a quiet spell is to the threshold, the fewer."""
    if threshold is None or not is_quiet(quiet, threshold):
        return BEAT_SECONDS
    return min(BEAT_SECONDS, max(QUIET_BEAT_SECONDS, abs(threshold - quiet) / _BEATS_BEFORE))


class Paces(msgspec.Struct, frozen=True):
    """How long the steps of one rank took, in seconds: those that no coordinator has acknowledged."""

    rank: int
    before: int  #: steps of this rank that its agent took before these: who gets them again knows it
    steps: list[int]
    own: list[float]  #: its own part, without what it waited for others
    whole: list[float]
    tokens: list[int] = []  #: that it was of; empty: not counted


class AgentReport(msgspec.Struct, kw_only=True):
    """One agent's state, of one host or of one rank under ``srun … stallwatch run``."""

    key: str  #: of the run
    agent: str  #: unique: host id, process and start of the agent
    host: str
    host_id: str  #: hostname and boot id, hashed: hosts may have the same name
    address: str = ""  #: HOST:PORT of this agent's own coordinator; empty if it has none
    node: int | None = None
    run: str  #: the label
    attempt: int = 0
    number: int  #: of this report, counted up
    age: float = 0.0  #: of the report itself, where it was kept on its way; the other ages count it
    started_age: float = 0.0
    clock: float = 0.0  #: Unix seconds by the sender's clock: only to estimate by how much that is off
    expected: int | None = None  #: agents of the run, if its scheduler says
    ranks: str = ""  #: that live here, folded, such as ``8-15``
    world: int = 0
    phase: Phase = "train"
    step: int | None = None
    quiet: float = 0.0  #: seconds since the last sign of life
    threshold: float | None = None  #: the learnt one of the phase
    ruling: Ruling | None = None  #: of the quiet spell that is now
    stacks: StallStacks | None = None  #: of its newest look at the ranks in this spell
    stacks_age: float = 0.0
    paces: list[Paces] = []
    #: The open ones, and those that closed until the ledger shows the run's incident as closed. No stacks.
    incidents: list[Incident] = []
    #: The run's hosts with their folded ranks, as the last reply named them: a host that is lost together
    #: with the coordinator is missed by whichever agent takes over.
    hosts: dict[str, str] = {}
    ledger: list[Incident] = []  #: the run's incidents of which messages left, as far as it knows
    ending: Ending | None = None
    ended_age: float | None = None


_AGES = ("started_age", "quiet", "stacks_age", "clock", "ended_age")


def aged(report: AgentReport, seconds: float) -> AgentReport:
    """Return a report as its agent would write it so many seconds later."""
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


class Reply(msgspec.Struct, kw_only=True):
    """What the coordinator answers to a post."""

    v: int = VERSION
    coordinator: str = ""  #: the agent, or the service, that merges
    acknowledged: dict[str, int] = {}  #: by agent: the newest report whose incidents are taken over
    beat: float = QUIET_BEAT_SECONDS  #: at least, between two posts of a host that have no news
    members: list[Member] = []
    hosts: dict[str, str] = {}  #: that have not ended: folded ranks, by host
    ruling: Ruling | None = None  #: of the run, where all its hosts together decide what none can alone
    #: The run's incidents of which messages left, the open ones and the last that closed, in brief: the next
    #: coordinator knows by them what not to send again.
    ledger: list[Incident] = []
    refused: str = ""  #: why the report was not taken, in one line for the agent's terminal
