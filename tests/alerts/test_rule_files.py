"""Prometheus' recording and alerting rules, judged by promtool: each fires and stays quiet where it must.

``rules/prometheus/tests/`` tests the handwritten rules with their series. The series for the generated file
of the catalogue are made here: a firing and a quiet series for each rule.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from stallwatch_alerts.messages.links import Runbooks
from stallwatch_alerts.prometheus.rulefiles import alert_name, catalogue_rules, rule_files
from stallwatch_rules.endings import EndingKind
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import RulePage

FILES = ("recording.yml", "alerting.yml", "catalogue.yml")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


@pytest.fixture(scope="module")
def packaged(cache_folder: Path) -> Catalogue:
    return load_catalogue(cache=cache_folder)


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "rules/prometheus"


def alerts(folder: Path) -> list[dict[str, Any]]:
    groups = [yaml.safe_load((folder / name).read_text())["groups"] for name in FILES]
    return [rule for file in groups for group in file for rule in group["rules"] if "alert" in rule]


def promtool(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_committed_rules_match_the_catalogue(folder: Path, packaged: Catalogue) -> None:
    current = (folder / "catalogue.yml").read_text(encoding="utf-8")
    message = "the rule pages have changed: stallwatch rules export --prometheus rules/prometheus"
    assert current == catalogue_rules(packaged), message


def test_exported_files_equal_the_committed_ones(folder: Path, packaged: Catalogue) -> None:
    assert rule_files(packaged) == {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


@pytest.mark.server
@needs_promtool
def test_promtool_accepts_the_rules_without_a_warning(folder: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *FILES, cwd=folder)


def hand_written_tests() -> list[Path]:
    return sorted((Path(__file__).parents[2] / "rules/prometheus/tests").glob("*.yml"))


@pytest.mark.server
@needs_promtool
@pytest.mark.parametrize("file", hand_written_tests(), ids=lambda file: file.stem)
def test_each_alert_fires_and_stays_quiet(folder: Path, file: Path) -> None:
    promtool("test", "rules", str(file), cwd=folder)


def test_every_alert_written_by_hand_has_a_firing_and_a_quiet_test(folder: Path) -> None:
    fired, quiet = set(), {"StallwatchWatchdog"}  # the watchdog always fires by design
    for file in hand_written_tests():
        for case in yaml.safe_load(file.read_text())["tests"]:
            for expected in case["alert_rule_test"]:
                (fired if expected["exp_alerts"] else quiet).add(expected["alertname"])
    names = {
        rule["alert"]
        for group in yaml.safe_load((folder / "alerting.yml").read_text())["groups"]
        for rule in group["rules"]
    }
    names.add("StallwatchRankGone")  # an alert in catalogue.yml without a rule page
    assert fired == quiet & (names | {"StallwatchWatchdog"}) == names


def test_run_failed_alert_covers_every_failed_ending(folder: Path) -> None:
    (failed,) = [rule for rule in alerts(folder) if rule["alert"] == "StallwatchRunFailed"]
    weighed = re.findall(r'vector\((\d)\), "ending", "([^"]+)"', failed["expr"])
    kinds = set(get_args(EndingKind)) - {"finished", "interrupted", "unknown"}
    assert {kind for _, kind in weighed} == kinds and len({weight for weight, _ in weighed}) == len(kinds)


def test_names_labels_and_annotations_are_complete(folder: Path) -> None:
    rules = alerts(folder)
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names)
    for rule in rules:
        assert re.fullmatch(r"Stallwatch([A-Z][a-z0-9]*)+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info", "none", "{{ $labels.severity }}")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert all(text.strip() for text in rule["annotations"].values())


def anchor(heading: str) -> str:
    """Return the anchor of a heading as GitHub generates it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_runbook_exists(root: Path, folder: Path, packaged: Catalogue) -> None:
    for rule in alerts(folder):
        runbook = rule["annotations"]["runbook"]
        if runbook.startswith("stallwatch rules show "):
            assert runbook.split()[-1] in packaged.pages
            continue
        path, _, fragment = runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (root / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert fragment in map(anchor, headings), runbook


def exported(catalogue: Catalogue, runbooks: Runbooks) -> dict[str, dict[str, str]]:
    texts = rule_files(catalogue, runbooks)
    groups = [yaml.safe_load(texts[name])["groups"] for name in FILES]
    rules = [rule for file in groups for group in file for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: rule["annotations"] for rule in rules}


def test_rule_files_contain_no_unconfigured_host(packaged: Catalogue) -> None:
    assert "://" not in "".join(re.findall(r"runbook.*", "".join(rule_files(packaged).values())))


def test_runbooks_link_to_the_configured_site(packaged: Catalogue) -> None:
    of = exported(packaged, Runbooks(docs_url="https://docs.example.org/stallwatch/"))
    site = "https://docs.example.org/stallwatch"
    assert all(annotations["runbook_url"].startswith(f"{site}/") for annotations in of.values())
    assert of["StallwatchCudaOom"]["runbook_url"] == f"{site}/catalogue/cuda-oom/"
    assert of["StallwatchStalled"]["runbook_url"] == f"{site}/catalogue/silent-hang-no-error/"
    assert of["StallwatchRunFailed"]["runbook_url"] == f"{site}/alerts/#stallwatchrunfailed"
    assert of["StallwatchRankGone"]["runbook_url"] == f"{site}/alerts/#stallwatchrankgone"


def test_runbooks_of_rules_link_to_the_dashboard(packaged: Catalogue) -> None:
    of = exported(packaged, Runbooks("https://watch.example.org/", "https://docs.example.org"))
    assert of["StallwatchCudaOom"]["runbook_url"] == "https://watch.example.org/rules?rule=cuda-oom"
    assert of["StallwatchStalled"]["runbook_url"].startswith("https://watch.example.org/rules?rule=silent")
    assert of["StallwatchRunFailed"]["runbook_url"] == "https://docs.example.org/alerts/#stallwatchrunfailed"
    assert "runbook" in exported(packaged, Runbooks("https://watch.example.org"))["StallwatchRunFailed"]


@pytest.mark.server
@needs_promtool
def test_each_rule_fires_only_for_its_own_incident(folder: Path, tmp_path: Path) -> None:
    """Each alert gets a run with an open incident of its rule, and a run with a resolved one."""
    file = yaml.safe_load((folder / "catalogue.yml").read_text())
    rules = [rule for group in file["groups"] for rule in group["rules"]]
    series, expected = [], []
    for number, rule in enumerate(rules):
        # The last alert is for rules that the file does not list.
        found = re.search(r'\{rule="([^"]+)"\}', rule["expr"])
        of = found[1] if found else "a-rule-of-ones-own"
        severity = "warning" if number % 2 else "critical"
        labels = f'rule="{of}", severity="{severity}"'
        series += [
            {"series": f'stallwatch_incident_open{{run="bad", {labels}}}', "values": "0 1x9"},
            {"series": f'stallwatch_incident_open{{run="good", {labels}}}', "values": "1 0x9"},
        ]
        facts = {"run": "bad", "rule": of, "severity": severity}
        texts = {name: filled(text, facts) for name, text in rule["annotations"].items()}
        fires = {"exp_labels": facts, "exp_annotations": texts}
        expected.append({"eval_time": "1m", "alertname": rule["alert"], "exp_alerts": [fires]})
    cases = [
        {"interval": "15s", "input_series": series, "alert_rule_test": expected},
        {
            "interval": "15s",
            "input_series": [],
            "alert_rule_test": [
                {"eval_time": "1m", "alertname": rule["alert"], "exp_alerts": []} for rule in rules
            ],
        },
    ]
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump({"rule_files": [str(folder / "catalogue.yml")], "tests": cases}))
    promtool("test", "rules", str(test), cwd=folder)


