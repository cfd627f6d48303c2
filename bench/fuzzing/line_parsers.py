"""Fuzz targets for lines, for whole logs, and for functions that render text. Each target takes bytes."""

from __future__ import annotations

import atexit
import functools
import html.parser
import json
import re
import shutil
import tempfile
from pathlib import Path

from stallwatch_alerts.neutral import neutralise
from stallwatch_dashboard import safetext
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.failures.crashes import read_error_file
from stallwatch_rules.failures.environment import versions_in
from stallwatch_rules.failures.flight import FlightData, mismatched, mismatched_ranks
from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.failures.raised import kind_of as kind_of_exception
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.lines.containers import record_of
from stallwatch_rules.lines.line_prefix import certain_prefix, likely_prefixes
from stallwatch_rules.lines.ranks import rank_of_path, ranks_of_tasks, take_rank
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.lines.unescape import (
    exception_lines,
    lines_of_writers,
    with_ascii_colon,
    with_plain_quotes,
)
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.progress.phases import is_answer, phase_sign
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
from stallwatch_rules.text.controls import TERMINAL_CODES, printable, without_controls
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.encodings import decode_cut, decode_foreign, decode_rest, looks_binary
from stallwatch_rules.text.masking import masked, repeats, skeleton, template_key
from stallwatch_rules.text.numbers import duration, number
from stallwatch_rules.text.redact import redact


class Broken(AssertionError):
    """An error that a target raises if a parser returned an invalid value."""


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def from_system(data: bytes) -> str:
    """Decode bytes in the same way that Python decodes filenames, variables, and arguments."""
    return data.decode("utf-8", "surrogateescape")


@functools.cache
def own_folder() -> Path:
    """Return a folder for this process. If possible, the folder is on an in-memory file system."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="stallwatch-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def file_of(data: bytes, name: str) -> Path:
    """Write the bytes to a file that has this name and return the file's path."""
    path = own_folder() / name
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


@functools.cache
def the_matcher() -> Matcher:
    return Matcher(load_catalogue())


_USUAL_LINE = 32


def size_of_lines(data: bytes) -> int:
    """Return the effective size of an input.

    This size is the number of bytes plus an allowance for each line, because short lines also take time.
    """
    return len(data) + _USUAL_LINE * sum(map(data.count, (b"\n", b"\r", b"\b")))


def one_line(data: bytes) -> Line:
    return Line(text_of(data), "fuzz.log", 1, None, None)


def read_lines(data: bytes) -> list[Line]:
    reader = LineReader("fuzz.log").look_ahead(data[:65536])
    return [*reader.feed(data), *reader.finish()]


# ---------------------------------------------------------------- lines


def parse_line_reader(data: bytes) -> None:
    whole = LineReader("fuzz.log")
    lines = [*whole.feed(data), *whole.finish()]
    cut, parted = len(data) * 7 // 13, LineReader("fuzz.log")
    again = [*parted.feed(data[:cut]), *parted.feed(data[cut:]), *parted.finish()]
    if lines != again:
        raise Broken("the lines depend on where the bytes were cut")


def parse_prefixed_lines(data: bytes) -> None:
    leads = likely_prefixes(data)
    lead = certain_prefix(data) or next(iter(leads), None)
    reader = LineReader("fuzz.log", 3, lead).look_ahead(data)
    for at in range(0, len(data), 999):
        reader.feed(data[at : at + 999], 1.7e9)
    reader.idle(1.8e9)
    reader.skip(3)
    reader.finish(1.9e9)


def parse_prefixes(data: bytes) -> None:
    text = text_of(data)
    take_rank(text)
    record_of(text)
    rank_of_path(text)
    ranks_of_tasks([text, text + "1"])
    is_training_data(text)


def parse_timestamps(data: bytes) -> None:
    text = text_of(data)
    time_of_line(text)
    time_of_line(text, 1.7e9)


def iso_times(data: bytes) -> None:
    parse_iso(text_of(data))


def parse_unescaping(data: bytes) -> None:
    text = text_of(data)
    lines_of_writers(text)
    with_plain_quotes(text)
    with_ascii_colon(text)
    exception_lines(text)


def numbers(data: bytes) -> None:
    text = text_of(data)
    duration(text)
    number(text)  # `number` expects text that a pattern has matched, so it can raise ValueError here


