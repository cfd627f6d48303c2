"""Both engines give the same matches, for all lines and all divisions of the text."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.matching.matcher import ENGINE_VARIABLE, MAX_CAPTURE, MAX_CHARACTERS, Hit, Matcher
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import RulePage, parse_page
from stallwatch_rules.pages.patterns import hyperscan, widened_pattern
from stallwatch_rules.records import Line

PageText = Callable[..., str]
MakeMatcher = Callable[..., Matcher]
ENGINES = ["hyperscan", "re2"]


def lines(*texts: str, source: str = "a.log", rank: int | None = 0) -> list[Line]:
    return [Line(text, source, number, rank) for number, text in enumerate(texts, 1)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name == "hyperscan":
        pytest.importorskip("hyperscan")
    else:
        monkeypatch.setenv(ENGINE_VARIABLE, name)
    return name


@pytest.fixture
def pages_of(page_text: PageText) -> Callable[..., list[RulePage]]:
    def make(**rules: object) -> list[RulePage]:
        pages = []
        for name, front in rules.items():
            rule = name.replace("_", "-")
            keys = front if isinstance(front, dict) else {"patterns": front}
            pages.append(parse_page(page_text(id=rule, **keys), f"memory/{rule}.md"))
        return pages

    return make


@pytest.fixture
def matcher_of(engine: str, pages_of: Callable[..., list[RulePage]]) -> MakeMatcher:
    """``matcher_of(rule_a=["pattern"], rule_b={"patterns": […], "unless": […]})``, with either engine."""

    def make(**rules: object) -> Matcher:
        matcher = Matcher(Catalogue.of(pages_of(**rules)))
        assert matcher.engine == engine
        return matcher

    return make


def test_matches_are_in_line_order_with_captures(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(
        b_rule=[r"tried (?P<size>\d+) (?P<unit>[KMG]iB)( again (?P<times>\d+))?"], a_rule=["tried", "MiB"]
    )
    assert matcher.match(lines("nothing", "tried 12 MiB", "显存 tried 3 GiB again 2", "")) == [
        (1, "b-rule", {"size": "12", "unit": "MiB"}),
        (1, "a-rule", {}),
        (2, "b-rule", {"size": "3", "unit": "GiB", "times": "2"}),
        (2, "a-rule", {}),
    ]


def test_captures_of_all_patterns_of_a_rule_are_merged(
    matcher_of: MakeMatcher,
) -> None:
    matcher = matcher_of(rule=[r"x=(?P<x>\d)", r"x=(?P<x>\d\d) y=(?P<y>\d)"])
    assert matcher.match(lines("x=12 y=3")) == [(0, "rule", {"x": "1", "y": "3"})]


@pytest.mark.parametrize(
    ("pattern", "fires", "quiet"),
    [
        ("^Killed$", ["Killed"], [" Killed", "Killed ", "xKilled"]),
        ("a[^b]c", ["axc", "a c", "a显c"], ["abc"]),
        (r"a\s+b", ["a  b", "a\tb"], ["ab"]),
        ("a[^x]*z", ["az", "a1z"], ["axz"]),
        ("a.c", ["a显c"], ["a显显c"]),
        (r"\bOOM\b", ["an OOM!"], ["BLOOM"]),
        ("Error", ["an Error"], ["an error"]),
        ("(?i)Error", ["an error"], ["terror?no"[:3]]),
    ],
)
def test_pattern_matches_within_one_line(
    matcher_of: MakeMatcher, pattern: str, fires: list[str], quiet: list[str]
) -> None:
    # Each line that must not fire is between halves that would make it fire if lines ran together.
    texts = [*fires, "a", *quiet, "b", "c", "z"]
    found = [index for index, _, _ in matcher_of(rule=[pattern]).match(lines(*texts))]
    assert found == list(range(len(fires)))


def test_unless_applies_to_the_same_line(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(rule={"patterns": ["failed"], "unless": ["retry", "^ok"]})
    texts = ["failed", "failed, will retry", "ok failed", "retry", "failed"]
    assert [index for index, _, _ in matcher.match(lines(*texts))] == [0, 4]


def test_when_compares_the_captures_of_a_line(matcher_of: MakeMatcher) -> None:
    pattern = r"(?P<joined>\d+)(?:/(?P<expected>\d+))? joined"
    few = {"patterns": ["joined$", pattern], "when": ["joined <= expected"]}
    many = {"patterns": [pattern], "when": ["joined > expected"]}
    matcher = matcher_of(few=few, many=many)
    texts = ["3/4 joined", "4/4 joined", "16/4 joined"]
    assert [hit[:2] for hit in matcher.match(lines(*texts))] == [(0, "few"), (1, "few"), (2, "many")]
    # A comparison does not fail if a number was not captured.
    assert [hit[1] for hit in matcher.match(lines("5 joined"))] == ["few", "many"]


class TestRequires:
    @pytest.fixture
    def matcher(self, matcher_of: MakeMatcher) -> Matcher:
        return matcher_of(
            rule={"patterns": ["failed"], "requires": ["big model", "huge model"]}, other=["failed"]
        )

    def test_scan_distinguishes_matches_and_contexts(self, matcher: Matcher) -> None:
        scan = matcher.scan(lines("failed", "huge model", "big model failed"))
        assert [(index, rule) for index, rule, _ in scan.matches] == [
            (0, "rule"), (0, "other"), (2, "rule"), (2, "other"),
        ]  # fmt: skip
        assert scan.contexts == [(1, "rule"), (2, "rule")]
        assert matcher.conditional == {"rule"}

    def test_stream_honours_it_in_any_order(self, matcher: Matcher) -> None:
        assert self.rules(matcher, lines("failed", "big model")) == ["rule", "other"]
        assert self.rules(matcher, lines("failed", "small model")) == ["other"]

    def test_another_rank_or_source_does_not_meet_it(self, matcher: Matcher) -> None:
        for elsewhere in (lines("big model", rank=1), lines("big model", source="b.log")):
            assert self.rules(matcher, [*lines("failed"), *elsewhere]) == ["other"]

    def rules(self, matcher: Matcher, among: Sequence[Line]) -> list[str]:
        return [rule for _, rule, _ in matcher.match_stream(among)]


def test_matches_in_a_text_have_line_numbers(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(rule=[r"^failed (?P<n>\d)"])
    assert matcher.match_text("x\n\n[rank3]: failed 1\r\nfailed 2") == [
        (3, "rule", {"n": "1"}),
        (4, "rule", {"n": "2"}),
    ]


def test_only_the_start_of_a_long_line_is_matched(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(rule=["needle"], end=["needl$"])
    head = "x" * (MAX_CHARACTERS - len("needle"))
    assert matcher.match(lines(head + "needle")) == [(0, "rule", {})]
    assert matcher.match(lines(head + "xneedle")) == [(0, "end", {})]


def test_captures_are_bounded(matcher_of: MakeMatcher) -> None:
    ((_, _, captures),) = matcher_of(rule=["message: (?P<message>.+)"]).match(
        lines("message: " + "显" * 5000)
    )
    assert captures == {"message": "显" * MAX_CAPTURE}


def test_undecodable_bytes_do_not_prevent_matches(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(rule=["bad (?P<what>.) byte"])
    assert matcher.match(lines("bad \udcff byte", "bad 显 byte")) == [
        (0, "rule", {"what": "?"}),
        (1, "rule", {"what": "显"}),
    ]


def test_retired_rules_do_not_match(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(old={"patterns": ["failed"], "status": "retired"}, new=["failed"])
    assert matcher.match(lines("failed")) == [(0, "new", {})]


def test_empty_catalogue_matches_nothing() -> None:
    matcher = Matcher(Catalogue.of([]))
    assert (matcher.engine, matcher.match(lines("x")), matcher.match([])) == ("none", [], [])


@pytest.mark.parametrize(
    ("pattern", "looked_for"),
    [
        (r"loss (?P<x>\d+)", r"loss (?P<x>\d)"),
        (r"at (?P<x>[^\]\s]+)", r"at (?P<x>[^\]\s])"),
        (r"got (?P<x>.+?)", r"got (?P<x>.)"),
        (r"a.{0,200}?b", r"a.*?b"),
        (r"a.{1,200}b", r"a.+b"),
        (r"a[^]{3,}]{30}b", r"a[^]{3,}]+b"),
        (r"a.{2,16}b", r"a.{2,16}b"),
        (r"a\{0,200}b", r"a\{0,200}b"),
        *[(f"a{{{count}}}b", f"a{{{count}}}b") for count in ("9" * 5000, "1," + "9" * 5000)],  # text to RE2
        (r"a\x{0950}\p{Han}b", r"a\x{0950}\p{Han}b"),
        (r"a(.{0,80})", r"a()"),
        (r"a\w{20,}", r"a\w"),
        (r"x\.+", r"x\.+"),
        (r"x [+]", r"x [+]"),
        (r"(ab)+", r"(ab)+"),
        (r"x\d+$", r"x\d+$"),
        (r"x\\d+", r"x\\d"),
    ],
)
def test_hyperscan_gets_a_cheaper_wider_pattern(pattern: str, looked_for: str) -> None:
    assert widened_pattern(pattern) == looked_for


def test_matcher_can_be_used_by_several_threads(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(rule=[r"rank (?P<rank>\d+) failed"])
    results: dict[int, list[Hit]] = {}
    together = threading.Barrier(4)

    def work(rank: int) -> None:
        portion = lines(*["nothing"] * 500, f"rank {rank} failed")
        together.wait()
        for _ in range(20):
            results[rank] = matcher.match(portion)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {rank: [(500, "rule", {"rank": str(rank)})] for rank in range(4)}


# --- both engines, on lines made of what real logs hold


@pytest.fixture(scope="module")
def both(catalogue: Catalogue) -> tuple[Matcher, Matcher]:
    if hyperscan is None:
        pytest.skip("hyperscan has no wheel for this platform")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ENGINE_VARIABLE, raising=False)
        fast = Matcher(catalogue)
        patch.setenv(ENGINE_VARIABLE, "re2")
        slow = Matcher(catalogue)
    assert (fast.engine, slow.engine) == ("hyperscan", "re2")
    return fast, slow


SAMPLES = sorted(
    {
        line
        for page in load_catalogue().pages.values()
        for sample in (*page.fires, *page.quiet)
        for line in sample.split("\n")
    }
)


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A line of a page's sample: complete, in part, or with inserted text."""
    line = draw(st.sampled_from(SAMPLES))
    first, last = sorted((draw(st.integers(0, len(line))), draw(st.integers(0, len(line)))))
    return draw(
        st.sampled_from(
            [
                line,
                line[first:],
                line[:last],
                line[:first] + "显" + line[first:],
                f"[rank1]: {line}",
                line * 2,
            ]
        )
    )


# \v is left out: the engines do not agree whether it is white space.
anything = st.text(st.characters(exclude_characters="\n\v"), max_size=30)
log_lines = st.lists(st.one_of(mangled(), anything), max_size=40)


@settings(max_examples=60, deadline=None)
@given(texts=log_lines)
def test_hyperscan_and_re2_agree(both: tuple[Matcher, Matcher], texts: list[str]) -> None:
    fast, slow = both
    assert fast.scan(lines(*texts)) == slow.scan(lines(*texts))


@settings(max_examples=60, deadline=None)
@given(texts=log_lines, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_portions_do_not_matter(both: tuple[Matcher, Matcher], texts: list[str], cuts: list[int]) -> None:
    fast, _ = both
    whole = lines(*texts)
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [
        (index + start, rule, captures)
        for start, end in itertools.pairwise(bounds)
        for index, rule, captures in fast.match(whole[start:end])
    ]
    assert parts == fast.match(whole)
