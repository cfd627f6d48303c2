"""Secrets that a training prints: each test tries to read one from what Stallwatch keeps, shows or sends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from secrets_made import Secret, benign, leaked, made

from stallwatch.cli import cli
from stallwatch.cli.redact import split_lines
from stallwatch.config.loading import load
from stallwatch_alerts.notice import incident_notice
from stallwatch_alerts.relay.webhook import read_notification
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.runs.copies import RankCopies
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.authoring.drafting import propose
from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.terminal import print_report
from stallwatch_rules.text import redact as redacting
from stallwatch_rules.text.redact import LineMasker, redact

SEED = 20261126
SECRETS = made(SEED)
RUN = 8  #: characters of a secret that nothing may hold
RUNS = {item.secret[at : at + RUN]: item.kind for item in SECRETS for at in range(len(item.secret) - RUN + 1)}
BEGIN = 1_795_000_000.0
EACH = pytest.mark.parametrize("secret", SECRETS, ids=[item.kind for item in SECRETS])
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {}"


def log_with(text: str) -> str:
    """A log in which a rule, an unknown exception and new lines hold what was printed."""
    first = text.split("\n")[0]
    steps = "".join(f"step {n}/100 loss {2 / n:.4f}\n" for n in range(1, 30))
    return (
        f"{steps}WARNING the loader said: {text}\n{text}\n{OOM.format(first)}\n"
        f"ERROR could not go on\n{text}\n"
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
        f"CustomFailure: it broke with {text}\n"
    )


def reports_of(found: Diagnosis) -> Iterator[str]:
    """Every form of the report; in Chinese, whose words hold the same, one."""
    page = io.StringIO()
    print_report(found, Console(file=page, width=4000), explain=True)
    yield page.getvalue()
    yield to_json(found, schema=1, explain=True).decode()
    yield to_json(found, "zh", schema=2, explain=True).decode()
    yield to_markdown(found)
    yield to_html(found)
    yield to_brief(found)
    yield msgspec.json.encode(found).decode()


def read(text: str, catalogue: Catalogue, matcher: Matcher, portions: int = 0) -> RunReading:
    """Read a log, at once or in portions of this many lines."""
    reader = LineReader("run.log")
    lines = [*reader.feed(text.encode()), *reader.finish()]
    reading = RunReading(catalogue, matcher)
    for at in range(0, len(lines), portions or len(lines)):
        reading.feed(lines[at : at + (portions or len(lines))])
    return reading


@EACH
def test_report_contains_no_secret(secret: Secret, catalogue: Catalogue, matcher: Matcher) -> None:
    """A line with a secret is new, raised, and matched: the report quotes it in all its parts, masked."""
    for portions in (0, 1):
        reading = read(log_with(secret.text), catalogue, matcher, portions)
        found = reading.diagnose(Ending(kind="failed", exit_code=1, detail="It ended."))
        assert found.verdict == "failed" and found.new_lines
        for report in reports_of(found):
            assert not leaked(secret.secret, report)
        # What is kept of the lines, and goes from process to process.
        assert not leaked(secret.secret, repr(_plain(reading.streams)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return [_plain(getattr(value, name)) for name in fields]
    if hasattr(value, "__dict__") and type(value).__module__.startswith("stallwatch"):
        return {name: _plain(item) for name, item in vars(value).items()}
    return value


@dataclass
class Watched:
    """A run that printed every secret and died, and all that was made of it."""

    home: Path
    folder: Path
    incidents: list[Incident]
    notices: list[str]
    metrics: str
    log: Path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> Iterator[Watched]:
    """A run under watch whose output, command, probe events and failures hold secrets."""
    home = tmp_path_factory.mktemp("home")
    rings = tmp_path_factory.mktemp("rings")
    token = SECRETS[0].text.split()[-1]
    store = IncidentStore.at_home(home)
    incidents: list[Incident] = []
    notices: list[str] = []
    now = [BEGIN]

    def sink(incident: Incident) -> None:
        incidents.append(incident)
        store.upsert(incident)

    command = ["python", "sft.py", "--hub-token", SECRETS[0].secret, f"--extra={token}"]
    folder = RunFolder.create("sft", command, home=home, now=now[0])
    settings = ExporterSettings(home=home)
    agent = Agent(folder, settings, catalogue, [sink], clock=lambda: now[0], notice=notices.append)
    agent._probing = Probing(rings)
    probe = Probe(rings, {"RANK": "0"}, lambda: now[0])
    log = home.parent / "printed.log"

    def say(text: str) -> None:
        agent.feed(Chunk("stdout", f"{text}\n".encode(), now[0], stream="stdout"))
        with log.open("a", encoding="utf-8") as out:
            out.write(f"{text}\n")

    def wait() -> None:
        now[0] += 2.0
        agent.tick(now[0])

    for step in range(1, 20):
        wait()
        say(f"step {step}/100 loss {2 / step:.4f}")
        probe.step(loss=0.5)
    for number, secret in enumerate(SECRETS):
        say(f"WARNING {secret.kind}: {secret.text}")
        say(secret.text)
        if number % 10 == 0:
            probe.event("exception", exception="CustomFailure", message=secret.text, frames=["t.py:1 f"])
            say(OOM.format(secret.text.split("\n")[0]))
            wait()
    for secret in SECRETS[::5]:
        say("Traceback (most recent call last):")
        say('  File "/home/alice/train.py", line 9, in <module>')
        say(f"CustomFailure: it broke with {secret.text}")
    wait()
    page = generate_latest(agent.metrics.registry).decode()
    detail = f"It ended: {SECRETS[0].text}"
    agent.end(Ending(kind="failed", exit_code=1, detail=detail), now[0])
    page += generate_latest(agent.metrics.registry).decode()
    store.close()
    yield Watched(home, folder.path, incidents, notices, page, log)


def assert_none_leaks(text: str) -> None:
    """No run of eight characters of any secret is in the text."""
    found = {RUNS[run]: run for at in range(len(text)) if (run := text[at : at + RUN]) in RUNS}
    assert not found


def test_state_folder_contains_no_secret(watched: Watched) -> None:
    """Run folder, log copies, journal, SQLite with its log: every byte that is kept."""
    files = [path for path in watched.home.rglob("*") if path.is_file()]
    assert {"output.log", "incidents.jsonl", "incidents.db"} <= {path.name for path in files}
    for path in files:
        assert_none_leaks(path.read_bytes().decode("utf-8", "replace"))


def test_caches_contain_no_secret(watched: Watched, cache_folder: Path) -> None:
    """The compiled patterns and what else is kept to start faster, after all these secrets were read."""
    files = [path for path in cache_folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        with suppress(FileNotFoundError):  # tests that run at the same time replace outdated files
            assert_none_leaks(path.read_bytes().decode("latin-1"))


def test_relayed_alert_contains_no_secret() -> None:
    """Labels and annotations of a foreign rule, which the relay keeps and sends."""
    for secret in SECRETS:
        body = {
            "version": "4",
            "groupKey": "x",
            "status": "firing",
            "alerts": [
                {
                    "status": "firing",
                    "labels": {"alertname": "Foreign", "reason": secret.text},
                    "annotations": {"summary": secret.text},
                }
            ],
        }
        (alert,) = read_notification(json.dumps(body).encode()).alerts
        assert not leaked(secret.secret, repr(alert))


def test_rule_draft_contains_no_secret(catalogue: Catalogue, matcher: Matcher) -> None:
    """A page that is drafted from a failure quotes its line, makes a pattern of it, and is shared."""
    for secret in SECRETS[:: len(SECRETS) // 20]:
        message = f"the expert router overflowed its buffers with {secret.text}"
        text = (
            f'Traceback (most recent call last):\n  File "t.py", line 1, in f\n    g()\nOwnError: {message}\n'
        )
        page = propose(read(text, catalogue, matcher), since="1.0").text
        assert "OwnError" in page and not leaked(secret.secret, page)


def test_metrics_contain_no_secret(watched: Watched) -> None:
    """Labels and help texts of the metrics page."""
    assert "stallwatch_step" in watched.metrics
    assert_none_leaks(watched.metrics)


def test_terminal_notices_contain_no_secret(watched: Watched) -> None:
    """What the agent prints in the terminal beside the command's own output."""
    assert_none_leaks("\n".join(watched.notices))


