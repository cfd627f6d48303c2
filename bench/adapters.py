"""Adapters for tools that name the cause of a failed run. Each adapter receives the folder of a run.

To compare another tool, pass its command with ``--tool NAME=COMMAND`` (see docs/benchmark.md). All other
tools run in the process of the benchmark.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring import ALARMS

HERE = Path(__file__).resolve().parent / "cases"
CAUSES: dict[str, dict[str, Any]] = json.loads((HERE / "causes.json").read_text())


@dataclass(frozen=True)
class Answer:
    """The answer that a tool gives for one run."""

    failed: bool = False  #: True if the tool would raise an alarm
    cause: tuple[str, ...] = ()  #: the classes in causes.json that the tool names, if any
    text: str = ""  #: the text that the tool shows as the cause
    rank: int | None = None
    confidence: float | None = None


Adapter = Callable[[Path], Answer]


def lines_of(folder: Path) -> list[str]:
    """Return the lines of all logs in the folder, file by file."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.log")):
        found += re.split(r"[\n\r]+", path.read_text(errors="replace"))
    return [line for line in found if line.strip()]


def exit_code_of(folder: Path) -> int | None:
    """Return the exit code of the run's command, or ``None`` if the command has not ended."""
    code: int | None = json.loads((folder / "run.json").read_text())["exit_code"]
    return code


def classes(tool: str, name: str) -> tuple[str, ...]:
    """Convert a tool's name for a cause into classes from causes.json.

    If causes.json does not contain the name, return the name unchanged.
    """
    found = tuple(cause for cause, item in CAUSES.items() if name in item.get(tool, ()))
    return found or (f"{tool}:{name}",)


def stallwatch() -> Adapter:
    """Return the adapter that runs the diagnosis of this checkout."""
    from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
    from stallwatch_rules.pages.catalogue import load_catalogue

    options = Options(load_catalogue())

    def answer(folder: Path) -> Answer:
        recorded = (folder / "agent.json").exists()
        paths = [folder] if recorded else sorted(folder.rglob("*.log"))
        return of_diagnosis(diagnose_paths(paths, options)[0])

    return answer


def of_diagnosis(diagnosis: Any) -> Answer:
    """Convert a diagnosis of Stallwatch into an answer."""
    from stallwatch_rules.locale import rendered
    from stallwatch_rules.report.json import schema_1_verdict

    diagnosis = rendered(diagnosis)
    first = diagnosis.primary
    verdict = schema_1_verdict(diagnosis)
    if verdict == "stalled" and (first is None or "stall" in classes("stallwatch", first.rule)):
        text = " ".join([*first.evidence, first.why]) if first else ""
        return Answer(
            True, ("stall",), text, first.rank if first else None, first.confidence if first else None
        )
    if verdict == "unknown-failure" or (first is None and diagnosis.unknown):
        if not diagnosis.unknown:
            return Answer(verdict in ALARMS)
        unknown_exception = diagnosis.unknown[0]
        rank = min(unknown_exception.ranks, default=None)
        return Answer(
            verdict in ALARMS, ("other",), f"{unknown_exception.exception}: {unknown_exception.message}", rank
        )
    if first is None or verdict not in ALARMS:
        return Answer(verdict in ALARMS)
    named = classes("stallwatch", first.rule)
    return Answer(True, named, " ".join(first.evidence), first.rank, first.confidence)


def exit_code(folder: Path) -> Answer:
    """Return the answer that follows from the exit code alone. A scheduler has no other information."""
    return Answer(exit_code_of(folder) not in (0, None))


def last_line(folder: Path) -> Answer:
    """Return the last line of the logs as the answer. Most people read this line first."""
    lines = lines_of(folder)
    return Answer(exit_code_of(folder) not in (0, None), (), lines[-1] if lines else "")


_ERROR = re.compile(r"error", re.IGNORECASE)


def grep_error(folder: Path) -> Answer:
    """Return the first line that ``grep -i error`` finds as the answer."""
    found = next((line for line in lines_of(folder) if _ERROR.search(line)), "")
    return Answer(bool(found), (), found)


def nvrx() -> Adapter:
    """Return an adapter that reports the first root-cause candidate from NVRx's signatures.

    NVRx is NVIDIA's resiliency extension. The adapter uses only its published patterns, whereas NVRx itself
    weighs the matches and has a language model evaluate them.
    """
    table = json.loads((HERE / "nvrx_signatures.json").read_text())
    rows = [
        (row["id"], row["role"], re.compile(row["pattern"], re.IGNORECASE)) for row in table["signatures"]
    ]
    advice = [re.compile(pattern, re.IGNORECASE) for pattern in table["advice"]]

    def answer(folder: Path) -> Answer:
        later: Answer | None = None
        failed = exit_code_of(folder) not in (0, None)
        for line in lines_of(folder):
            found = [(name, role) for name, role, pattern in rows if pattern.search(line)]
            if not found or any(pattern.search(line) for pattern in advice):
                continue
            roots = [name for name, role in found if role == "root"]
            special = [name for name in roots if name != "observed_exception"]
            if special:
                return Answer(failed, classes("nvrx", special[0]), line)
            if roots:
                return Answer(failed, (), line)
            later = later or Answer(
                failed, classes("nvrx", found[0][0]) if found[0][1] == "confirmation" else (), line
            )
        return later or Answer(failed)

    return answer


def drain_novelty(healthy: Iterable[Path]) -> Adapter:
    """Return an adapter that finds, near a log's end, the first line whose template is new to Drain3.

    Drain3 is trained on the healthy runs. The adapter calls a run failed if one of the last twenty lines has
    a template that no healthy run has.
    """
    from drain3 import TemplateMiner
    from drain3.template_miner_config import TemplateMinerConfig

    config = TemplateMinerConfig()
    config.profiling_enabled = False
    miner = TemplateMiner(config=config)
    for folder in healthy:
        for line in lines_of(folder):
            miner.add_log_message(line[:400])

    def answer(folder: Path) -> Answer:
        lines = lines_of(folder)[-200:]
        new = [miner.match(line[:400]) is None for line in lines]
        last = max((at for at, item in enumerate(new) if item), default=None)
        if last is None:
            return Answer()
        first = last
        while first > 0 and any(new[max(first - 3, 0) : first]):
            first -= 1
        while not new[first]:
            first += 1
        return Answer(any(new[-20:]), (), lines[first])

    return answer


def command(words: Sequence[str]) -> Adapter:
    """Return an adapter for an external command that takes the folder and prints JSON (docs/benchmark.md)."""

    def answer(folder: Path) -> Answer:
        run = subprocess.run([*words, str(folder)], capture_output=True, text=True, timeout=300, check=False)
        output = json.loads(run.stdout or "{}")
        cause = output.get("cause") or ()
        return Answer(
            bool(output.get("failed")),
            (cause,) if isinstance(cause, str) else tuple(cause),
            str(output.get("text") or ""),
            output.get("rank"),
            output.get("confidence"),
        )

    return answer
