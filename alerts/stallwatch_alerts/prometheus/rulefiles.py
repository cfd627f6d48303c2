"""Write the rule files for Prometheus: two handwritten files, and one file of alerts for the rule pages.

An alert fires while the run's agent keeps an incident of the alert's rule open. The alert's text comes from
the rule page, so that users of Alertmanager read the same title and fix as readers of messages from
Stallwatch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from stallwatch_alerts.messages.links import NOWHERE, Runbooks, command_for, plain
from stallwatch_exporter.incident import RANK_GONE, UNKNOWN_FAILURE
from stallwatch_rules.locale import render
from stallwatch_rules.pages.fixes import fixes_for

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.pages.page import RulePage

_HERE = Path(__file__).resolve().parent
# The folders that can contain the handwritten files: one in an installation, and one in a checkout.
_PLACES = (_HERE / "files", _HERE.parents[2] / "rules" / "prometheus")
WRITTEN_BY_HAND = ("recording.yml", "alerting.yml")
FROM_CATALOGUE = "catalogue.yml"
HEADER = "# Written by `stallwatch rules export --prometheus DIR` from the rule pages. Do not edit.\n"
#: Matches a placeholder for an address in the handwritten files. The address depends on the user's
#: configuration.
_RUNBOOK = re.compile(
    r"^(?P<indent> +)runbook: (?:stallwatch rules show (?P<rule>\S+)|(?P<guide>docs/\S+))$", re.MULTILINE
)
_LIMIT = 280
_SILENT_ROLES = {"notice"}
# An incident that opens when the run ends is scraped only once, so its last value counts for five minutes.
# After a restart of the run, the last value does not count. Otherwise, the alert would keep firing, and a
# second incident of the same rule would cause no notification. Other running hosts of the same job do not
# count as a restart.
_OPEN = (
    "max by (run, rule, severity) (stallwatch_incident_open{%s}"
    " or (last_over_time(stallwatch_incident_open{%s}[5m])"
    ' unless on (run) stallwatch_run_info{job_id=""} unless on (run, instance) stallwatch_run_info)) > 0'
)


def rule_files(catalogue: Catalogue, runbooks: Runbooks = NOWHERE) -> dict[str, str]:
    """Return the text of the rule files by filename. Raise `FileNotFoundError` if a file is missing."""

    def annotation(found: re.Match[str]) -> str:
        page = catalogue.pages.get(found["rule"] or "")
        address = runbooks.rule(page) if page is not None else runbooks.guide(found["guide"] or "")
        return f"{found['indent']}runbook_url: {address}" if address else found[0]

    texts = {name: _RUNBOOK.sub(annotation, text) for name, text in _written_by_hand().items()}
    return {**texts, FROM_CATALOGUE: catalogue_rules(catalogue, runbooks)}


def alerts_written_by_hand() -> list[str]:
    """Return the names of the alerts in the handwritten files."""
    groups = [group for text in _written_by_hand().values() for group in yaml.safe_load(text)["groups"]]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def _written_by_hand() -> dict[str, str]:
    place = next((place for place in _PLACES if (place / WRITTEN_BY_HAND[0]).is_file()), _PLACES[0])
    return {name: (place / name).read_text(encoding="utf-8") for name in WRITTEN_BY_HAND}


def catalogue_rules(catalogue: Catalogue, runbooks: Runbooks = NOWHERE) -> str:
    """Return the text of the rule file for the pages of `catalogue`, ordered by family and ID."""
    pages = [page for page in catalogue.pages.values() if _alerts(page)]
    pages.sort(key=lambda page: (page.family, page.id))
    families: dict[str, list[dict[str, Any]]] = {}
    for page in pages:
        families.setdefault(page.family, []).append(_alert(page, runbooks))
    groups = [
        {"name": f"stallwatch-catalogue-{family}", "rules": rules} for family, rules in families.items()
    ]
    others = _others([page.id for page in pages], runbooks)
    groups.append({"name": "stallwatch-catalogue-others", "rules": others})
    return HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=110)


def alert_name(rule: str) -> str:
    """Return the alert name for a rule ID: ``StallwatchCudaOom`` for ``cuda-oom``."""
    return "Stallwatch" + "".join(word.capitalize() for word in rule.split("-"))


def _alerts(page: RulePage) -> bool:
    """Return whether the rule can open incidents. Notices, harmless findings, and retired rules cannot."""
    return page.role not in _SILENT_ROLES and page.harm != "harmless" and page.status != "retired"


def _alert(page: RulePage, runbooks: Runbooks) -> dict[str, Any]:
    fixes = fixes_for(page, {})
    first = f" First remedy: {plain(render(fixes[0]), _LIMIT)}" if fixes else ""
    return _rule(
        alert_name(page.id),
        f'rule="{page.id}"',
        plain(page.title, _LIMIT),
        plain(page.sections.what, _LIMIT) + first,
        runbooks.rule(page),
        command_for(page),
    )


def _others(known: list[str], runbooks: Runbooks) -> list[dict[str, Any]]:
    """Return alerts for incidents whose rule is not in the catalogue, such as rules of a later version."""
    elsewhere = "|".join([*known, RANK_GONE, UNKNOWN_FAILURE])
    texts = {
        "StallwatchRankGone": (
            f'rule="{RANK_GONE}"',
            "a rank's process is gone",
            "The process of a rank ended while the run continues. The other ranks wait for this rank.",
        ),
        "StallwatchUnknownFailure": (
            f'rule="{UNKNOWN_FAILURE}"',
            "a failure that no rule describes",
            "The run failed, or printed nothing after an exception, and no rule page describes the failure.",
        ),
        "StallwatchOtherIncident": (
            f'rule!~"{elsewhere}"',
            "{{ $labels.rule }}",
            "An incident is open, but catalogue.yml lacks its rule. Run"
            " stallwatch rules export --prometheus DIR.",
        ),
    }
    guides = {name: f"docs/alerts.md#{name.lower()}" for name in texts}
    return [_rule(name, *texts[name], runbooks.guide(guide), guide) for name, guide in guides.items()]


def _rule(
    name: str, matcher: str, title: str, description: str, address: str, otherwise: str
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": _OPEN % (matcher, matcher),
        "labels": {"severity": "{{ $labels.severity }}"},  # the incident's severity, which depends on the run
        "annotations": {
            "summary": "{{ $labels.run }}: " + (title if title.startswith("{{") else _literal(title)),
            "description": _literal(description),
            **({"runbook_url": address} if address else {"runbook": otherwise}),
        },
    }


def _literal(text: str) -> str:
    """Return the text with escapes for a Go template, so that ``{{`` does not begin an action."""
    return text.replace("{{", '{{ "{{" }}')
