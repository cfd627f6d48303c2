"""The table of every parser that takes foreign bytes: how it is called, and what it may raise.

A target takes bytes and returns nothing. Whatever it raises beside the documented exceptions of its row is a
failure; so is what it finds wrong itself (`Broken`), such as lines that depend on how the bytes were cut.
"""

from __future__ import annotations

import atexit
import functools
import html.parser
import io
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzzing import forms
from fuzzing import samples as of
from stallwatch.config import routes, values
from stallwatch.config.keys import KEYS
from stallwatch.config.loading import load
from stallwatch_alerts.channels.addresses import apprise_url
from stallwatch_alerts.delivery.pacing import limits_of
from stallwatch_alerts.masking import hide_secrets, mask_url
from stallwatch_alerts.neutral import neutralise
from stallwatch_alerts.relay.stories import stories
from stallwatch_alerts.relay.webhook import WebhookProblem, read_notification
from stallwatch_alerts.store import _readable
from stallwatch_dashboard import safetext
from stallwatch_dashboard.data import log_copies, metrics_page
from stallwatch_dashboard.data.source import said_at_the_end
from stallwatch_dashboard.uploads.reading import safe_name
from stallwatch_exporter.checkpoints.checking import check_checkpoint
from stallwatch_exporter.checkpoints.formats import tensor_names
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.postmortem.recorded import recorded, with_kept, with_recorded
from stallwatch_exporter.probe.layout import LayoutProblem
from stallwatch_exporter.rings.probing import RankProcess, without_secrets
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.runs.copies import RankCopies, parse_record
from stallwatch_exporter.runs.runfolder import (
    AgentInfo,
    agent_alive,
    list_runs,
    read_info,
    read_record,
    sanitise,
)
from stallwatch_exporter.stacks import asking, gathering
from stallwatch_exporter.tailing.follow import POSITIONS
from stallwatch_exporter.tailing.tail import Position
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_exporter.watching.probe_events import Invalidations, concern_match
from stallwatch_lint.check_run import check_run
from stallwatch_lint.newer_python import NewerPython
from stallwatch_lint.parse import parse_accelerate, parse_json
from stallwatch_lint.script import Script, parse_script
from stallwatch_logs.archives import TarFile, zip_members
from stallwatch_logs.decompress import expanded, kind_of
from stallwatch_logs.inputs import InputError, Limits, Meter
from stallwatch_logs.json_files import notebook_lines, trainer_state_lines
from stallwatch_logs.log_files import expand
from stallwatch_rules.failures.crashes import read_error_file
from stallwatch_rules.failures.environment import versions_in
from stallwatch_rules.failures.flight import FlightData, apart, mismatched
from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.failures.raised import kind_of as kind_of_exception
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.lines.containers import record_of
from stallwatch_rules.lines.datatext import is_data
from stallwatch_rules.lines.leads import likely_leads, sure_lead
from stallwatch_rules.lines.ranks import rank_of_path, ranks_of_tasks, take_rank
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.stamps import own_time
from stallwatch_rules.lines.unescape import as_printed, pieces, unfolded, with_ascii_colon
from stallwatch_rules.lines.wrapped import as_pasted, likely_fold, wrap_width
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import PageError, parse_page
from stallwatch_rules.progress.phases import is_answer, sign_of
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line
from stallwatch_rules.report import markdown
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.terminal import renderable
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.bulk import BulkReader
from stallwatch_rules.samples.table import RowReader
from stallwatch_rules.scan.matches import MatchPatterns, MatchScan
from stallwatch_rules.stacks.concluding import with_stacks
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.reading import from_faulthandler, from_probe, from_py_spy
from stallwatch_rules.text.controls import TERMINAL_CODES, printable, without_controls
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.encodings import decode_cut, decode_foreign, decode_rest, looks_binary
from stallwatch_rules.text.masking import masked, repeats, skeleton, template_key
from stallwatch_rules.text.numbers import duration, number
from stallwatch_rules.text.redact import redact

logging.getLogger("stallwatch_alerts").setLevel(logging.ERROR)  # which reports what it leaves out
_MOST_EXPANDED = 1024 * 1024


class Broken(AssertionError):
    """The parser gave something that it must never give."""


