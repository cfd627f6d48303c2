"""The patterns of a sieve, compiled: the catalogue's in their raw form, and what else is worth reading."""

from __future__ import annotations

from stallwatch_rules.matching.blockscan import BlockScanner, available
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.matching.signscan import SignScanner
from stallwatch_rules.pages.catalogue import scanned_rules
from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.records import Line
from stallwatch_rules.sieve.bulk import RawRules, targets_of
from stallwatch_rules.sieve.metrics import PATTERNS
from stallwatch_rules.sieve.sieve import SieveEngine
from stallwatch_rules.sieve.watched import SEVERE, WARNING, WATCHES


def sieve_engine(matcher: Matcher) -> SieveEngine | None:
    """The engine for a matcher's catalogue; ``None`` where blocks cannot be scanned."""
    if matcher.engine != "hyperscan" or not available():
        return None
    parts = [
        (page.id, pattern, is_context)
        for page in scanned_rules(matcher.catalogue.pages.values())
        for patterns, is_context in ((page.patterns, False), (page.requires, True))
        for pattern in patterns
    ]

    def matches(rule: str, is_context: bool, line: Line) -> bool:
        scan = matcher.scan([line])
        found = scan.contexts if is_context else scan.matches
        return any(entry[1] == rule for entry in found)

    targets = targets_of(parts, matches)
    place = {(target.rule, target.is_context): order for order, target in enumerate(targets)}
    target_of = [place[rule, is_context] for rule, _, is_context in parts]
    patterns = [pattern for _, pattern, _ in parts]
    # What another rule requires mostly stands near its match, where all is read, or at the start.
    seldom = {number for number, (_, _, is_context) in enumerate(parts) if is_context}
    for number, watch in enumerate(WATCHES):
        if watch.seldom:
            seldom.update(range(len(patterns), len(patterns) + len(watch.patterns)))
        patterns += watch.patterns
        target_of += [len(targets) + number] * len(watch.patterns)
    excluded = {page.id for page in matcher.catalogue.pages.values() if page.unless}
    progress = {page.id for page in matcher.catalogue.pages.values() if page.harm == "by-progress"}
    rules = RawRules(
        tuple(targets),
        tuple(target.sure and target.rule not in excluded for target in targets),
        tuple(target.free and target.rule not in excluded for target in targets),
        tuple(target.rule in progress for target in targets),
        tuple(target_of),
    )
    store = matcher.catalogue.store
    try:
        signs = SignScanner(patterns, store, SEVERE, seldom)
    except hyperscan.error:  # patterns of the user's own may be too much for it
        return None
    warning = BlockScanner(store.compiled((WARNING,)))
    return SieveEngine(rules, signs, warning, BlockScanner(store.compiled(PATTERNS)))