URLS = [
    "slack://TokenAAAA/TokenBBBB/TokenCCCCtokenCCCCtokenC1",
    "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV-js",
    "tgram://123456789:AbCdEfGh-IjKlMnOpQrStUvWxYz012345678/42",
    "lark://693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa",
    "feishu://693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa",
    "dingtalk://566cc69da782ec33b0a1566cc69da782ec33b0a1",
    "wecombot://693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa",
    "workflows://prod-12.westeurope.logic.azure.com:443/3f1ac0b7e2d94f1b8c1d/iXkQ2mR7sUv-w8yZ0aBcDeFg_1h",
    "json://127.0.0.1:9/hook",
    "ntfy://localhost/topic",
    "mailto://u:p@localhost?to=a@example.org&from=b@example.org",
]


@pytest.mark.parametrize("url", URLS, ids=[url.partition(":")[0] for url in URLS])
def test_chat_messages_contain_no_secret(watched: Watched, catalogue: Catalogue, url: str) -> None:
    """The bodies that go to each kind of destination."""
    pytest.importorskip("apprise")
    from stallwatch_alerts.channels.apprise_channel import AppriseChannel

    channel = AppriseChannel(url)
    assert watched.incidents
    for language in ("en", "zh"):
        for incident in watched.incidents:
            notice = incident_notice(incident, language, catalogue.pages.get(incident.rule))
            sent = [repr(notice), repr(channel._words(notice)), repr(vars(channel._plugin))]
            if channel._chat is not None:
                sent += [repr(request) for request in channel._chat.requests(notice)]
            assert_none_leaks("\n".join(sent))


