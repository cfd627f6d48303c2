"""When is a run stuck? When it is quiet for longer than this phase of this run ever was, and then some.

A pure clockwork: it learns from every sign of life, and knows the threshold of each phase. If the ranks can
be looked at, passing the learnt threshold is a suspicion (`suspicion`), and the looks decide how long this
quiet spell may last (`rule`). Otherwise the thresholds alone decide, with more patience for what logs omit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.rhythm import ENOUGH, Rhythm
from stallwatch_exporter.watching.rounds import Rounds
from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.patience import LONG, SHORT, Status

#: How patient the start is with a phase, in multiples of ``[stall] start_seconds``. Large models load for an
#: hour, evaluations and saves show no sign of life in most logs, rollouts of 69 minutes are on record, and so
#: are three silent hours from a trainer's last word to the end of its launcher.
PATIENCE: Mapping[Phase, float] = {"init": 2, "eval": 4, "save": 2, "rollout": 4, "idle": 8}
_WARM_UP = 2  # steps after the first one that may still compile, allocate and record
_MOST_STEPS = 4  # waits for several steps may be longer, up to so many times
_BLIND_PATIENCE = 4  # with a log's first interval: it may hold a rollout that nothing tells of
_EXPLAINED = ("eval", "save", "rollout", "weight-sync")
_BRIEF = 2.8  # floors, while a log has shown few steps: a stall is reported within 90 s
_SEEN = 2  # evaluations, saves and the like, after which their length is known
_FLOORS: Mapping[Phase, float] = {"init": LONG, "eval": SHORT, "save": LONG, "weight-sync": SHORT}


class StallState(msgspec.Struct, frozen=True):
    """What the watch knows at one moment."""

    stalled: bool
    phase: Phase
    step: int | None
    since: float  #: time of the last sign of progress
    seconds: float  #: quiet for so long
    threshold: float
    episode: int  #: 1, 2, … of this stall, or of the last one; 0 before the first
    learning: bool = False  #: too little was seen for a rhythm: the threshold is what is allowed until then


class Over(msgspec.Struct, frozen=True):
    """A quiet spell that ended by itself."""

    seconds: float
    stalled: bool  #: it was reported as a stall


class StallWatch:
    """Learns how long each phase is quiet between two signs of progress."""

    def __init__(self, settings: ExporterSettings, started: float) -> None:
        self._settings = settings
        self._phase: Phase = "init"
        self.blind = False  #: only a log tells of progress, which may be silent about what is done
        self._step: int | None = None
        self._stride = 1  # steps from one sign of progress to the next: a log may tell of every tenth
        self._last = started
        self._stalled = False
        self._episode = 0
        self._warm_up = _WARM_UP
        self._warmed = 0.0  # the longest of these
        self._trained = 0.0  # seconds from one step to another, of this run, as far as anybody watched
        self._rhythms: dict[Phase, Rhythm] = {}
        self._thresholds: dict[Phase, float] = {}
        self._suspected = settings.stall_floor_seconds  # by the steps alone
        self._learning: set[Phase] = set()  # phases whose threshold is not their rhythm's
        self._usual: dict[Phase, float] = {}  # the same, for a phase that no pause was survived in
        self._to_learn: set[Phase] = {"init", "train"}
        self._rounds = Rounds()
        self._seen: Counter[Phase] = Counter()  # how often evaluations, saves and the like came to their end
        self._evaluated = False  # an evaluation is over, and no step was made since
        self._ruled: tuple[float, Status, float] | None = (
            None  # what looks say of this quiet spell: see `rule`
        )
        self.sighted = False  #: looks at the ranks have said something
        self.spell = 0  #: number of the quiet spell; each sign of life begins another
        self.over: Over | None = None  #: the last one that was judged or reported, once it is over

    def observe(self, time: float, phase: Phase, step: int | None = None) -> None:
        """A sign of progress: a further step, a batch of an evaluation, another phase.

        The wait before it belongs to the phase that the run was in, not to the one it enters.
        """
        waited, due = time - self._last, self._rounds.due
        if phase == "train":
            self._rounds.trained()
        elif self._phase == "train" and phase in _EXPLAINED:
            self._rounds.paused(announced=waited <= max(self._rhythm("train").within[-1:], default=0.0))
        if self._rounds.due != due:
            self._to_learn.add("train")
        if self._ruled is not None or self._stalled:
            self.over = Over(max(0.0, waited), self._stalled)
        self.spell += 1
        _, status, usual = self._ruled or (0.0, "alive", math.inf)
        # The steps do not become slower by what was seen to be something else.
        if waited > 0 and status != "paused" and (self._phase != "train" or waited <= usual):
            after = self._evaluated and self._phase == phase == "train" and not self.blind
            if after and self.rhythm_known:  # such as metrics, before the next step
                self._rhythm("eval").learn(waited, over=True)
                self._to_learn.add("eval")
            else:
                self._learn(waited, phase)
        if phase != self._phase and self._phase in _EXPLAINED:
            self._seen[self._phase] += 1
        self._evaluated = phase == "train" and (
            self._phase == "eval" or (self._evaluated and step in (None, self._step))
        )
        self._ruled = None
        self._last = time
        self._stalled = False
        self._phase = phase
        if step is not None:
            stride = max(1, step - self._step) if self._step is not None else 1
            if stride != self._stride:
                self._to_learn.add("train")
            self._step, self._stride = step, stride
        if phase not in self._thresholds:
            self._to_learn.add(phase)

    def check(self, now: float, *, begin: bool = True) -> StallState:
        """The state at `now`; a stall begins with the first check that finds one and may `begin` it."""
        quiet = max(0.0, now - self._last)
        threshold = self._ruled[0] if self._ruled is not None else self._alone[self._phase]
        if begin and quiet > threshold and not self._stalled:
            self._stalled = True
            self._episode += 1
        learning = self._phase in self._learning and self._ruled is None
        return StallState(
            self._stalled, self._phase, self._step, self._last, quiet, threshold, self._episode, learning
        )

    def rule(self, limit: float, status: Status, *, usual: float = math.inf) -> None:
        """Let this quiet spell last until `limit`, in seconds; the next sign of life ends that.

        If the spell lasts longer than `usual`, its length says nothing about the steps of the run.
        """
        self._ruled = (limit, status, usual)

    @property
    def suspicion(self) -> float:
        """Seconds of quiet after which this phase is suspected to be stuck."""
        if self.rhythm_known and self._phase == "train":
            self._learn_all()
            return self._suspected
        rhythm, settings = self._rhythm(self._phase), self._settings
        learnt = settings.stall_factor * rhythm.longest
        return max(settings.stall_floor_seconds, learnt, rhythm.survived(settings.stall_start_seconds))

    @property
    def rhythm_known(self) -> bool:
        """Whether enough steps were seen to know how long one takes."""
        return len(self._rhythm("train").within) >= ENOUGH

    @property
    def known_quiet(self) -> float | None:
        """The longest quiet time of this phase that ended by itself; ``None`` while it was hardly seen."""
        phase: Phase = "eval" if self._evaluated else self._phase
        return self._rhythm(phase).longest if self._seen[phase] >= _SEEN else None

    def pause(self, seconds: float) -> None:
        """The watch itself stood still (a suspended machine, Ctrl-Z): that time tells nothing of the run."""
        self._last += seconds

    def take_over(self, durations: Mapping[Phase, Sequence[float]], last_sign: float) -> None:
        """Begin with a run that was up before: the rhythm in its log, and its last sign of life."""
        for phase, seconds in durations.items():
            rhythm = self._rhythm(phase)
            (rhythm.within if phase == "train" else rhythm.ends).extend(seconds)
            self._to_learn.add(phase)
        if durations.get("train"):
            self._warm_up = 0
            self._trained = sum(durations["train"])
        self._last = last_sign
        self._stalled = False

    @property
    def last_sign(self) -> float:
        """When there was progress last."""
        return self._last

    @property
    def longest(self) -> float:
        """The longest that this phase was quiet without being stalled, of the last times."""
        return self._rhythm(self._phase).longest

    @property
    def thresholds(self) -> dict[Phase, float]:
        """The threshold of each phase met until now, in seconds: what is usually reported as a stall."""
        found = {phase: self._usually(phase, alone) for phase, alone in self._alone.items()}
        if self._ruled is not None and self._ruled[0] != math.inf:
            found[self._phase] = self._ruled[0]
        return found

    def _usually(self, phase: Phase, alone: float) -> float:
        if not self.sighted:
            return alone
        settings, rhythm = self._settings, self._rhythm(phase)
        if phase == "train":
            known = self.rhythm_known
            return self._suspected if known else max(LONG * settings.stall_floor_seconds, self._suspected)
        if phase not in _FLOORS:
            return alone
        learnt = max(settings.stall_floor_seconds, settings.stall_factor * rhythm.longest)
        known = phase == "eval" and self._seen[phase] >= _SEEN
        return learnt if known else max(_FLOORS[phase] * settings.stall_floor_seconds, learnt)

    @property
    def _alone(self) -> dict[Phase, float]:
        """The thresholds that hold while nobody can be looked at."""
        self._learn_all()
        return self._thresholds

    def _learn_all(self) -> None:
        # Put off until someone asks: steps may come by the thousand. They come first: others ask for theirs.
        for phase in sorted(self._to_learn, key=lambda phase: phase != "train"):
            self._thresholds[phase] = self._threshold(phase)
            if phase == "train":
                rhythm, settings = self._rhythm(phase), self._settings
                floor, start = settings.stall_floor_seconds, settings.stall_start_seconds
                learnt = rhythm.threshold(
                    floor=floor, start=start, factor=settings.stall_factor, known=True, steps=True
                )
                self._suspected = max(learnt, rhythm.survived(start))
        self._to_learn.clear()

    def _rhythm(self, phase: Phase) -> Rhythm:
        return self._rhythms.setdefault(phase, Rhythm())

    def _learn(self, waited: float, phase: Phase) -> None:
        """The run was quiet for so long, and is in `phase` now."""
        before = self._phase
        rhythm = self._rhythm(before)
        self._to_learn.add(before)
        if before == "init":
            self._to_learn.add("train")
        if before == phase == "train" and not self._stalled:
            self._trained += waited
        if before == phase == "train" and self._warm_up and not self._stalled:
            self._warm_up -= 1
            self._warmed = max(self._warmed, waited)
        elif self._stalled and not (before == "train" and phase in _EXPLAINED):
            rhythm.paused(waited)
        elif before == phase and waited > self._usual.get(before, math.inf):
            rhythm.paused(waited)  # not told a second time, but no rhythm either
        else:  # over: also a silent evaluation that is only told of when it is over
            rhythm.learn(waited, over=before != phase)

    def _threshold(self, phase: Phase) -> float:
        settings, rhythm = self._settings, self._rhythm(phase)
        start = settings.stall_start_seconds * PATIENCE.get(phase, 1.0)
        if phase == "train":
            start *= min(_MOST_STEPS, self._stride)
            known = len(rhythm.within) >= ENOUGH
            # The first sign came after as many steps as the next ones will: a log of a line in half an hour.
            usual = max(self._rhythm("init").longest, self._warmed, rhythm.longest)
            if self.blind:
                start *= 1 if self._warmed or rhythm.longest else _BLIND_PATIENCE
                usual = max(usual, rhythm.longest_pause)
        else:
            known = len(rhythm.ends) >= ENOUGH
            usual = rhythm.longest
            # It shows signs of life: no need to wait for its end. Loading shows none: what is seen there are
            # launches, by the ranks of several attempts.
            if phase != "init" and len(rhythm.within) >= ENOUGH:
                start = settings.stall_start_seconds
        floor = settings.stall_floor_seconds
        brief = self.blind and phase == "train" and self._trained < floor
        if brief:
            # Its first evaluation may be what is quiet: nobody knows yet how often this run is, and how long.
            floor *= _BRIEF
        # A log seldom says that an evaluation is over: it may be the steps that are quiet.
        steps = self._thresholds.get("train", 0.0) if self.blind and phase in _EXPLAINED else 0.0
        own = rhythm.threshold(
            floor=floor,
            start=start if known else max(start, settings.stall_factor * usual),
            factor=settings.stall_factor,
            known=known,
            steps=phase == "train",
        )
        if self.blind and phase == "train" and self._rounds.due:
            # It may be in an evaluation, whose rhythm counts then, as if it had said so.
            steps = min(settings.stall_start_seconds, self._threshold("eval"))
        self._usual[phase] = max(own, steps)
        threshold = max(own, steps, rhythm.survived(start))
        self._learning.discard(phase)
        if threshold == own and (not known or (brief and own == floor)):
            self._learning.add(phase)
        return threshold
