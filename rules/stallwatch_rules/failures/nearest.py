"""The pages whose wording is nearest to a failure that no rule knows: a place to look, no claim."""

from __future__ import annotations

import math
import re
from collections import Counter

from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.records import NearPage

THRESHOLD = 0.38  #: below it the words that two texts share are everybody's words
LEAST_WORDS = 3  #: shared words without which the score means nothing
LEAST_RARITY = 8.5  #: how rare they must be together (natural logarithms): words of many pages are no trace,
#: unless they are a page's whole title
MAX_PAGES = 3
MAX_SCORE = 0.9  #: a page whose own patterns did not fire is never the failure's for certain

_WORD = re.compile(r"[A-Za-z][a-z]+|[A-Z]{2,}(?![a-z])|[\u4e00-\u9fff]{2}")
#: Words of any failure, and of English: they tell no two failures apart.
_COMMON = frozenset(
    [
        "the",
        "and",
        "for",
        "that",
        "with",
        "this",
        "from",
        "not",
        "are",
        "was",
        "has",
        "have",
        "been",
        "can",
        "cannot",
        "may",
        "you",
        "your",
        "its",
        "into",
        "than",
        "then",
        "but",
        "error",
        "exception",
        "runtime",
        "value",
        "type",
        "failed",
        "failure",
        "fail",
        "line",
        "file",
        "last",
        "most",
        "recent",
        "call",
        "traceback",
        "python",
        "all",
        "any",
        "one",
        "when",
        "while",
        "where",
        "which",
        "will",
        "does",
        "did",
        "use",
        "used",
        "using",
        "set",
        "get",
        "make",
        "sure",
        "please",
        "more",
        "see",
    ]
)

#: Words of Python's own messages, which any program's mistakes end in. They tell pages apart where others
#: agree already, but lead to none.
_OF_PYTHON = frozenset(
    [
        "argument",
        "arguments",
        "attribute",
        "expected",
        "given",
        "import",
        "index",
        "indices",
        "int",
        "integer",
        "invalid",
        "iterable",
        "keyword",
        "list",
        "literal",
        "missing",
        "module",
        "name",
        "none",
        "object",
        "operand",
        "out",
        "positional",
        "range",
        "required",
        "shape",
        "str",
        "string",
        "subscriptable",
        "supported",
        "tuple",
        "unexpected",
        "unpack",
        "unsupported",
        "values",
    ]
)


class Nearest:
    """Finds pages by wording. Made once for a catalogue, and only when a failure is unknown."""

    def __init__(self, catalogue: Catalogue) -> None:
        pages = [page for page in catalogue.pages.values() if page.status != "retired" and page.patterns]
        self._words = [
            (page, frozenset(words_of(page.title)), _weights(page))
            for page in sorted(pages, key=lambda page: page.id)
        ]
        seen = Counter(word for *_, words in self._words for word in words)
        self._rarity = {word: math.log(1 + len(pages) / count) for word, count in seen.items()}
        self._unseen = math.log(1 + len(pages))

    def of(self, *texts: str) -> list[NearPage]:
        """The pages nearest to these texts (exception, message, root), the nearest first; often none."""
        asked = set(words_of(*texts))
        whole = sum(self._rarity.get(word, self._unseen) for word in asked)
        near = []
        for page, title, words in self._words:
            shared = asked & words.keys()
            rarity = sum(self._rarity[word] for word in shared - _OF_PYTHON)
            if len(shared) < LEAST_WORDS or (rarity < LEAST_RARITY and not asked.issuperset(title)):
                continue
            score = sum(self._rarity[word] * words[word] for word in shared) / whole
            if score >= THRESHOLD:
                near.append((-score, page.id, page.title))
        return [
            NearPage(rule, title, round(min(MAX_SCORE, -score), 2))
            for score, rule, title in sorted(near)[:MAX_PAGES]
        ]


def words_of(*texts: str) -> list[str]:
    """The words that tell, in lower case; those inside of identifiers by themselves."""
    words = (word.lower() for text in texts for word in _WORD.findall(text[:2000]))
    return [word for word in words if (len(word) > 2 and word not in _COMMON) or word >= "\u4e00"]


def _weights(page: RulePage) -> dict[str, float]:
    """The page's words: those that programs print count in full, those that explain them half."""
    weights = dict.fromkeys(words_of(page.sections.what, page.sections.why), 0.5)
    weights.update(dict.fromkeys(words_of(page.title, page.id.replace("-", " ")), 0.8))
    weights.update(dict.fromkeys(words_of(*page.fires), 1.0))
    return weights
