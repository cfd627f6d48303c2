"""What release 0.1 (commit e508561) stored, was configured with and named still works.

`release_0_1/` holds what it wrote: runs with their incidents, messages and silences, a configuration with a
rule page that it drafted, and its Prometheus rules; and its public names, as `public_names.py` lists them.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

import stallwatch
from stallwatch.cli import cli
from stallwatch_alerts.messages.compose import render
from stallwatch_alerts.prometheus.rulefiles import alert_name
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_rules.changed_names import changed_names
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import to_json

KEPT = Path(__file__).with_name("release_0_1")
RUN = KEPT / "runs" / "sft"
STUCK = "stuck-2/stall/silent-hang-no-error/1"  #: an incident that is open, as its agent was killed
Call = Callable[..., Result]


def _database(folder: Path) -> Path:
    file = folder / "incidents.db"
    with sqlite3.connect(file) as database:
        database.executescript((KEPT / "incidents.sql").read_text())
    database.close()
    return file


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call this release's commands on the state folder and the configuration of release 0.1."""
    home = tmp_path / "home"
    shutil.copytree(KEPT / "runs", home / "runs")
    _database(home)
    shutil.copytree(KEPT / "config", tmp_path / "work")
    monkeypatch.setenv("STALLWATCH_HOME", str(home))
    monkeypatch.chdir(tmp_path / "work")

    def call(*arguments: str) -> Result:
        found: Result = CliRunner().invoke(cli, list(arguments), prog_name="stallwatch")
        return found

    return call


@pytest.mark.parametrize(
    ("language", "title", "fix"),
    [
        ("en", "The GPU ran out of memory", "Lower per_device_train_batch_size"),
        # Fixes that its page no longer has stay in the words in which they were stored.
        ("zh", "显存", "LoRA in place of full fine-tuning"),
    ],
)
def test_incidents_of_0_1_are_shown_in_either_language(
    tmp_path: Path, catalogue: Catalogue, language: str, title: str, fix: str
) -> None:
    file = _database(tmp_path)
    (incident,) = IncidentStore(f"sqlite:///{file}").list(run="sft")
    assert [incident.id] == [read_incident.id for read_incident in read_incidents(RUN)]
    message = render(incident, language, catalogue.pages[incident.rule])
    assert title in message.title and fix in message.text
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in message.text


def test_run_folder_of_0_1_keeps_its_verdict() -> None:
    kept = msgspec.json.decode((RUN / "diagnosis.json").read_bytes(), type=Diagnosis)
    found = stallwatch.diagnose(RUN)
    assert kept.primary is not None and found.primary is not None
    assert (found.verdict, found.primary.rule, found.primary.title) == (
        kept.verdict,
        kept.primary.rule,
        kept.primary.title,
    )
    assert found.ending == "The command exited with 1."
    assert msgspec.json.decode(to_json(kept))["primary"]["fixes"] == kept.primary.fixes


# ---------------------------------------------------------------- its state folder


def test_runs_of_0_1_are_listed_with_their_endings(upgraded: Call) -> None:
    result = upgraded("runs")
    states = {row[0]: row[1] for line in result.stdout.splitlines() if (row := line.split("\t"))}
    assert states == {
        "sft": "failed",
        "good": "finished",
        "night-1": "interrupted",
        "tailed": "not watched",
        "stuck-2": "agent gone",
    }
    assert (result.exit_code, result.stderr) == (0, "")


def test_incidents_and_actions_of_0_1_survive(upgraded: Call, tmp_path: Path) -> None:
    listed = upgraded("alerts", "list", "--all")
    assert (listed.exit_code, listed.stderr) == (0, "")
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    stuck = rows[STUCK]
    assert "open, agent gone" in stuck and stuck.split()[-1] == "yes"
    assert "ended with the run: interrupted" in rows["night-1/stall/silent-hang-no-error/1"]
    lines = [line for line in listed.stdout.splitlines() if line.startswith("silence ")]
    silences = [line.partition(": ")[2].split() for line in lines]
    assert silences == [["sweep-*", "cuda-oom", "known"], ["jax-processes-lost", "critical"]]
    assert upgraded("alerts", "note", STUCK, "storage is back").exit_code == 0
    with sqlite3.connect(tmp_path / "home" / "incidents.db") as database:
        notes = database.execute("SELECT text FROM history WHERE what = 'note' ORDER BY id").fetchall()
    database.close()
    assert notes == [("waits for the storage",), ("storage is back",)]


