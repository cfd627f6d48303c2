"""Fixed texts of which a pattern's every match holds one: far quicker to look for than the pattern itself.

``RuntimeError: (?:CUDA|HIP) error: out of memory`` has the one text ``error: out of memory``. Where a text is
found, the line may match; the pattern then decides.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from stallwatch_rules.matching.literals import sre, sre_parse
from stallwatch_rules.matching.seldom import cut_at_its_rarest
from stallwatch_rules.text.lazy import lazy

LEAST = 6  #: letters below which a text stands on too many lines
ENOUGH = 12  #: letters that are left where a text is cut
MOST_TEXTS = 24  #: of one pattern
# Every other line of a training's log holds one of these.
_FREQUENT = lazy(
    "loss|grad_norm|gradient|learning_rate|learning|rate|epoch|iteration|global_step|steps?=?|rank|torch"
    "|Alloc|INFO|WARN(?:ING)?|[Ww]arning|NCCL|deepspeed|DeepSpeed|python|site-packages|Traceback|File|line"
    "|Evaluation|time|samples|tokens|memory|model|train|trainer|dataset|[Ee]rror"
)
_IGNORES_CASE = int(sre_parse.SRE_FLAG_IGNORECASE)


class Text(NamedTuple):
    """A fixed text."""

    text: str
    caseless: bool = False

    @property
    def worth(self) -> int:
        """How seldom it stands on a line, roughly: its letters without the frequent words in it."""
        letters = "".join(_FREQUENT.sub(" ", self.text).split())
        return len(letters) if letters.isascii() else len(letters.encode())

    def cut(self) -> Text:
        """A beginning of it that is quicker to look for, if that is worth enough."""
        return self._replace(text=cut_at_its_rarest(self.text, lambda begun: Text(begun).worth >= ENOUGH))


Cover = frozenset[Text]


@functools.cache
def cover_of(pattern: str) -> Cover | None:
    """The texts, or ``None`` where the pattern has none that are worth looking for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except Exception:  # whatever Python's parser dislikes: google-re2 knows a few things more
        return None
    cover = _best(_flat(parsed, bool(parsed.state.flags & _IGNORES_CASE)))
    if cover is None or len(cover) > MOST_TEXTS or _worth(cover) < LEAST:
        return None
    if any(text.caseless and not text.text.isascii() for text in cover):
        return None  # other letters than ASCII's are not found in the other case
    return frozenset(text.cut() for text in cover)


def _flat(parsed: Iterable[Any], caseless: bool) -> Iterable[tuple[Any, Any, bool]]:
    """A sequence with the groups in it opened."""
    for operation, argument in parsed:
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            inside = (caseless or bool(added & _IGNORES_CASE)) and not removed & _IGNORES_CASE
            yield from _flat(inner, inside)
        else:
            yield operation, argument, caseless


def _best(sequence: Iterable[tuple[Any, Any, bool]]) -> Cover | None:
    """The best of the covers that the parts of a sequence have: each alone would do."""
    found: list[Cover] = []
    run = Text("")
    for operation, argument, caseless in sequence:
        if operation is sre.LITERAL and (not run.text or run.caseless == caseless):
            run = Text(run.text + chr(argument), caseless)
            continue
        if operation is sre.AT:
            continue
        found.append(frozenset((run,)))
        run = Text(chr(argument), caseless) if operation is sre.LITERAL else Text("")
        inner = _inside(operation, argument, caseless)
        if inner is not None:
            found.append(inner)
    found.append(frozenset((run,)))
    best = max(found, key=lambda cover: (min(_worth(cover), 16), -len(cover)))
    return best if all(text.text for text in best) else None


def _inside(operation: Any, argument: Any, caseless: bool) -> Cover | None:
    if operation is sre.BRANCH:
        covers = [_best(_flat(branch, caseless)) for branch in argument[1]]
        return None if None in covers else frozenset().union(*[cover for cover in covers if cover])
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] > 0:
        return _best(_flat(argument[2], caseless))
    return None


def _worth(cover: Cover) -> int:
    return min(text.worth for text in cover)
