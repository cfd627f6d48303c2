"""Find the rule pages whose words are most similar to the words of a failure that no rule describes."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.records import NearPage
from stallwatch_rules.text.lazy import lazy

_WORDS = msgspec.json.decode(
    Path(__file__).with_name("common_words.json").read_bytes(), type=dict[str, frozenset[str]]
)
#: Words that are common in English or in failures of all kinds, and therefore do not distinguish failures.
COMMON = _WORDS["common"]
#: Words in messages from Python, which occur in the errors of all programs. Alone, these words do not suggest
#: a page. They help only to distinguish pages that other words suggest.
OF_PYTHON = _WORDS["python"]

THRESHOLD = 0.25  #: minimum score; two texts with a lower score share only words that all texts share
LEAST_WORDS = 3  #: minimum number of words that a failure and a page must share for a meaningful score
#: Minimum total rarity (natural logarithm) of the shared words. The minimum does not apply if these words
#: contain the whole title of a page. Words that occur in many pages are not evidence.
LEAST_RARITY = 8.5
MAX_PAGES = 3
MAX_SCORE = 0.9  #: maximum score; a page is never certain if its patterns did not match

_WORD = lazy(r"[A-Za-z][a-z]+|[A-Z]{2,}(?![a-z])|[\u4e00-\u9fff]{2}")
_IDENTIFIER = lazy(r"[A-Za-z_]\w*(?:[._:]+\w+)+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w*")
_MAX_TEXT = 2000
_CACHED_TEXTS = 32  # number of failures whose similar pages are cached
_PAIR = 0.5  # weight of a pair of consecutive words, in addition to the weights of the two words
_PYTHON = 0.4  # weight of a word that occurs in messages from Python


@dataclass(frozen=True)
class _Text:
    """Lowercase text in two forms: its words, separated by spaces, and the whole text."""

    words: str
    text: str

    @classmethod
    def of(cls, *texts: str) -> _Text:
        return cls(f" {' '.join(_all_words(*texts))} ", "\n".join(texts).lower())

    def contains(self, feature: str) -> bool:
        return feature[1:] in self.text if feature[0] == "#" else f" {feature} " in self.words


@dataclass(frozen=True)
class _Page:
    page: RulePage
    title: frozenset[str]
    #: Texts of the page with their weights, from the highest weight to the lowest.
    weighted: tuple[tuple[float, _Text], ...]

    def weight(self, feature: str) -> float:
        return next((weight for weight, weighted in self.weighted if weighted.contains(feature)), 0.0)


class Nearest:
    """An index of the words in a catalogue's pages, created when the first unknown failure is diagnosed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._pages = [
            _texts_of(page)
            for page in sorted(catalogue.pages.values(), key=lambda page: page.id)
            if page.status != "retired" and page.patterns
        ]
        # The diagnosis of a live run repeats the same query, and a query with long messages takes 0.1
        # seconds.
        self._near = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._compare)

    def of(self, *texts: str) -> list[NearPage]:
        """Return the pages with the most similar words.

        The most similar page comes first. The list is often empty.

        The texts are the name and the message of an exception, and the first exception of its chain. The
        returned pages are hints for the reader, not a diagnosis.
        """
        return [
            NearPage(page.id, page.title, round(min(MAX_SCORE, score), 2))
            for score, page in self._near(*texts)
        ]

    def _compare(self, *texts: str) -> tuple[tuple[float, RulePage], ...]:
        """Return the pages that share enough words with the texts. The most similar page comes first."""
        weights = {item: [page.weight(item) for page in self._pages] for item in _features(*texts)}
        rarity = {item: self._rarity(weight) * _worth(item) for item, weight in weights.items()}
        whole = sum(rarity.values()) or 1.0
        near = []
        for at, page in enumerate(self._pages):
            weight = sum(rarity[item] * weights[item][at] for item in weights)
            shared = [item for item in weights if weights[item][at] and item[0] != "#" and " " not in item]
            rare = sum(rarity[item] for item in shared if item not in OF_PYTHON)
            enough = len(shared) >= LEAST_WORDS and (rare >= LEAST_RARITY or page.title <= weights.keys())
            if enough and weight / whole >= THRESHOLD:
                near.append((weight / whole, page.page))
        near.sort(key=lambda item: (-item[0], item[1].id))
        return tuple(near[:MAX_PAGES])

    def _rarity(self, weights: list[float]) -> float:
        return math.log(1 + len(self._pages) / max(1, sum(map(bool, weights))))


def nearest_in(catalogue: Catalogue) -> Nearest:
    """Return the index of a catalogue. The index is cached, because a diagnosis uses it several times."""
    if not _made or _made[0][0] is not catalogue:
        _made[:] = [(catalogue, Nearest(catalogue))]
    return _made[0][1]


_made: list[tuple[Catalogue, Nearest]] = []


def words_of(*texts: str) -> list[str]:
    """Return the distinctive words in `texts` in lowercase. Identifiers are split into words."""
    return [word for word in _all_words(*texts) if word not in COMMON]


def _all_words(*texts: str) -> list[str]:
    words = (word.lower() for text in texts for word in _WORD.findall(text[:_MAX_TEXT]))
    return [word for word in words if len(word) > 2 or word >= "\u4e00"]


def _features(*texts: str) -> list[str]:
    """Return the features by which texts are compared: words, pairs of words, and whole identifiers.

    A space separates the two words of a pair. An identifier starts with ``#``.
    """
    found = dict.fromkeys(words_of(*texts))
    for text in texts:
        found.update(dict.fromkeys(map(" ".join, itertools.pairwise(_all_words(text)))))
        found.update(dict.fromkeys(f"#{name.lower()}" for name in _IDENTIFIER.findall(text[:_MAX_TEXT])))
    return list(found)


def _worth(feature: str) -> float:
    if " " in feature:
        return _PAIR
    return _PYTHON if feature in OF_PYTHON else 1.0


def _texts_of(page: RulePage) -> _Page:
    """Return the texts of a page with their weights.

    Program output has the highest weight, and explanations have the lowest weight.
    """
    printed = _Text.of(*(line for part in page.parts for sample in part.fires for line in sample.split("\n")))
    named = _Text.of(page.title, page.id.replace("-", " "))
    explained = _Text.of(page.sections.what, page.sections.why)
    weighted = ((1.0, printed), (0.8, named), (0.5, explained))
    return _Page(page, frozenset(words_of(page.title)), weighted)
