"""A table of all parsers of external data, with their functions and the exceptions that they can raise.

A target takes bytes and returns nothing. Any exception that its row does not name is a failure. The same
applies to errors that the target itself detects (`Broken`). For example, lines must not depend on how the
bytes were split.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzing import file_parsers, forms, line_parsers
from fuzzing import samples as of
from stallwatch_alerts.relay.webhook import WebhookProblem
from stallwatch_dashboard.data import metrics_page
from stallwatch_exporter.probe.layout import LayoutProblem
from stallwatch_lint.newer_python import NewerPython
from stallwatch_logs.inputs import InputError
from stallwatch_rules.pages.page_body import PageError


@dataclass(frozen=True)
class Target:
    """A parser. ``cost`` is its approximate time per input in microseconds. Fast parsers receive more inputs.

    ``size`` returns the effective size of an input. The time of the input is compared with this size. By
    default, the size is the number of bytes.
    """

    name: str
    parse: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]
    cost: float
    raises: tuple[type[BaseException], ...] = ()
    tokens: tuple[bytes, ...] = ()
    json: bool = False  #: True if the inputs are JSON, or lines of JSON
    size: Callable[[bytes], int] = len


# fmt: off
TARGETS: tuple[Target, ...] = (
    Target("line-reader", line_parsers.parse_line_reader, of.logs, 170, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("prefixed-lines", line_parsers.parse_prefixed_lines, of.logs, 300, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("line-prefixes", line_parsers.parse_prefixes, of.lines, 100, tokens=forms.LINE_TOKENS),
    Target("timestamps", line_parsers.parse_timestamps, of.lines, 5, tokens=forms.LINE_TOKENS),
    Target("iso-times", line_parsers.iso_times, lambda: forms.ISO, 3, (ValueError,)),
    Target("unescaping", line_parsers.parse_unescaping, of.lines, 20, tokens=forms.LINE_TOKENS),
    Target("numbers", line_parsers.numbers, lambda: (b"1.5", b"1,234.5e6", b"12h34m", b"00:10:20", b"3 days, 1:00:00", b"1.2K"), 8, (ValueError,)),
    Target("samples", line_parsers.samples_in, of.lines, 45, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("samples-bulk", line_parsers.samples_bulk, of.logs, 120, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("phases", line_parsers.parse_phases, of.lines, 10, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("tracebacks", line_parsers.parse_tracebacks, of.logs, 150, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("launchers", line_parsers.parse_launchers, of.logs, 200, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("matching", line_parsers.parse_matching, of.logs, 1000, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("match-scan", line_parsers.parse_match_scan, of.logs, 600, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("diagnose", line_parsers.parse_diagnose, of.logs, 8000, tokens=forms.LINE_TOKENS, size=line_parsers.size_of_lines),
    Target("diagnose-files", line_parsers.parse_diagnose_files, lambda: [*of.logs(), *of.packed()], 8000, tokens=forms.LINE_TOKENS, size=file_parsers.size_unpacked),
    Target("redact", line_parsers.redacting, lambda: [*of.SECRETS, *of.lines()], 90, tokens=forms.SECRET_TOKENS, size=line_parsers.size_of_lines),
    Target("templates", line_parsers.parse_templates, of.lines, 250, tokens=forms.LINE_TOKENS),
    Target("terminal-codes", line_parsers.parse_terminal, of.lines, 15, tokens=forms.CODES),
    Target("decoding", line_parsers.decoding, lambda: [*of.lines(), *of.packed()], 110),
    Target("page-text", line_parsers.parse_page_text, of.lines, 500, tokens=forms.MARKUP),
    Target("chat-text", line_parsers.parse_chat_text, of.lines, 150, tokens=forms.MARKUP),
    Target("decompression", file_parsers.parse_decompress, of.packed, 100, (InputError,), size=file_parsers.size_unpacked),
    Target("archives", file_parsers.parse_archives, of.packed, 250, (InputError,), size=file_parsers.size_unpacked),
    Target("log-files", file_parsers.parse_log_files, of.packed, 550, size=file_parsers.size_unpacked),
    Target("notebooks", file_parsers.parse_json_logs, lambda: forms.NOTEBOOK, 20, json=True, tokens=forms.JSON_TOKENS),
    Target("log-copies", file_parsers.parse_container_copies, lambda: of.text_of(of.ROOT / "tests/recordings", "*/ranks/*.log", 3000), 500, size=line_parsers.size_of_lines),
    Target("log-copying", file_parsers.parse_copied, of.logs, 180, tokens=forms.SECRET_TOKENS, size=line_parsers.size_of_lines),
    Target("checkpoints", file_parsers.parse_checkpoints, of.checkpoints, 90),
    Target("rank-files", file_parsers.parse_rank_files, of.rank_files, 300),
    Target("checkpoint-index", file_parsers.parse_checkpoint_index, lambda: forms.INDEX, 70, json=True, tokens=forms.JSON_TOKENS),
    Target("tail-positions", file_parsers.parse_tail_state, lambda: forms.STATE, 90, json=True, tokens=forms.JSON_TOKENS),
    Target("ring", file_parsers.ring, lambda: [of.ring()], 25, (LayoutProblem,)),
    Target("probe-events", file_parsers.parse_events, forms.written_events, 150, json=True, tokens=forms.JSON_TOKENS),
    Target("probe-answers", file_parsers.parse_answers, forms.answered, 50, json=True, tokens=forms.JSON_TOKENS),
    Target("faulthandler", file_parsers.parse_faulthandler, lambda: forms.DUMP, 10),
    Target("py-spy", file_parsers.parse_py_spy, forms.spied, 20, json=True, tokens=forms.JSON_TOKENS),
    Target("alertmanager", file_parsers.parse_webhook, forms.webhooks, 10, (WebhookProblem,), json=True, tokens=forms.JSON_TOKENS),
    Target("cluster-post", file_parsers.parse_post, forms.posts, 60, json=True, tokens=forms.JSON_TOKENS, size=file_parsers.size_unpacked),
    Target("stallwatch-toml", file_parsers.parse_settings, lambda: forms.TOML, 190, tokens=forms.TOML_TOKENS),
    Target("environment", file_parsers.parse_variables, lambda: forms.VALUES, 400, tokens=forms.TOML_TOKENS),
    Target("routes", file_parsers.parse_routes, lambda: forms.ROUTES, 60, json=True, tokens=forms.JSON_TOKENS),
    Target("chat-urls", file_parsers.parse_urls, lambda: forms.URLS, 15000, tokens=(b"://", b"@", b"?", b"&", b"%2f", b"%00", b"[::1]", b":99999")),
    Target("names", file_parsers.parse_names, lambda: (b"../../x", b"rank_0.log", b"a b?c", *of.lines()[:50]), 25),
    Target("rule-pages", file_parsers.parse_rule_page, of.pages, 4500, (PageError,), tokens=forms.YAML_TOKENS),
    Target("deepspeed-json", file_parsers.parse_lint_json, lambda: forms.DEEPSPEED, 400, json=True, tokens=forms.JSON_TOKENS),
    Target("accelerate-yaml", file_parsers.parse_lint_yaml, lambda: forms.ACCELERATE, 120, tokens=forms.YAML_TOKENS),
    Target("scripts", file_parsers.parse_lint_script, lambda: forms.SCRIPT, 400, (NewerPython,), tokens=forms.PY_TOKENS),
    Target("metrics-page", file_parsers.parse_metrics_page, lambda: forms.METRICS, 110, (metrics_page.ScrapeError,)),
    Target("stored-run", file_parsers.parse_stored_run, lambda: of.stored("agent.json"), 80, json=True, tokens=forms.JSON_TOKENS),
    Target("stored-incidents", file_parsers.parse_stored_incidents, lambda: of.stored("incidents.jsonl"), 550, json=True, tokens=forms.JSON_TOKENS),
    Target("stored-payloads", file_parsers.parse_stored_payloads, lambda: of.stored("incidents.jsonl")[0].splitlines(), 15, json=True),
    Target("stored-report", file_parsers.parse_stored_report, lambda: of.stored("diagnosis.json"), 1200, json=True, tokens=forms.JSON_TOKENS),
)
# fmt: on

BY_NAME = {target.name: target for target in TARGETS}


def wrong(target: Target, data: bytes) -> str | None:
    """Parse an input. Return a description of an undocumented exception, or ``None`` if there is none."""
    try:
        target.parse(data)
    except target.raises:
        return None
    except Exception as error:
        return described(error)
    return None


def seconds_for(target: Target, data: bytes) -> float:
    """Return the processor time of the target for one input."""
    began = time.process_time()
    wrong(target, data)
    return time.process_time() - began


def described(error: BaseException) -> str:
    """Return a description of the exception, with the innermost code location in Stallwatch."""
    place, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if "stallwatch" in Path(path).name or "/stallwatch" in path.rpartition("/site-packages/")[2]:
            place = f"{path.rpartition('/stallwatch')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    message = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "?", str(error))
    return f"{type(error).__name__} at {place}: {message[:160]}"