def samples_in(data: bytes) -> None:
    for text in text_of(data).split("\n"):
        sample = extract(Line(text, "fuzz.log", 1))
        if sample is not None and any(not isinstance(value, float) for value in sample.values.values()):
            raise Broken("a value is not a float")


def samples_bulk(data: bytes) -> None:
    reader = LineReader("fuzz.log", 0)
    rows = RowReader("fuzz.log")
    BulkReader(reader, rows).read(data[: data.rfind(b"\n") + 1])
    rows.finish()


def parse_phases(data: bytes) -> None:
    for text in text_of(data).split("\n"):
        phase_sign(text)
        is_answer(text)


def parse_tracebacks(data: bytes) -> None:
    reader = TracebackReader()
    raised = [reader.feed(line) for line in read_lines(data)]
    for traceback in (*raised, *reader.left()):
        if traceback is not None:
            kind_of_exception(traceback)


def parse_launchers(data: bytes) -> None:
    summary, flights = LauncherSummary(), FlightData()
    for line in read_lines(data):
        summary.see(line)
        flights.see(line.text, line.rank)
        versions_in(line.text)
        if line.text.startswith("{"):
            read_error_file(line, (0, 0))
    _ = (summary.culprits, summary.left_early)
    mismatched_ranks(flights.ranks)
    mismatched(flights.ranks)


def parse_matching(data: bytes) -> None:
    the_matcher().match_text(text_of(data))


@functools.cache
def parse_scanned() -> MatchPatterns:
    return MatchPatterns(the_matcher())


def parse_match_scan(data: bytes) -> None:
    scan = MatchScan(parse_scanned(), "fuzz.log", None, None)
    list(scan.feed(data[:2000]))
    list(scan.feed(data[2000:]))
    list(scan.finish())


def parse_diagnosed(data: bytes) -> Diagnosis:
    reading = RunReading(the_matcher().catalogue, the_matcher(), starts=True)
    reading.feed(read_lines(data))
    return reading.diagnose(None)


def parse_diagnose(data: bytes) -> None:
    diagnosis = parse_diagnosed(data)
    language = "zh" if len(data) % 2 else "en"
    json.loads(to_json(diagnosis, language, schema=1 + len(data) % 2))  # type: ignore[arg-type]
    parse_as_html(to_html(diagnosis, language))
    markdown.to_markdown(diagnosis, language)
    renderable(diagnosis, language, explain=True)


def parse_diagnose_files(data: bytes) -> None:
    path = file_of(data, "logs/train_rank0.log")
    diagnose_paths([path.parent], Options(the_matcher().catalogue))


# ---------------------------------------------------------------- text for display


def redacting(data: bytes) -> None:
    text = text_of(data)
    redact(text)
    redact(text, homes=False)


def parse_templates(data: bytes) -> None:
    text = text_of(data)
    template_key(data)
    skeleton(text)
    masked(text)
    repeats(text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def parse_terminal(data: bytes) -> None:
    text = TERMINAL_CODES.sub("", text_of(data))
    if _CONTROL.search(without_controls(text).replace("\r", "")) or "\x1b" in printable(text):
        raise Broken("a control character reaches the terminal")


def decoding(data: bytes) -> None:
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
            raise Broken(f"the page contains markup from the log: <{tag} {attrs[0][0]}=…>")


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


def parse_as_html(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    if strange := tags.found - _OUR_TAGS:
        raise Broken(f"the page contains markup from the log: {sorted(strange)}")


def parse_page_text(data: bytes) -> None:
    text = text_of(data)
    for shown in (safetext.plain(text), safetext.cell(text), safetext.verbatim(text)):
        shown.encode()
    safetext.markdown(text).encode()
    safetext.advice(text).encode()
    safetext.escaped_page(text)
    if "<" in safetext.label(text):
        raise Broken("a label of a chart contains markup")
    markdown.code(text)
    markdown.plain(text)
    markdown.fence(text.splitlines())


def parse_chat_text(data: bytes) -> None:
    shown = neutralise(text_of(data), 300)
    if len(shown) > 300 or re.search(r"[<>`\r\n]|@(?=\S)|\x1b", shown):
        raise Broken("a mention, markup, or a line end reaches a chat")
    neutralise(text_of(data))
