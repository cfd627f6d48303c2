"""Run a launch under ``stallwatch run`` and combine the results from log, probe and diagnosis."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from record import environment

from stallwatch_exporter.probe.layout import LayoutProblem
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.runs.replay import merged_records
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import schema_1_verdict

HERE = Path(__file__).resolve().parent
KINDS = ("mismatch", "short", "external")  #: reasons for which ZeRO-3 invalidates its trace cache
_RAISED = re.compile(r"^(?:\[[a-z]+\d*\]:\s?)*((?:\w+\.)*\w*(?:Error|Exception)\b: .+)$")
_SUMMARIES = ("torch.distributed.elastic.", "subprocess.CalledProcessError")
_MESSAGE = "Invalidate trace cache @"
_MOST = 200  #: characters kept of an exception's text: some texts list all parameters


class NotWatched(RuntimeError):
    """Stallwatch itself left no diagnosis; the end of the output contains the reason."""


@dataclass
class Seen:
    """Results of one run, as JSON values."""

    exit_code: int = 0
    seconds: float = 0.0
    #: From the log: exceptions' last lines, and the number of trace-cache messages.
    raised: list[str] = field(default_factory=list)
    messages: int = 0
    #: From the probe: values by rank, or the highest count of any rank.
    steps: dict[str, int] = field(default_factory=dict)
    invalidations: dict[str, int] = field(default_factory=dict)
    exceptions: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)  #: rules of which the probe warned before the failure
    versions: dict[str, str] = field(default_factory=dict)
    faults: int = 0
    #: From Stallwatch's diagnosis.
    verdict: str = ""
    primary: str | None = None
    findings: dict[str, str] = field(default_factory=dict)  #: impact by rule
    incidents: list[str] = field(default_factory=list)  #: rules of incidents that were opened during the run


def watch(
    command: list[str],
    home: Path,
    python: str = sys.executable,
    seconds: float = 240.0,
    keep: Path | None = None,
) -> Seen:
    """Run a launch with the Python of another environment, under the Stallwatch of this Python.

    `home` is a new folder for the state. After `seconds`, all processes are ended, and the exit code shows
    it. The launch's output goes to the file `keep`, as a terminal would show it. Raises `NotWatched` if
    Stallwatch failed instead of the launch.
    """
    env = environment(None) | {
        "STALLWATCH_HOME": str(home),
        "PATH": f"{Path(python).parent}:{environment(None)['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    if kept := os.environ.get("STALLWATCH_CACHE"):  # compiled patterns are not part of a run's state
        env["STALLWATCH_CACHE"] = kept
    home.mkdir(parents=True)
    output = home / "terminal.log"
    stallwatch = [str(Path(sys.executable).parent / "stallwatch"), "run", "--name", "watched", "--port", "0"]
    with output.open("wb") as out:
        child = subprocess.Popen(
            [*stallwatch, "--", python, *command],
            cwd=HERE,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        rings = Rings(home)
        try:
            rings.follow(child, seconds)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait(60)
    folder = home / "runs" / "watched"
    if not (folder / "diagnosis.json").exists():
        raise NotWatched(output.read_text(errors="replace")[-2000:])
    if keep is not None:
        keep.write_bytes(b"".join(record.printed for record in merged_records(folder)))
    seen = results_in(folder)
    seen.exit_code = child.returncode
    rings.into(seen)
    return seen


def torchrun(program: str, *options: str) -> list[str]:
    """Return the launch of two ranks, to follow a Python."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--tee", "3"]
    return [*launch, program, *options]


class Rings:
    """The rings of a run, held open: they stay readable after the end of the run removes their folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._readers: dict[Path, RingReader] = {}
        self._last: dict[Path, dict[str, float]] = {}

    def follow(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        """Open new rings until the child ends, for `seconds` at most."""
        for _ in range(int(seconds / 0.2)):
            self._look()
            try:
                child.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                continue
        self._look()

    def _look(self) -> None:
        for path in self._home.glob("rings/*/*.ring"):
            if path not in self._readers:
                try:
                    self._readers[path] = RingReader(path)
                except (OSError, LayoutProblem):  # not written yet, or already removed
                    continue
        for path, reader in self._readers.items():
            for record in reader.read().records:
                self._last.setdefault(path, {}).update(record.values)

    def into(self, seen: Seen) -> None:
        """Put the last values of each rank into `seen`."""
        for path, reader in self._readers.items():
            values = self._last.get(path, {})
            seen.faults += reader.faults
            if "step" in values:
                seen.steps[str(reader.header.rank)] = int(values["step"])
            for kind in KINDS:
                count = int(values.get(f"invalidations_{kind}", 0))
                seen.invalidations[kind] = max(count, seen.invalidations.get(kind, 0))
            reader.close()


def results_in(folder: Path) -> Seen:
    """Return the results from the folder of an ended run."""
    lines = [record.printed.decode(errors="replace").strip() for record in merged_records(folder)]
    diagnosis = json.loads((folder / "diagnosis.json").read_text())
    events = list(_json_lines(folder / "events.jsonl"))
    return Seen(
        seconds=round(json.loads((folder / "agent.json").read_text())["ending"]["seconds"], 1),
        raised=last_words(lines),
        messages=sum(_MESSAGE in line for line in lines),
        exceptions=_distinct(
            f"{event['exception'].removeprefix('builtins.')}: {event['message']}"[:_MOST]
            for event in events
            if event["kind"] == "exception"
        ),
        early=_distinct(event["rule"] for event in events if event["kind"] == "concern"),
        versions=next((_versions(event) for event in events if event["kind"] == "versions"), {}),
        verdict=schema_1_verdict(msgspec.convert(diagnosis, Diagnosis)),
        primary=diagnosis["primary"] and diagnosis["primary"]["rule"],
        findings={finding["rule"]: finding["harm"] for finding in diagnosis["findings"]},
        incidents=_distinct(event["rule"] for event in _json_lines(folder / "incidents.jsonl")),
    )


def last_words(lines: Iterable[str]) -> list[str]:
    """Return distinct last lines of a log's exceptions, most frequent first, without summaries."""
    found = (match[1][:_MOST] for line in lines if (match := _RAISED.match(line)))
    counted = Counter(text for text in found if not text.startswith(_SUMMARIES))
    return [text for text, _ in counted.most_common()]


def _versions(event: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in event.items() if name not in ("rank", "time", "kind", "count")}


def _distinct(each: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(each))


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines()) if path.exists() else ()