def test_grafana_annotations_contain_no_secret(watched: Watched) -> None:
    """What an incident becomes on the boards."""
    push = pytest.importorskip("stallwatch_dashboard.grafana.push")
    sent: list[Any] = []
    annotations = SimpleNamespace(
        find_annotations=lambda **given: sent.append(given) or [],
        add_annotation=lambda **given: sent.append(given) or {},
    )
    grafana = push.Grafana("http://127.0.0.1:9", "x")
    grafana._api = SimpleNamespace(annotations=annotations)
    for incident in watched.incidents:
        grafana.annotation(incident)
    assert sent
    assert_none_leaks(repr(sent))


def test_dashboard_pages_contain_no_secret(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of the run and of its incidents, all that they show and keep hidden in them."""
    pytest.importorskip("streamlit.testing.v1")
    from streamlit.testing.v1 import AppTest

    from stallwatch_dashboard.data.source import close_shared
    from stallwatch_dashboard.settings import DashboardSettings, to_environment

    close_shared()
    for name, value in to_environment(DashboardSettings(home=watched.home, insecure=True)).items():
        monkeypatch.setenv(name, value)
    pages = [("run", {"run": "sft"}), ("runs", {}), ("incidents", {})]
    pages += [("incidents", {"incident": incident.id}) for incident in watched.incidents[-3:]]
    for name, query in pages:
        code = f"from stallwatch_dashboard.app import main\nmain({name!r})"
        app = AppTest.from_string(code, default_timeout=120)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception
        assert_none_leaks(repr(app))
    close_shared()


def test_dashboard_excerpts_contain_no_secret(watched: Watched) -> None:
    """The end of a log copy, its lines around a moment, and the lines around a place of an upload."""
    copies = pytest.importorskip("stallwatch_dashboard.data.log_copies")
    context = pytest.importorskip("stallwatch_dashboard.uploads.context")
    found = copies.copies(watched.folder)
    assert found
    for copy in found:
        assert_none_leaks(copies.tail(copy.path, lines=5000))
    lines = copies.lines_around(found, BEGIN + 60, 3600)
    assert_none_leaks(copies.drawn(lines, BEGIN + 60, None, "?"))
    data = watched.log.read_bytes()
    for number in range(1, data.count(b"\n"), 9):
        shown = context.lines_around(
            [("printed.log", io.BytesIO(data))], "printed.log", number, before=4, after=4
        )
        assert shown
        assert_none_leaks(shown)


def test_stored_reports_contain_no_secret(watched: Watched, catalogue: Catalogue, tmp_path: Path) -> None:
    """A diagnosis of the printed log and of the run's folder, and what the upload page keeps of it."""
    reports = pytest.importorskip("stallwatch_dashboard.uploads.reports")
    for path in (watched.log, watched.folder):
        found, problems = diagnose_paths([path], Options(catalogue))
        assert found.verdict == "failed" and not problems
        for report in reports_of(found):
            assert_none_leaks(report)
        reports.Reports(tmp_path).keep(found, [path.name], "en")
    for kept in (tmp_path / "reports").iterdir():
        assert_none_leaks(kept.read_bytes().decode("utf-8", "replace"))


@pytest.mark.parametrize("arguments", [["matches"], ["matches", "--json"], ["samples"], ["redact"]])
def test_stored_commands_contain_no_secret(
    watched: Watched, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that print lines, or what is in them."""
    with pytest.raises(SystemExit):
        cli.main([*arguments, str(watched.log)])
    said = capsys.readouterr()
    assert said.out
    assert_none_leaks(said.out + said.err)


def test_all_kinds_of_secrets_are_masked_and_lookalikes_are_kept() -> None:
    """Other seeds than the one of the outputs: at most one in a hundred harmless lines may be changed."""
    for seed in range(1, 21):
        for secret in made(seed):
            masker = LineMasker()
            for clean in (
                redact(secret.text),
                "\n".join(masker(line) for line in secret.text.split("\n")),
            ):
                assert not leaked(secret.secret, clean), secret.kind
                assert redact(clean) == clean
    lines = benign(SEED)
    changed = [line for line in lines if redact(line) != line]
    assert len(lines) >= 200 and len(changed) <= len(lines) // 100, changed


def test_corpus_has_a_hundred_secrets_of_sixty_kinds() -> None:
    """The attack is as broad as it claims, and its secrets are no two alike."""
    assert len(SECRETS) >= 100 and len({secret.kind for secret in SECRETS}) >= 60
    assert all(len(secret.secret) >= RUN for secret in SECRETS)
    assert len({secret.secret for secret in SECRETS}) == len(SECRETS)


def test_parts_of_a_masked_line_reveal_nothing(catalogue: Catalogue, matcher: Matcher) -> None:
    """A rule captures a value that is a secret by its name only: the capture is masked as its line is."""
    line = "[rank0]: huggingface_hub.utils._errors.RepositoryNotFoundError: 401. hub_token=hunter22x"
    assert redacting.redact_part("hunter22x", redact(line)) == "***"
    assert redacting.redact_part("401", redact(line)) == "401"
    assert redacting.redact_part("/home/alice/x", redact("open /home/alice/x")) == "~/x"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Patterns of a site, which are gone after the test."""
    monkeypatch.setenv(redacting.SITE_PATTERNS, "")
    yield redacting.use_site_patterns
    redacting.use_site_patterns(())


def test_site_patterns_mask_further_secrets(site: Any, catalogue: Catalogue, matcher: Matcher) -> None:
    """A form that only this site knows is masked in all reports, and lines stay lines."""
    site([r"ACME-[0-9]{4,}", r"begin\s+end"])
    assert redact("got ACME-12345, begin end") == "got ***, ***"
    assert redact("ACME-12345\nbegin\nend\n") == "***\nbegin\nend\n"
    found = read(log_with("got ACME-12345678"), catalogue, matcher).diagnose()
    assert all("12345678" not in report for report in reports_of(found))


def test_site_patterns_apply_in_child_processes(site: Any) -> None:
    """A worker, an embedded dashboard or an agent masks what its parent does."""
    site([r"ACME-[0-9]{4,}"])
    code = "from stallwatch_rules.text.redact import redact; print(redact('got ACME-12345'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "got ***\n"


@pytest.mark.parametrize("pattern", [r"(a+", r"(?=x)y", r"(a)\1", "x*", "", "(" * 101 + "x" + ")" * 101])
def test_unusable_pattern_is_reported_and_other_patterns_apply(pattern: str, tmp_path: Path) -> None:
    """Broken, not linear, masking everything, or slow by its many groups: refused with file, line and key."""
    file = tmp_path / "stallwatch.toml"
    file.write_text(f"[redact]\npatterns = [{json.dumps(pattern)}, 'ACME-[0-9]+']\n", encoding="utf-8")
    config = load(file, environ={})
    assert config["redact.patterns"] == ("ACME-[0-9]+",)
    (problem,) = config.problems
    assert (problem.file, problem.line, problem.key) == (str(file), 2, "redact.patterns")
    assert "entry 1 is ignored" in problem.message


def test_groups_of_many_site_patterns_do_not_accumulate(site: Any) -> None:
    """All patterns are looked for in every line as one, whose search takes the square of its groups."""
    site(["(x|y?)" * 100 + f"Z{number}" for number in range(50)])
    engine = redacting._engine()
    assert (engine.hints.groups, engine.keys.groups) == (0, 0)
    assert redact("a Z7 b") == "a *** b"


def test_environment_variable_has_one_site_pattern_per_line() -> None:
    """A pattern may hold commas, which separate the entries of other lists."""
    config = load(environ={"STALLWATCH_REDACT_PATTERNS": "ACME-[0-9]{4,9}\nB{2,}\n"})
    assert config["redact.patterns"] == ("ACME-[0-9]{4,9}", "B{2,}")
    assert load(environ={"STALLWATCH_REDACT_PATTERNS": "(a"}).problems


def test_site_pattern_that_is_not_utf_8_does_not_end_the_program(site: Any) -> None:
    """A variable may hold any bytes: masking continues, with the pattern."""
    pattern = b"geheim\xff".decode("utf-8", "surrogateescape")
    assert redacting.pattern_problem(pattern) == ""
    site([pattern])
    assert redacting.redact(f"a {pattern} b") == "a *** b"


def test_redact_lists_kinds_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check of a file shows where its secrets are, and of which kind, and nothing of them."""
    key = next(item for item in SECRETS if item.kind == "pem-3").text
    token = SECRETS[0].text
    log = tmp_path / "a.log"
    log.write_text(f"step 1 loss 0.5\n{token}\n{key}\nopen /home/alice/x\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        cli.main(["redact", "--list", str(log)])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert [line.removeprefix(f"{log}:") for line in said.splitlines()] == [
        "2: huggingface",
        *(f"{number}: private-key-line" for number in (4, 5, 6)),
        "7: private-key-end",
    ]
    with pytest.raises(SystemExit) as ended:
        cli.main(["redact", str(tmp_path / "missing.log")])
    assert ended.value.code == 2


def test_redact_reads_lines_of_any_length_in_pieces() -> None:
    """One line of three megabytes is cut between words, so that no token is cut."""
    token = SECRETS[0].text.split()[-1]
    line = f"{'x' * 700_000} {'y' * 340_000} {token} {'z' * 2_000_000}\nend".encode()
    chunks = [line[at : at + 65_536] for at in range(0, len(line), 65_536)]
    found = list(split_lines(chunks))
    assert b"".join(piece for _, piece in found) == line
    assert max(len(piece) for _, piece in found) <= 1024 * 1024
    assert any(token.encode() in piece for _, piece in found)
    assert [number for number, _ in found if number > 1] == [2]


@pytest.mark.parametrize(
    "unit", ["a_key=", "password for x ", "machine a ", "AKIA" + "A" * 16, "wandb ", "sk-ant-"]
)
def test_hostile_line_is_masked_in_linear_time(unit: str) -> None:
    """Repeated beginnings of every kind: a quadratic look would take minutes, more than a test may."""
    assert redact(unit * (400_000 // len(unit)))


def test_key_printed_over_several_lines_is_masked_in_log_copies(tmp_path: Path) -> None:
    """Each line comes in a portion of its own: the short last one follows on a line of the portion before."""
    (tmp_path / "ranks").mkdir()
    copies = RankCopies(tmp_path, redact, notice=pytest.fail)
    keys = {item.text for item in SECRETS if "PRIVATE KEY" in item.text}
    for number, key in enumerate(sorted(keys)):
        for line in key.split("\n"):
            copies.write("pipe", "stdout", f"{line}\n".encode(), BEGIN + number)
            copies.flush(BEGIN + number)
    copies.flush(BEGIN + 60, everything=True)
    written = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert written.count("BEGIN") == len(keys)
    assert_none_leaks(written)