@dataclass(frozen=True)
class Target:
    """One parser. ``cost`` is what an input takes, in microseconds, roughly: cheap parsers get more inputs."""

    name: str
    parse: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]
    cost: float
    raises: tuple[type[BaseException], ...] = ()
    tokens: tuple[bytes, ...] = ()
    json: bool = False  #: its inputs are JSON, or lines of it


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _from_system(data: bytes) -> str:
    """As Python gives what the system has: file names, variables, arguments."""
    return data.decode("utf-8", "surrogateescape")


@functools.cache
def _folder() -> Path:
    """A folder of this process, in memory where there is one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="stallwatch-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _file(data: bytes, name: str) -> Path:
    """The bytes as a file of this name."""
    path = _folder() / name
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


@functools.cache
def _matcher() -> Matcher:
    return Matcher(load_catalogue())


def _line(data: bytes) -> Line:
    return Line(_text(data), "fuzz.log", 1, None, None)


def _read(data: bytes) -> list[Line]:
    reader = LineReader("fuzz.log").look_ahead(data[:65536])
    return [*reader.feed(data), *reader.finish()]


# ---------------------------------------------------------------- lines


def _line_reader(data: bytes) -> None:
    whole = LineReader("fuzz.log")
    lines = [*whole.feed(data), *whole.finish()]
    cut, parted = len(data) * 7 // 13, LineReader("fuzz.log")
    again = [*parted.feed(data[:cut]), *parted.feed(data[cut:]), *parted.finish()]
    if lines != again:
        raise Broken("the lines depend on where the bytes were cut")


def _wrapped_lines(data: bytes) -> None:
    as_pasted(data)
    wrap_width(data)
    width = likely_fold(data)
    leads = likely_leads(data)
    lead = sure_lead(data) or next(iter(leads), None)
    reader = LineReader("fuzz.log", 3, width or 80, bool(width), lead).look_ahead(data)
    for at in range(0, len(data), 999):
        reader.feed(data[at : at + 999], 1.7e9)
    reader.idle(1.8e9)
    reader.skip(3)
    reader.finish(1.9e9)


def _prefixes(data: bytes) -> None:
    text = _text(data)
    take_rank(text)
    record_of(text)
    rank_of_path(text)
    ranks_of_tasks([text, text + "1"])
    is_data(text)


def _timestamps(data: bytes) -> None:
    text = _text(data)
    own_time(text)
    own_time(text, 1.7e9)


def _iso(data: bytes) -> None:
    parse_iso(_text(data))


def _unescaping(data: bytes) -> None:
    text = _text(data)
    pieces(text)
    as_printed(text)
    with_ascii_colon(text)
    unfolded(text)


def _numbers(data: bytes) -> None:
    text = _text(data)
    duration(text)
    number(text)  # of what a pattern took for one, so that a ValueError is the caller's fault


def _samples(data: bytes) -> None:
    for text in _text(data).split("\n"):
        sample = extract(Line(text, "fuzz.log", 1))
        if sample is not None and any(not isinstance(value, float) for value in sample.values.values()):
            raise Broken("a value that is no number")


def _bulk(data: bytes) -> None:
    reader = LineReader("fuzz.log", 0)
    rows = RowReader("fuzz.log")
    BulkReader(reader, rows).read(data[: data.rfind(b"\n") + 1])
    rows.finish()


def _phases(data: bytes) -> None:
    for text in _text(data).split("\n"):
        sign_of(text)
        is_answer(text)


def _tracebacks(data: bytes) -> None:
    reader = TracebackReader()
    raised = [reader.feed(line) for line in _read(data)]
    for one in (*raised, *reader.left()):
        if one is not None:
            kind_of_exception(one)


def _launchers(data: bytes) -> None:
    summary, flights = LauncherSummary(), FlightData()
    for line in _read(data):
        summary.see(line)
        flights.see(line.text, line.rank)
        versions_in(line.text)
        if line.text.startswith("{"):
            read_error_file(line, (0, 0))
    _ = (summary.culprits, summary.left_early)
    apart(flights.ranks)
    mismatched(flights.ranks)


def _matching(data: bytes) -> None:
    _matcher().match_text(_text(data))


@functools.cache
def _scanned() -> MatchPatterns:
    return MatchPatterns(_matcher())


def _match_scan(data: bytes) -> None:
    scan = MatchScan(_scanned(), "fuzz.log", None, None)
    list(scan.feed(data[:2000]))
    list(scan.feed(data[2000:]))
    list(scan.finish())


def _diagnosed(data: bytes) -> Diagnosis:
    reading = RunReading(_matcher().catalogue, _matcher(), starts=True)
    reading.feed(_read(data))
    return reading.diagnose(None)


def _diagnose(data: bytes) -> None:
    diagnosis = _diagnosed(data)
    language = "zh" if len(data) % 2 else "en"
    json.loads(to_json(diagnosis, language, schema=1 + len(data) % 2))  # type: ignore[arg-type]
    _as_html(to_html(diagnosis, language))
    markdown.to_markdown(diagnosis, language)
    renderable(diagnosis, language, explain=True)


def _diagnose_files(data: bytes) -> None:
    path = _file(data, "logs/train_rank0.log")
    diagnose_paths([path.parent], Options(_matcher().catalogue))


# ---------------------------------------------------------------- text that is shown


def _redact(data: bytes) -> None:
    text = _text(data)
    redact(text)
    redact(text, homes=False)


def _templates(data: bytes) -> None:
    text = _text(data)
    template_key(data)
    skeleton(text)
    masked(text)
    repeats(text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _terminal(data: bytes) -> None:
    text = TERMINAL_CODES.sub("", _text(data))
    if _CONTROL.search(without_controls(text).replace("\r", "")) or "\x1b" in printable(text):
        raise Broken("a control character reaches the terminal")


def _decoding(data: bytes) -> None:
    decode_foreign(data)
    decode_cut(data)
    decode_rest(data)
    looks_binary(data)


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        if any(name.startswith("on") or (value or "").startswith("javascript:") for name, value in attrs):
            raise Broken(f"markup of the log's own: <{tag} {attrs[0][0]}=…>")


_OUR_TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "section",
        "details",
        "summary",
        "span",
        "div",
        "strong",
        "em",
        "b",
        "i",
        "a",
        "br",
        "svg",
        "g",
        "path",
        "polyline",
        "line",
        "text",
        "rect",
        "circle",
        "footer",
        "small",
        "figure",
        "figcaption",
        "nav",
        "time",
        "link",
        "caption",
        "colgroup",
        "col",
        "article",
    ]
)


def _as_html(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    if strange := tags.found - _OUR_TAGS:
        raise Broken(f"markup of the log's own: {sorted(strange)}")


def _page_text(data: bytes) -> None:
    text = _text(data)
    for shown in (safetext.plain(text), safetext.cell(text), safetext.verbatim(text)):
        shown.encode()
    safetext.markdown(text).encode()
    safetext.advice(text).encode()
    safetext.own_words(text)
    safetext.first_sentence(text)
    if "<" in safetext.label(text):
        raise Broken("markup in a label of a chart")
    markdown.code(text)
    markdown.plain(text)
    markdown.fence(text.splitlines())


def _chat_text(data: bytes) -> None:
    shown = neutralise(_text(data), 300)
    if len(shown) > 300 or re.search(r"[<>`\r\n]|@(?=\S)|\x1b", shown):
        raise Broken("a mention, markup or a line end reaches a chat")
    neutralise(_text(data))


# ---------------------------------------------------------------- files


def _decompress(data: bytes) -> None:
    limits = Limits(members=20, expanded=_MOST_EXPANDED)
    for _ in expanded(io.BytesIO(data), kind_of(data[:512]), Meter(limits)):
        pass


def _archives(data: bytes) -> None:
    limits = Limits(members=20, expanded=_MOST_EXPANDED)
    kind = kind_of(data[:512])
    if kind == "zip":
        members = zip_members(lambda: io.BytesIO(data), len(data), limits)
    else:
        members, problem = TarFile(lambda: io.BytesIO(data), kind, limits).members()
        if problem is not None:
            str(problem.problem("a.tar"))
    for member in members[:5]:
        try:
            for _ in member.chunks():
                pass
        except InputError as error:
            str(error.problem(member.name))


def _log_files(data: bytes) -> None:
    name = {"zip": "a.zip", "tar": "a.tar", "gzip": "a.log.gz"}.get(kind_of(data[:512]), "a.log")
    path = _file(data, f"found/{name}")
    files, _ = expand([path], limits=Limits(members=20, expanded=_MOST_EXPANDED))
    for file in files[:5]:
        for _ in file.chunks([], []):
            pass
    path.unlink()


def _json_logs(data: bytes) -> None:
    for lines in (notebook_lines, trainer_state_lines):
        for _ in lines(iter([data[:100], data[100:]])):
            pass


def _container_copies(data: bytes) -> None:
    for line in data.split(b"\n"):
        parse_record(line)
    path = _file(data, "copies/ranks/rank0.log")
    log_copies.tail(path)
    copy = log_copies.LogCopy(path, 0)
    found = log_copies.around([copy], 1.7e9, 1e6)
    log_copies.drawn(log_copies.fold(found), 1.7e9, None, "?")


def _copied(data: bytes) -> None:
    folder = _folder() / "written"
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    copies = RankCopies(folder, redact, lambda _: None, max_bytes=1e6)
    for at in range(0, len(data), 700):
        copies.write("out", "stdout", data[at : at + 700], 1.7e9 + at)
    copies.flush(1.8e9, everything=True)
    for name in copies.files:
        (folder / name).unlink()


def _checkpoints(data: bytes) -> None:
    name = "pytorch_model.bin" if data[:1] in (b"P", b"\x80", b"c") else "model.safetensors"
    path = _file(data, f"checkpoint/{name}")
    check_checkpoint(path.parent)
    tensor_names(path)
    path.unlink()


def _checkpoint_index(data: bytes) -> None:
    check_checkpoint(_file(data, "indexed/model.safetensors.index.json").parent)


def _tail_state(data: bytes) -> None:
    path = _file(data, f"tail/{POSITIONS}")
    positions = read_record(path, dict[str, Position]) or {}
    log = _file(b"step 1\n", "tail/a.log")
    files = TailSet([str(log)], {str(log): one for one in positions.values()})
    files.discover()
    list(files.poll())
    files.close()


# ---------------------------------------------------------------- the probe's side


def _ring(data: bytes) -> None:
    reader = RingReader(_file(data, "r-3-1.ring"), lambda: 1.8e9)
    try:
        reader.read(16)
        reader.latest_step_at()
        reader.read()
    finally:
        reader.close()


@functools.cache
def _process() -> RankProcess:
    return RankProcess(_file(of.ring(), "e-3-1.ring"))


def _events(data: bytes) -> None:
    _file(data, "e-3-1.jsonl")
    process, counts = _process(), Invalidations()
    process._events_until = 0
    for place, event in enumerate(process.events(), 1):
        without_secrets(event)
        concern_match(event, place)
        counts.named(event, place)
    asking.has_left(process.path, well=True)


def _answers(data: bytes) -> None:
    _file(data, "e-3-1.answer")
    answer = asking.answer(_process().path, "q", ".answer")
    if answer is not None:
        from_probe(answer)
        gathering._numbers(answer.get("counters"))
        read_recorder(answer)


def _faulthandler(data: bytes) -> None:
    from_faulthandler(_text(data))


def _py_spy(data: bytes) -> None:
    from_py_spy(data)


# ---------------------------------------------------------------- messages, settings, pages


@functools.cache
def _incidents() -> list[Incident]:
    return [msgspec.json.decode(line, type=Incident) for line in of.stored("incidents.jsonl")[0].splitlines()]


def _webhook(data: bytes) -> None:
    stories(read_notification(data).alerts, lambda _: _incidents())


def _settings(data: bytes) -> None:
    load(_file(data, "stallwatch.toml"), {}, {"STALLWATCH_HOME": str(_folder())}, _folder())


def _variables(data: bytes) -> None:
    text = _from_system(data).replace("\0", "")
    for key in KEYS:
        try:
            values.from_text(key, text, _folder())
        except values.BadValue:
            continue


def _routes(data: bytes) -> None:
    try:
        routes.routes_from(json.loads(data))
    except (ValueError, RecursionError):
        return


def _urls(data: bytes) -> None:
    text = _from_system(data)
    mask_url(text)
    apprise_url(text)
    limits_of(text)
    hide_secrets("could not reach " + text[:200], text)


def _names(data: bytes) -> None:
    text = _from_system(data)
    if re.search(r"[/\0]", safe_name(text, 1)) or re.search(r"[/\0]", sanitise(text)):
        raise Broken("a name that leads elsewhere")


def _rule_page(data: bytes) -> None:
    parse_page(_text(data), "catalogue/run/fuzz.md")


def _lint_json(data: bytes) -> None:
    parsed = parse_json(_text(data), "ds.json")
    if parsed.config is not None:
        check_run(parsed.config)


def _lint_yaml(data: bytes) -> None:
    parsed = parse_accelerate(_text(data), "accelerate.yaml")
    if parsed.config is not None:
        check_run(parsed.config)


def _lint_script(data: bytes) -> None:
    script = parse_script(_text(data), "train.py")
    if isinstance(script, Script):
        check_run(None, [script])


def _metrics_page(data: bytes) -> None:
    metrics_page.parse(_text(data))


def _stored_run(data: bytes) -> None:
    folder = _file(data, "home/runs/fuzz/agent.json").parent
    info = read_info(folder)
    list_runs(folder.parents[1])
    if isinstance(info, AgentInfo):
        agent_alive(info, 1.8e9)


def _stored_incidents(data: bytes) -> None:
    folder = _file(data, "kept/incidents.jsonl").parent
    _file(of.stored("agent.json")[0], "kept/agent.json")
    read_incidents(folder)
    known = recorded([folder])
    diagnosis = with_recorded(Diagnosis("healthy"), known)
    if known.stacks is not None:
        with_stacks(diagnosis, known.stacks)
    to_json(diagnosis)


def _stored_payloads(data: bytes) -> None:
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        return
    _readable([payload])


def _stored_report(data: bytes) -> None:
    folder = _file(data, "report/diagnosis.json").parent
    said_at_the_end(folder)
    known = recorded([folder])._replace(folder=folder)
    diagnosis = with_kept(Diagnosis("healthy"), [], known)
    to_json(diagnosis)
    _as_html(to_html(diagnosis))
    markdown.to_markdown(diagnosis)


# fmt: off
TARGETS: tuple[Target, ...] = (
    Target("line-reader", _line_reader, of.logs, 190, tokens=forms.LINE_TOKENS),
    Target("wrapped-lines", _wrapped_lines, of.logs, 200, tokens=forms.LINE_TOKENS),
    Target("line-prefixes", _prefixes, of.lines, 12, tokens=forms.LINE_TOKENS),
    Target("timestamps", _timestamps, of.lines, 5, tokens=forms.LINE_TOKENS),
    Target("iso-times", _iso, lambda: forms.ISO, 3, (ValueError,)),
    Target("unescaping", _unescaping, of.lines, 10, tokens=forms.LINE_TOKENS),
    Target("numbers", _numbers, lambda: (b"1.5", b"1,234.5e6", b"12h34m", b"00:10:20", b"3 days, 1:00:00", b"1.2K"), 3, (ValueError,)),
    Target("samples", _samples, of.lines, 20, tokens=forms.LINE_TOKENS),
    Target("samples-bulk", _bulk, of.logs, 300, tokens=forms.LINE_TOKENS),
    Target("phases", _phases, of.lines, 10, tokens=forms.LINE_TOKENS),
    Target("tracebacks", _tracebacks, of.logs, 150, tokens=forms.LINE_TOKENS),
    Target("launchers", _launchers, of.logs, 200, tokens=forms.LINE_TOKENS),
    Target("matching", _matching, of.logs, 400, tokens=forms.LINE_TOKENS),
    Target("match-scan", _match_scan, of.logs, 300, tokens=forms.LINE_TOKENS),
    Target("diagnose", _diagnose, of.logs, 8000, tokens=forms.LINE_TOKENS),
    Target("diagnose-files", _diagnose_files, lambda: [*of.logs(), *of.packed()], 9000, tokens=forms.LINE_TOKENS),
    Target("redact", _redact, lambda: [*of.SECRETS, *of.lines()], 30, tokens=forms.SECRET_TOKENS),
    Target("templates", _templates, of.lines, 15, tokens=forms.LINE_TOKENS),
    Target("terminal-codes", _terminal, of.lines, 5, tokens=forms.CODES),
    Target("decoding", _decoding, lambda: [*of.lines(), *of.packed()], 10),
    Target("page-text", _page_text, of.lines, 60, tokens=forms.MARKUP),
    Target("chat-text", _chat_text, of.lines, 40, tokens=forms.MARKUP),
    Target("decompression", _decompress, of.packed, 100, (InputError,)),
    Target("archives", _archives, of.packed, 200, (InputError,)),
    Target("log-files", _log_files, of.packed, 500),
    Target("notebooks", _json_logs, lambda: forms.NOTEBOOK, 20, json=True, tokens=forms.JSON_TOKENS),
    Target("log-copies", _container_copies, lambda: of.text_of(of.ROOT / "tests/recordings", "*/ranks/*.log", 3000), 300),
    Target("log-copying", _copied, of.logs, 300, tokens=forms.SECRET_TOKENS),
    Target("checkpoints", _checkpoints, of.checkpoints, 200),
    Target("checkpoint-index", _checkpoint_index, lambda: forms.INDEX, 120, json=True, tokens=forms.JSON_TOKENS),
    Target("tail-positions", _tail_state, lambda: forms.STATE, 200, json=True, tokens=forms.JSON_TOKENS),
    Target("ring", _ring, lambda: [of.ring()], 80, (LayoutProblem,)),
    Target("probe-events", _events, forms.written_events, 100, json=True, tokens=forms.JSON_TOKENS),
    Target("probe-answers", _answers, forms.answered, 50, json=True, tokens=forms.JSON_TOKENS),
    Target("faulthandler", _faulthandler, lambda: forms.DUMP, 10),
    Target("py-spy", _py_spy, forms.spied, 10, json=True, tokens=forms.JSON_TOKENS),
    Target("alertmanager", _webhook, forms.webhooks, 30, (WebhookProblem,), json=True, tokens=forms.JSON_TOKENS),
    Target("stallwatch-toml", _settings, lambda: forms.TOML, 400, tokens=forms.TOML_TOKENS),
    Target("environment", _variables, lambda: forms.VALUES, 60, tokens=forms.TOML_TOKENS),
    Target("routes", _routes, lambda: forms.ROUTES, 30, json=True, tokens=forms.JSON_TOKENS),
    Target("chat-urls", _urls, lambda: forms.URLS, 5000, tokens=(b"://", b"@", b"?", b"&", b"%2f", b"%00", b"[::1]", b":99999")),
    Target("names", _names, lambda: (b"../../x", b"rank_0.log", b"a b?c", *of.lines()[:50]), 8),
    Target("rule-pages", _rule_page, of.pages, 2500, (PageError,), tokens=forms.YAML_TOKENS),
    Target("deepspeed-json", _lint_json, lambda: forms.DEEPSPEED, 2500, json=True, tokens=forms.JSON_TOKENS),
    Target("accelerate-yaml", _lint_yaml, lambda: forms.ACCELERATE, 2500, tokens=forms.YAML_TOKENS),
    Target("scripts", _lint_script, lambda: forms.SCRIPT, 1500, (NewerPython,), tokens=forms.PY_TOKENS),
    Target("metrics-page", _metrics_page, lambda: forms.METRICS, 60, (metrics_page.ScrapeError,)),
    Target("stored-run", _stored_run, lambda: of.stored("agent.json"), 120, json=True, tokens=forms.JSON_TOKENS),
    Target("stored-incidents", _stored_incidents, lambda: of.stored("incidents.jsonl"), 400, json=True, tokens=forms.JSON_TOKENS),
    Target("stored-payloads", _stored_payloads, lambda: of.stored("incidents.jsonl")[0].splitlines(), 40, json=True),
    Target("stored-report", _stored_report, lambda: of.stored("diagnosis.json"), 2000, json=True, tokens=forms.JSON_TOKENS),
)
# fmt: on

BY_NAME = {target.name: target for target in TARGETS}


def wrong(target: Target, data: bytes) -> str | None:
    """Parse an input; return what was raised that no documentation of the parser names, ``None`` for nothing."""
    try:
        target.parse(data)
    except target.raises:
        return None
    except Exception as error:
        return described(error)
    return None


def described(error: BaseException) -> str:
    """The exception, and the innermost place in Stallwatch from which it came."""
    place, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if "stallwatch" in Path(path).name or "/stallwatch" in path.rpartition("/site-packages/")[2]:
            place = f"{path.rpartition('/stallwatch')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    message = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "?", str(error))
    return f"{type(error).__name__} at {place}: {message[:160]}"
