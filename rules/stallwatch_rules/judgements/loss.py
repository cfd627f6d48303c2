"""Based on printed values, assess losses that jump, diverge, or freeze, and gradients that are zero.

Each assessment compares the run with itself. The first values of a run are not a baseline, because a first
loss can have any value. Single values of a noisy run are not significant. A value must differ clearly from
all values shortly before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby, pairwise, takewhile
from statistics import median

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import message
from stallwatch_rules.progress.curve import Point

JUMP = 2.0  #: a loss above this multiple of its baseline has jumped
JUMP_BY = 1.0  #: minimum rise that counts as a jump, because small losses vary by multiples
RISE, RISE_BY = 1.5, 0.5  #: minimum ratio to the baseline, and minimum rise, of a loss that stays high
NATS = 1.5  #: minimum rise in an excerpt: with cross-entropy, predictions become e^1.5 times less certain
BEYOND = 100.0  #: a loss above this multiple of its baseline needs no further evidence
NOISE = 6.0  #: minimum ratio of a jump to the usual noise, because noisy losses jump often
ABOVE_ALL = 1.3  #: minimum ratio of a jump to the highest loss shortly before the jump
MID_RUN = 10  #: a first step beyond this multiple of the step distance is not the run's first step
FEW = 3  #: number of points on each side of a step reset that distinguish a new run from a new epoch
SHORT = 30  #: minimum number of points of a curve that is not an excerpt
NEAR_THE_END = 10  #: number of last points in which a jump is reported even if the loss is falling again
#: A loss below this multiple of the best losses is still near them, because the rise can begin slowly.
NEAR_BEST = 1.1
STAYED = 10  #: minimum number of points for which a diverged loss must stay high (3 in an excerpt)
#: A gradient norm above this multiple of the usual norm confirms a jump if there are few losses.
GRADIENT = 5.0
BASELINE = 50  #: maximum number of earlier points with which a jump is compared
ZEROS = 3  #: minimum number of printed zeros that rule out a coincidence
ZEROS_LATER = 10  #: minimum number of printed zeros that show a failure if the gradients were not 0 at first
ZEROS_NEVER = 5  #: minimum number of zero losses with zero gradients, from the start, that show a failure
#: Minimum number of printed zeros if steps overflowed, because trainers can print 0 for skipped steps.
ZEROS_AFTER_OVERFLOW = 50
NO_MARGIN = 10  #: minimum number of equal losses that show a failure if the margins of all rewards are 0
#: A loss below this many units of its last printed digit can change without changing the printed number.
COARSE = 20
#: Minimum ratio of the number of equal losses to the longest earlier series of equal losses, because some
#: losses are computed rarely and printed repeatedly.
REPEATED = 3
#: Minimum number of equal losses if no other loss was printed. This minimum exceeds the number of ranks on a
#: node, which can all print the same loss.
ALL_EQUAL = 12
GUESSED = 12  #: minimum number of losses at the level of random guesses that rule out a coincidence
GUESSED_WITHIN = 3e-4  #: maximum distance of a random guess's loss from the logarithm of a number of classes
MOST_CLASSES = 32  #: maximum number of classes; logarithms of larger numbers are too close to each other
BEGUN = 3  #: number of values at the start of a run before the loss has settled
RATE_GONE = 0.1  #: a learning rate below this share of its maximum is near the end of its schedule
UNLOGGED = 20  #: a loss is missing if no loss was printed for this multiple of the usual interval


def finite_losses(points: Sequence[Point]) -> list[Point]:
    """Return the points whose loss is a finite number."""
    return [point for point in points if point.loss is not None and math.isfinite(point.loss)]


def is_excerpt(points: Sequence[Point]) -> bool:
    """Return whether the points begin in the middle of a run, judging by their first two steps."""
    first, distance = _first_step_and_distance(points)
    return distance > 0 and first > MID_RUN * distance


def _first_step_and_distance(points: Sequence[Point]) -> tuple[float, float]:
    """Return two values: the first step, and its distance to the second step (NaN if a step is unknown)."""
    steps = [point.step for point in points[:2] if point.step is not None]
    return (steps[0], steps[1] - steps[0]) if len(steps) == 2 else (0.0, math.nan)


def last_run(points: Sequence[Point]) -> Sequence[Point]:
    """If one file contains several runs, return the points of the last run.

    Step numbers also decrease at the start of an epoch and when a run is resumed. Therefore, the first
    losses of a different run must be well above the last losses before them. They must also be near the
    first losses in the file, or the losses must fall afterward. A run on other data starts at different
    losses, but a diverged run does not learn again.
    """
    for at in range(len(points) - FEW, 0, -1):
        step, before = points[at].step, points[at - 1].step
        if step is None or before is None or step >= before / 2:
            continue
        first_step, distance = _first_step_and_distance(points[at : at + 2])
        if not 0 <= first_step <= distance or _is_next_epoch(points[at - 1], points[at]):
            continue  # the distance between steps is at least as large as the first step of a run
        first, last = _losses(points[at : at + FEW]), _losses(points[max(0, at - FEW) : at])
        begun = median(_losses(points[:FEW]) or [math.inf])
        near = bool(first) and begun / ABOVE_ALL < median(first) < ABOVE_ALL * begun
        since = _losses(points[at:])
        falls = bool(first) and len(since) > 2 * FEW and median(first) > ABOVE_ALL * median(since[-FEW:])
        if (near or falls) and last and min(first) > ABOVE_ALL * median(last):
            return points[at:]
    return points


def _is_next_epoch(before: Point, point: Point) -> bool:
    return before.epoch is not None and point.epoch is not None and point.epoch > before.epoch


def _losses(points: Sequence[Point]) -> list[float]:
    return [point.loss for point in finite_losses(points) if point.loss is not None]


def judge_divergence(points: Sequence[Point], *, nan_follows: bool, rewarded: bool) -> Judgement | None:
    """Assess a loss that rose permanently, so that its latest values are all above its best values.

    `nan_follows` is True if the loss finally became NaN as a consequence of the rise. `rewarded` is
    True for reinforcement learning, where a few values are not significant.
    """
    known = finite_losses(points)
    losses = _losses(known)
    few = len(losses) < SHORT
    if few and rewarded:
        return None
    width = 3 if few else max(STAYED, len(losses) // 20)
    # A large distance between steps shows that the second point is not early in the run.
    settled = not few or is_excerpt(points) or _first_step_and_distance(points)[1] >= MID_RUN
    if len(losses) < (2 if settled else 3) * width or min(losses) <= 0:
        return None
    before, recent = losses[:-width], losses[-width:]
    # The latest losses overlap the best losses, as in every run that still learns.
    if min(recent) <= ABOVE_ALL * min(before):
        return None
    starts = range(len(before) - width + 1)
    best = min((before[i : i + width] for i in starts), key=lambda part: (median(part), max(part)))
    low, high = median(best), median(recent)
    rise, by = (JUMP, JUMP_BY) if few else (RISE, RISE_BY)
    least = max(rise * low, low + by)
    if few and is_excerpt(points):
        least = min(least, low + NATS)
    if high < least or min(recent) <= ABOVE_ALL * max(best):
        return None
    note = message("diagnosis.loss-diverged", low=f"{low:.4g}", high=f"{high:.4g}", count=width)
    # The median of three losses, because a noisy loss can briefly fall again after the rise began.
    middle = (median(losses[i - 1 : i + 2]) for i in range(1, len(before)))
    began = max(i for i, loss in enumerate(middle, 1) if loss <= NEAR_BEST * max(best))
    return Judgement("fatal" if nan_follows else "degrading", note, mark=known[began].mark)


def judge_spike(points: Sequence[Point]) -> Judgement | None:
    """Assess a loss that jumped at one of its last points, even if it is falling again."""
    known = finite_losses(points)
    for index in range(max(1, len(known) - NEAR_THE_END), len(known)):
        before, point = known[max(0, index - BASELINE) : index], known[index]
        losses = _losses(before)
        usual, loss = median(losses), point.loss
        if loss is None or usual <= 0 or loss < max(JUMP * usual, usual + JUMP_BY):
            continue
        if loss <= ABOVE_ALL * max(losses) or math.log(loss / usual) < NOISE * _noise(losses):
            continue
        alone = len(losses) >= 2 and loss > BEYOND * usual
        if len(losses) < STAYED and not (alone or (is_excerpt(known) and _gradient_jumped(known, index))):
            continue
        key = "spike-back" if _came_back(known[index:], usual) else "spike"
        note = message(f"diagnosis.{key}", usual=f"{usual:.4g}", loss=f"{loss:.4g}", step=_step(point))
        return Judgement("degrading", note)
    return None


def _noise(losses: Sequence[float]) -> float:
    """Return the spread of the logarithms of the losses. Single outliers do not affect the result."""
    logs = [math.log(loss) for loss in losses if loss > 0]
    middle = median(logs)
    return 1.4826 * median(abs(log - middle) for log in logs)


def _gradient_jumped(known: Sequence[Point], index: int) -> bool:
    """Return whether the gradient norm jumped together with the loss, or immediately before it.

    If there are no gradient norms, the loss alone must show the jump. The loss must have been constant before
    the jump and must have risen by a large amount.
    """
    norms = [point.grad_norm for point in known[: index + 1]]
    real = [norm for norm in norms if norm is not None and math.isfinite(norm) and norm > 0]
    if len(real) < 2:
        losses = [point.loss for point in known[:index] if point.loss is not None]
        flat = len(losses) >= 3 and max(losses) - min(losses) <= 0.2 * median(losses)
        loss = known[index].loss
        return flat and loss is not None and loss > JUMP * median(losses)
    return max(real[-2:]) >= GRADIENT * median(real[:-2] or real[:1])


def _came_back(after: Sequence[Point], usual: float) -> bool:
    last = after[-1].loss
    return last is not None and len(after) > 1 and last < (1 + (RISE - 1) / 2) * usual


def _step(point: Point) -> str:
    return "?" if point.step is None else f"{point.step:g}"


def judge_frozen(
    points: Sequence[Point],
    unlogged: int,
    facts: RunFacts,
    *,
    bar: bool = False,
    rewarded: bool = False,
    zero_is_odd: bool = False,
    overflowed: bool = False,
) -> Judgement | None:
    """Assess a loss that repeats the same value many times, or that is no longer printed as steps continue.

    `unlogged` is the number of training steps since a loss was printed. `bar` is True if a progress bar
    prints the loss, because a bar repeats the last value. `zero_is_odd` is True if numbers are printed at
    full precision and nothing suggests reinforcement learning, whose loss is zero by nature. `rewarded` is
    True for reinforcement learning and preference learning, whose loss is ln 2 at first. `overflowed` is True
    if steps were skipped, because some trainers then print zeros.
    """
    known = [point for point in points if point.loss is not None]
    if not known:
        return None
    last = known[-1]
    same = sum(1 for _ in takewhile(lambda point: point.loss == last.loss, reversed(known)))
    enough = _enough_equal(last.loss or 0.0, known[-same:], never_else=same == len(known))
    earlier_rows = (len(list(row)) for _, row in groupby(point.loss for point in known[:-same]))
    enough = max(enough, REPEATED * max(earlier_rows, default=0))
    if all(point.margin == 0 for point in known[-same:]):
        enough = min(enough, NO_MARGIN)
    enough *= 20 if bar else 1
    if last.loss == 0:
        healthy = not zero_is_odd or any(point.grad_norm for point in known[-same:])
        never = same == len(known) and all(point.grad_norm == 0 for point in known)
        from_start = ZEROS_AFTER_OVERFLOW if overflowed else ZEROS_NEVER
        enough = len(known) + 1 if healthy else from_start if never else ZEROS_LATER
    rounded = 0 < same < len(known) and bool(last.loss) and _is_coarse(last.loss or 0.0, known)
    if last.loss is not None and math.isfinite(last.loss) and same >= enough and not rounded:
        return Judgement("degrading", message("diagnosis.loss-same", loss=f"{last.loss:g}", count=same))
    classes = None if bar or rewarded else _guessing(known)
    if classes is not None:
        chance = f"{math.log(classes):.4f}"
        note = message("diagnosis.loss-chance", loss=chance, classes=classes, count=GUESSED)
        return Judgement("degrading", note)
    gaps = sorted(later.mark - earlier.mark for earlier, later in pairwise(known))
    if len(gaps) >= 5 and not facts.complete and unlogged > max(UNLOGGED * gaps[-1], 2 * UNLOGGED):
        return Judgement("degrading", message("diagnosis.loss-unlogged", count=unlogged))
    return None


def _guessing(known: Sequence[Point]) -> int | None:
    """If the last losses are ln(classes), the loss of random guesses, return the number of classes.

    Return ``None`` if the last losses differ from ln(classes). A run normally has this loss at its start.
    Therefore, the loss must have been different after the first values, or the log must begin in mid-run. The
    values must fluctuate. Equal or steadily changing values have other causes: several ranks print the same
    values, values with few digits are rounded, or a smoothed loss passes through this value. A constant loss
    is normal while the learning rate rises or is nearly zero.
    """
    before, run = known[:-GUESSED], [point.loss for point in known[-GUESSED:] if point.loss is not None]
    if len(run) < GUESSED or not all(math.isfinite(loss) and loss > 0 for loss in run):
        return None
    classes = round(math.exp(min(run[-1], math.log(2 * MOST_CLASSES))))
    level = math.log(max(classes, 1))
    if not 2 <= classes <= MOST_CLASSES or any(abs(loss - level) > GUESSED_WITHIN for loss in run):
        return None
    if len(set(run)) < 3 or run in (sorted(run), sorted(run, reverse=True)):
        return None
    rates = [point.learning_rate for point in known if point.learning_rate is not None]
    if len(rates) >= GUESSED and (rates[-1] > rates[-GUESSED] or rates[-1] < RATE_GONE * max(rates)):
        return None
    printed = any(len(f"{loss:.12g}".replace(".", "").lstrip("0")) >= 4 for loss in run)
    later = [point.loss for point in before[BEGUN:] if point.loss is not None]
    moved = any(abs(loss - level) > 0.01 * level for loss in later)
    return classes if printed and (moved or is_excerpt(known)) else None


def _enough_equal(loss: float, run: Sequence[Point], *, never_else: bool) -> int:
    """Return the minimum number of equal losses in a row that rules out a coincidence.

    If the losses have few digits, more equal losses are needed. `never_else` is True if all earlier losses
    are also equal.
    """
    digits = len(f"{loss:.12g}".replace(".", "").replace("-", "").strip("0"))
    enough = 5 if digits >= 5 else 30 if digits == 4 else 200
    if run[-1].step is not None:
        return enough
    return max(enough, ALL_EQUAL) if never_else else 4 * enough  # several ranks can print each step's loss


def _is_coarse(loss: float, known: Sequence[Point]) -> bool:
    """Return whether a loss is printed with so few digits that rounding hides its changes."""
    printed = (Decimal(f"{point.loss:.12g}") for point in known if point.loss and math.isfinite(point.loss))
    digits = [int(number.as_tuple().exponent) for number in printed]
    return abs(loss) < COARSE * 10.0 ** min(digits, default=0)


def judge_zero_gradients(
    points: Sequence[Point], *, exact: bool, rewarded: bool, overflowed: bool
) -> Judgement | None:
    """If the learning rate is 0 or the loss does not fall, assess gradient norms that are 0."""
    known = [point for point in points if point.grad_norm is not None]
    zeros = sum(1 for _ in takewhile(lambda point: point.grad_norm == 0, reversed(known)))
    if not zeros:
        return None
    run = known[-zeros:]
    rates = [point.learning_rate for point in run if point.learning_rate is not None]
    losses = {point.loss for point in run}
    no_rate = exact and bool(rates) and not any(rates)
    enough = ZEROS_LATER if zeros < len(known) else ZEROS - no_rate
    if zeros < (ZEROS_AFTER_OVERFLOW if overflowed else enough):
        return None
    still = len(losses) == 1 and losses != {None} and losses != {0.0}
    # Some frameworks print 0 for an unknown norm, so zeros matter only if the loss does not fall.
    idle = exact and zeros == len(known) and zeros > ZEROS and _does_not_fall(run)
    if not no_rate and (rewarded or not (still or idle)):
        return None
    key = "no-gradient-no-rate" if no_rate else "no-gradient-no-change" if still else "no-gradient-no-fall"
    return Judgement("degrading", message(f"diagnosis.{key}", count=zeros))


def _does_not_fall(run: Sequence[Point]) -> bool:
    losses = _losses(run)
    if len(losses) <= ZEROS or not any(losses):
        return False
    half = len(losses) // 2
    if len(losses) < STAYED:
        return any(later > 1.005 * earlier for earlier, later in pairwise(losses[1:]))
    return median(losses[half:]) > 0.95 * median(losses[:half])