def test_waiting_messages_of_0_1_survive(upgraded: Call) -> None:
    from stallwatch.config.loading import load
    from stallwatch_alerts.notice import fingerprint

    result = upgraded("alerts", "deliveries")
    assert result.exit_code == 0 and result.stdout.count(" waiting ") == 6
    config = load()
    urls = [*config["alerts.urls"], *(url for route in config["alerts.routes"] for url in route.urls or ())]
    with sqlite3.connect(Path.cwd().parent / "home" / "incidents.db") as database:
        known = {row[0] for row in database.execute("SELECT channel FROM messages WHERE state = 'waiting'")}
    database.close()
    assert {fingerprint(url) for url in urls} == known


@pytest.mark.parametrize(
    ("run", "verdict"), [("good", "finished"), ("night-1", "stalled"), ("tailed", "failed")]
)
def test_run_folders_of_0_1_are_diagnosed(upgraded: Call, run: str, verdict: str) -> None:
    result = upgraded("diagnose", "--json=2", str(Path.cwd().parent / "home" / "runs" / run))
    assert json.loads(result.stdout)["verdict"] == verdict


def test_followed_file_of_0_1_is_continued(upgraded: Call, tmp_path: Path) -> None:
    from stallwatch_exporter.runs.runfolder import read_record
    from stallwatch_exporter.tailing.follow import POSITIONS
    from stallwatch_exporter.tailing.tail import Position
    from stallwatch_exporter.tailing.tailset import TailSet

    kept = read_record(tmp_path / "home" / "runs" / "tailed" / POSITIONS, dict[str, Position])
    assert kept is not None
    status = Path("tail.log").stat()  # a copy: another inode
    position = msgspec.structs.replace(kept["tail.log"], device=status.st_dev, inode=status.st_ino)
    with Path("tail.log").open("a") as log:
        log.write("and on\n")
    files = TailSet(["tail.log"], {"tail.log": position})
    files.discover()
    assert [bytes(portion.data) for _, portion in files.poll()] == [b"and on\n"]
    files.close()


# ---------------------------------------------------------------- its configuration


def test_configuration_keys_of_0_1_are_valid(upgraded: Call) -> None:
    from stallwatch.config.loading import load, tomllib

    config = load()
    assert not config.problems and not config.ignored
    given = tomllib.loads(Path("stallwatch.toml").read_text())
    assert {f"{section}.{key}" for section, table in given.items() for key in table} == {
        name for name, setting in config.settings.items() if setting.source.startswith(str(config.file))
    }
    shown = upgraded("config", "show")
    assert (shown.exit_code, shown.stderr) == (0, "")


def test_rule_page_drafted_by_0_1_is_used(upgraded: Call) -> None:
    result = upgraded("diagnose", "--json", "tail.log")
    assert (json.loads(result.stdout)["primary"]["rule"], result.stderr) == ("mixer-blend-error", "")


def test_rule_moved_to_a_pack_is_named_with_the_pack(upgraded: Call) -> None:
    with Path("stallwatch.toml").open("a") as file:
        file.write('\n[[alerts.routes]]\nrules = ["jax-processes-lost"]\nurls = []\n')
    shown = upgraded("config", "show")
    assert shown.exit_code == 0  # the route counts: it is a warning
    assert "rule 'jax-processes-lost' is in the pack other-frameworks" in shown.stderr
    assert "--rules-pack other-frameworks" in upgraded("rules", "show", "jax-processes-lost").stderr
    assert upgraded("alerts", "silence", "--rule", "jax-processes-lost").exit_code == 0
    Path("stallwatch.toml").write_text(
        Path("stallwatch.toml").read_text().replace("[rules]", '[rules]\npacks = ["other-frameworks"]')
    )
    shown = upgraded("config", "show")
    assert (shown.exit_code, shown.stderr) == (0, "")


# ---------------------------------------------------------------- its names


