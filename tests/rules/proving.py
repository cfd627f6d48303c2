"""What proves that a rule's message is real: the proofs that the ``stable`` pages stand on.

``proofs.json`` names for each proven rule the releases in whose source ``stallwatch rules verify`` found its
text, and the logs of our own runs (``tests/corpus``, ``tests/recordings``) in which it fires. To make it anew
after a change of pages or packages::

    for package in torch deepspeed …; do
        stallwatch rules verify --package $package --json > $package.json
    done
    python tests/rules/proving.py *.json

It then sets the status of every page that the file does or does not name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stallwatch_exporter.files.postmortem import diagnose_paths
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue

TESTS = Path(__file__).parents[1]
FILE = Path(__file__).with_name("proofs.json")

_STATUS = re.compile(r"^status: (?:stable|incubating)$", re.MULTILINE)


def own_logs() -> dict[str, Path]:
    """The logs of our own runs, by how a proof names them: ``corpus/logs/x.log``, ``recordings/x``."""
    logs = [*(TESTS / "corpus" / "logs").glob("*.log"), *(TESTS / "recordings").iterdir()]
    return {path.relative_to(TESTS).as_posix(): path for path in sorted(logs)}


def seen_in(paths: Iterable[Path], catalogue: Catalogue) -> set[str]:
    """The rules that are among the findings of these logs, read as one run."""
    diagnosis, _ = diagnose_paths(list(paths), catalogue=catalogue)
    return {finding.rule for finding in diagnosis.findings}


def proofs(
    catalogue: Catalogue, verified: Iterable[Mapping[str, Any]], logs: Mapping[str, Path]
) -> dict[str, list[str]]:
    """Rule → what proves it; ``verified`` are results of ``stallwatch rules verify --json``."""
    found: dict[str, list[str]] = {}
    for result in verified:
        release = f"{result['package']} {result['version']}"
        for rule in result["rules"]:
            if rule["state"] == "found":
                place = re.sub(r".*(?:site|dist)-packages/", "", rule["file"])
                found.setdefault(rule["rule"], []).append(f"wording: {release}, {place}")
    for name, path in logs.items():
        for rule in seen_in([path], catalogue):
            found.setdefault(rule, []).append(f"log: {name}")
    return {rule: sorted(found[rule]) for rule in sorted(found) if rule in catalogue.pages}


def main() -> None:
    """Write the file, and set the pages' status by it."""
    catalogue = load_catalogue()
    results = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    proven = proofs(catalogue, results, own_logs())
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
