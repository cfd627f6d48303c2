"""Proofs that a rule's message is real, on which the status ``stable`` of pages is based.

``proofs.json`` lists for each proven rule the releases in whose source ``tools/verify_rules.py`` found its
text, and the logs of the project's own runs (``tests/corpus``, ``tests/recordings``) in which it fires. A
text in a file that the page does not name counts only if its fixed part is long enough to exclude other
messages, and never in a package's own tests or vendored code. To rebuild the file after a change of pages or
packages::

    for package in torch deepspeed …; do
        python tools/verify_rules.py --package $package --json > $package.json
    done
    python tests/rules/proving.py *.json

Proofs by packages that were not searched again stay. The script then sets the status of every page by the
file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import RulePage

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS.parent / "tools"))

from wordings.branches import branches  # noqa: E402
from wordings.pieces import pieces_of  # noqa: E402
from wordings.search import same_package  # noqa: E402

FILE = Path(__file__).with_name("proofs.json")

#: smallest length of a fixed piece in each alternative of a pattern, in a file that no page names
ENOUGH = 24
_NO_SOURCE = re.compile(r"(?:^|/)(?:testing/_internal|_vendor|tests?)/")
_STATUS = re.compile(r"^status: (?:stable|incubating)$", re.MULTILINE)


def own_logs() -> dict[str, Path]:
    """Return the project's own logs by their names in proofs: ``corpus/logs/x.log``, ``recordings/x``."""
    logs = [*(TESTS / "corpus" / "logs").glob("*.log"), *(TESTS / "recordings").iterdir()]
    return {path.relative_to(TESTS).as_posix(): path for path in sorted(logs)}


def seen_in(paths: Iterable[Path], catalogue: Catalogue) -> set[str]:
    """Return the rules among the findings of these logs, read as one run."""
    diagnosis, _ = rendered(diagnose_paths(list(paths), Options(catalogue)))
    return {finding.rule for finding in diagnosis.findings}


def is_proof(page: RulePage, package: str, place: str, pattern: str) -> bool:
    """Return True if a text found at this place of a package must be the message, not a coincidence."""
    if _NO_SOURCE.search(place):
        return False
    named = " ".join(item.module for item in page.emitted_by if same_package(item.package, package))
    files = {part.rpartition("/")[2] for part in re.findall(r"[\w./*-]+", named)}
    if place.rpartition("/")[2] in files or "*.py" in files or not files:
        return True
    pieces = [pieces_of(branch) for branch in branches(pattern)]
    return all(max(map(len, each), default=0) >= ENOUGH for each in pieces)


def proofs(
    catalogue: Catalogue,
    verified: Iterable[Mapping[str, Any]],
    logs: Mapping[str, Path],
    earlier: Mapping[str, list[str]] | None = None,
) -> dict[str, list[str]]:
    """Return the proofs by rule; ``verified`` holds results of ``verify_rules.py --json``."""
    found: dict[str, list[str]] = {}
    verified = list(verified)
    anew = {result["package"] for result in verified}
    for rule, given in (earlier or {}).items():
        kept = [item for item in given if item.startswith("wording: ") and item.split()[1] not in anew]
        if kept and rule in catalogue.pages:
            found[rule] = kept
    for result in verified:
        release = f"{result['package']} {result['version']}"
        for rule in result["rules"]:
            page = catalogue.pages.get(rule["rule"])
            place = re.sub(r".*(?:site|dist)-packages/", "", rule["file"])
            if rule["state"] != "found" or page is None:
                continue
            if is_proof(page, result["package"], place, rule["pattern"]):
                found.setdefault(rule["rule"], []).append(f"wording: {release}, {place}")
    for name, path in logs.items():
        for rule in seen_in([path], catalogue):
            found.setdefault(rule, []).append(f"log: {name}")
    return {rule: sorted(found[rule]) for rule in sorted(found) if rule in catalogue.pages}


def main() -> None:
    """Write the file, and set the status of the pages accordingly."""
    catalogue = load_catalogue()
    results = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    earlier = json.loads(FILE.read_text(encoding="utf-8"))
    proven = proofs(catalogue, results, own_logs(), earlier)
    FILE.write_text(json.dumps(proven, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page in catalogue.pages.values():
        if page.status != "retired":
            path = Path(page.path)
            status = "stable" if page.id in proven else "incubating"
            text = _STATUS.sub(f"status: {status}", path.read_text(encoding="utf-8"), count=1)
            path.write_text(text, encoding="utf-8")
    print(f"{len(proven)} of {len(catalogue.pages)} rules are proven")


if __name__ == "__main__":
    main()