def _public_names() -> ModuleType:
    spec = spec_from_file_location("public_names", KEPT / "public_names.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


#: How a missing name of each kind is found among the changed ones.
_CHANGED = {
    "command": r"(?P<old>stallwatch rules verify)( --.*)?",
    "rule": r"(?P<old>[\w-]+)(: family .*)?",
    "alert": r"(\w+: annotation (?=runbook_url)|)(?P<old>\w+)(: .*)?",
    "key": r"(?P<old>dashboard.max_ratio = .*)",
}


def test_public_names_of_0_1_exist_or_are_listed_as_changed(root: Path) -> None:
    """A name that is missing here needs a row in `changed_names.json`, or its old name to work again."""
    now = _public_names().public_names(root)
    missing = {
        (kind, name)
        for kind, names in json.loads((KEPT / "names.json").read_text()).items()
        for name in set(names) - set(now[kind])
    }
    old = {row.old.replace("[dashboard] ", "dashboard.") for row in changed_names()}
    old |= {alert_name(row.old) for row in changed_names() if row.kind == "rule"}
    unexplained = [
        (kind, name)
        for kind, name in sorted(missing)
        if not ((found := re.fullmatch(_CHANGED.get(kind, "(?P<old>.*)"), name)) and found["old"] in old)
    ]
    assert not unexplained


def test_each_rule_has_its_release(catalogue: Catalogue) -> None:
    known = json.loads((KEPT / "names.json").read_text())["rule"]
    release = tuple(map(int, stallwatch.__version__.split(".")[:2]))
    for page in catalogue.pages.values():
        since = tuple(map(int, page.since.split(".")))
        assert (since == (0, 1)) if page.id in known else ((0, 1) < since <= release), page.path


def test_removed_command_names_its_replacement(upgraded: Call) -> None:
    result = upgraded("rules", "verify", "--package", "deepspeed")
    assert result.exit_code == 2
    assert "stallwatch rules verify was replaced by python tools/verify_rules.py in 0.2" in result.stderr
    assert "tools" not in upgraded("rules", "verified").stderr


def test_old_python_name_works_with_a_warning() -> None:
    from stallwatch_lint.versions import conflicts_among

    with pytest.warns(
        FutureWarning, match=r"unfit was replaced by stallwatch_lint\.versions\.conflicts_among in 0\.2"
    ):
        from stallwatch_rules.checks.versions import unfit
    assert unfit is conflicts_among
    with pytest.raises(ImportError):
        from stallwatch_rules.checks.versions import fit  # noqa: F401


def test_upgrade_page_lists_every_changed_name(root: Path) -> None:
    page = (root / "docs" / "upgrade.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    plain = {"The same name, in the `other-frameworks` pack": "the same name, in the other-frameworks pack"}
    shown = [(old, plain.get(new, new.strip("`")), advice) for old, new, advice in rows]
    assert shown == [(row.old, row.new, row.advice) for row in changed_names()]


def test_schema_1_has_every_key_of_0_1() -> None:
    def keys(value: object, path: str = "") -> Iterator[str]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield f"{path}.{name}"
                yield from keys(inner, f"{path}.{name}")
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner, path)

    kept = json.loads((KEPT / "report.json").read_text())
    again = CliRunner().invoke(cli, ["diagnose", "--json", str(RUN / "output.log")], prog_name="stallwatch")
    assert not set(keys(kept)) - set(keys(json.loads(again.stdout)))


# ---------------------------------------------------------------- its Prometheus rules


def test_metrics_of_the_rules_of_0_1_are_exported(root: Path) -> None:
    recorded, queried = set(), set()
    for file in (KEPT / "rules" / "prometheus").glob("*.yml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                recorded.add(rule.get("record"))
                queried |= set(re.findall(r"\b(?:stallwatch|run)_?[\w:]+", rule["expr"]))
    metrics = {name for name in queried - recorded if name.startswith("stallwatch_")}
    metrics.remove("stallwatch_alert_test")  # of `stallwatch alerts test`
    now = _public_names().public_names(root)["metric"]
    exported = {*now, *(f"{name}_{part}" for name in now for part in ("bucket", "count", "sum"))}
    assert len(metrics) > 15 and not metrics - exported