def filled(template: str, labels: dict[str, str]) -> str:
    """Fill in a template as Prometheus does."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], template)
    return text.replace('{{ "{{" }}', "{{")


def test_braces_in_a_page_are_escaped(oom_page: RulePage) -> None:
    import msgspec

    odd = msgspec.structs.replace(oom_page, title="Use {{ cookiecutter }} here")
    (group, _) = yaml.safe_load(catalogue_rules(Catalogue.of([odd])))["groups"]
    assert group["rules"][0]["annotations"]["summary"] == (
        '{{ $labels.run }}: Use {{ "{{" }} cookiecutter }} here'
    )


def test_custom_page_gets_an_alert_without_a_link_to_the_site(oom_page: RulePage) -> None:
    import msgspec

    own = msgspec.structs.replace(oom_page, id="our-disk-array", path="my-rules/storage/our-disk-array.md")
    runbooks = Runbooks(docs_url="https://docs.example.org")  # these runbooks cover only the packaged pages
    (group, others) = yaml.safe_load(catalogue_rules(Catalogue.of([own]), runbooks))["groups"]
    (rule,) = group["rules"]
    assert rule["alert"] == alert_name("our-disk-array") == "StallwatchOurDiskArray"
    assert rule["annotations"]["runbook"] == "stallwatch rules show our-disk-array"
    assert (
        Runbooks("https://watch.example.org").rule(own)
        == "https://watch.example.org/rules?rule=our-disk-array"
    )
    assert "our-disk-array" in others["rules"][-1]["expr"]


def test_rules_without_incidents_get_no_alert(oom_page: RulePage) -> None:
    import msgspec

    quiet = [
        msgspec.structs.replace(oom_page, id="a", role="notice"),
        msgspec.structs.replace(oom_page, id="b", harm="harmless"),
        msgspec.structs.replace(oom_page, id="c", status="retired"),
    ]
    (others,) = yaml.safe_load(catalogue_rules(Catalogue.of(quiet)))["groups"]
    assert [rule["alert"] for rule in others["rules"]] == [
        "StallwatchRankGone",
        "StallwatchUnknownFailure",
        "StallwatchOtherIncident",
    ]
