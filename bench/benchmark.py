"""On public cases, measure how often tools name the cause of a failed run. See ``make benchmark``.

    python bench/benchmark.py                          # all tools, all cases
    python bench/benchmark.py --tool mine='python mine.py' --only stallwatch --only mine
    python bench/benchmark.py --wrong                  # also list the open cases that the tools get wrong

docs/benchmark.md describes the cases and the scores, and explains how to add another tool.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shlex
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from scoring import Share

HERE = Path(__file__).resolve().parent / "cases"
sys.path.insert(0, str(HERE))

import adapters  # noqa: E402 - a module in the folder of this file
import generate  # noqa: E402 - a module in the folder cases/


@dataclass(frozen=True)
class Case:
    """A run and its correct answer. Each row of ``cases/cases.jsonl`` describes one case."""

    id: str
    kind: str  #: "real run", "re-enacted", or "generated"
    cause: str  #: a class of causes.json, or several classes separated by bars; empty if nothing is wrong
    sign: str  #: words that name the cause, or the code location of a hang; bars separate alternatives
    exit_code: int | None  #: ``None`` if the run had not ended
    rank: int | None  #: the rank at fault, if the run has several ranks
    ranks: int
    sha256: str  #: hash of the log or archive
    source: str  #: the command of the run, or the source of the log format

    @property
    def sealed(self) -> bool:
        """Return True if the case is in the sealed half, whose cases developers do not inspect one by one."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 1

    @property
    def failed(self) -> bool:
        return bool(self.cause)

    @property
    def hangs(self) -> bool:
        return self.cause == "stall"

    def content(self) -> bytes:
        """Return the log or the archive of the case."""
        if self.kind == "generated":
            content = generate.generated_log(self.id).text.encode()
        else:
            folder, ending = ("recordings", "tar.gz") if self.hangs else ("real", "log.gz")
            content = (HERE / folder / f"{self.id}.{ending}").read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise click.ClickException(f"the content of {self.id} does not match its checksum in cases.jsonl")
        return content

    def unpack(self, folder: Path) -> None:
        """Write the tools' input to the folder: the logs, and ``run.json`` with the exit code."""
        folder.mkdir(parents=True)
        content = self.content()
        if self.hangs:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(folder, filter="data")
        else:
            text = content if self.kind == "generated" else gzip.decompress(content)
            (folder / "job.log").write_bytes(text)
        (folder / "run.json").write_text(json.dumps({"exit_code": self.exit_code, "ranks": self.ranks}))


def read_cases() -> list[Case]:
    return [Case(**row) for row in map(json.loads, (HERE / "cases.jsonl").read_text().splitlines())]


def judge(case: Case, answer: adapters.Answer) -> str:
    """Compare a tool's answer with the correct answer.

    Return "right", "wrong", or "none" for a failed run. For any other run, return "quiet" or "alarm".
    """
    if not case.failed:
        return "alarm" if answer.failed else "quiet"
    shown = _shows(case, answer.text)
    causes = case.cause.split("|")
    if case.hangs:
        if "stall" in answer.cause:
            return "right" if shown else "wrong"
        return "wrong" if answer.cause or shown else "none"
    named = {*answer.cause} - {"other"}
    if named:
        return "right" if named & {*causes} else "wrong"
    if answer.text:  # the tool names no class, so its text decides
        return "right" if shown else "wrong"
    return "wrong" if answer.cause else "none"


def _shows(case: Case, text: str) -> bool:
    if not case.sign:
        return False
    if case.hangs:
        return re.search(case.sign, text, re.IGNORECASE) is not None
    return any(part in text for part in case.sign.split("|"))


@dataclass(frozen=True)
class Scored:
    case: Case
    answer: adapters.Answer
    outcome: str


def table(scores: dict[str, list[Scored]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row for each tool."""
    heads = ["Tool", "Root cause right", "Root cause wrong", "No answer", "Rank right"]
    heads += ["Hang detected", "Hang location right", "False alarms"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for tool, scored in scores.items():
        ended = [item for item in scored if item.case.failed and not item.case.hangs]
        hangs = [item for item in scored if item.case.hangs]
        benign = [item for item in scored if not item.case.failed]
        ranked = [item for item in scored if item.case.failed and item.case.rank is not None]
        counts = Counter(item.outcome for item in ended)
        row = [
            f"`{tool}`",
            Share(counts["right"], len(ended)).measured,
            Share(counts["wrong"], len(ended)).measured,
            Share(counts["none"], len(ended)).measured,
            Share(sum(item.answer.rank == item.case.rank for item in ranked), len(ranked)).measured,
            Share(sum(hang.answer.failed for hang in hangs), len(hangs)).measured,
            Share(sum(hang.outcome == "right" for hang in hangs), len(hangs)).measured,
            Share(sum(item.outcome == "alarm" for item in benign), len(benign)).measured,
        ]
        yield f"| {' | '.join(row)} |"


def describe(cases: Sequence[Case]) -> str:
    kinds = Counter(case.kind for case in cases)
    benign = sum(not case.failed for case in cases)
    hangs = sum(case.hangs for case in cases)
    listed = ", ".join(
        f"{count} {'from real runs' if kind == 'real run' else kind}" for kind, count in sorted(kinds.items())
    )
    return (
        f"{len(cases)} cases ({listed}): {len(cases) - benign - hangs} failed runs, {hangs} hangs, and"
        f" {benign} benign runs."
    )


TOOLS = ("stallwatch", "nvrx", "drain3-novelty", "grep-error", "last-line", "exit-code")


def run_tools(
    names: Sequence[str],
    cases: Sequence[Case],
    joined: Mapping[str, Sequence[str]] | None = None,
    *,
    console: Console,
) -> dict[str, list[Scored]]:
    """Run every tool on every case and return the scored answers by tool."""
    scores: dict[str, list[Scored]] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folders = {case.id: Path(temporary) / case.id for case in cases}
        for case in cases:
            case.unpack(folders[case.id])
        learnt = [folders[case.id] for case in cases if not case.failed and not case.sealed]
        for name in names:
            adapter = adapter_of(name, learnt, joined or {})
            scores[name] = []
            for case in track(cases, name, console=console, transient=True):
                answer = adapter(folders[case.id])
                scores[name].append(Scored(case, answer, judge(case, answer)))
    return scores


def adapter_of(name: str, learnt: Sequence[Path], joined: Mapping[str, Sequence[str]]) -> adapters.Adapter:
    """Return the adapter for a tool. If necessary, train the tool on the healthy runs of the open half."""
    if name in joined:
        return adapters.command(joined[name])
    if name == "drain3-novelty":
        return adapters.drain_novelty(learnt)
    if name == "stallwatch":
        return adapters.stallwatch()
    if name == "nvrx":
        return adapters.nvrx()
    plain = {
        "grep-error": adapters.grep_error,
        "last-line": adapters.last_line,
        "exit-code": adapters.exit_code,
    }
    return plain[name]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--tool",
    "commands",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Also measure the tool that this command runs (see docs/benchmark.md).",
)
@click.option("--only", multiple=True, help="Run only this tool. You can repeat this option.")
@click.option("--wrong", is_flag=True, help="List the open cases that the tools get wrong.")
@click.option(
    "--unseal",
    is_flag=True,
    help="Also list the cases of the sealed half. This half is then no longer suitable to judge a tool.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all answers to this file as JSON lines.",
)
def main(
    commands: tuple[str, ...], only: tuple[str, ...], wrong: bool, unseal: bool, write: Path | None
) -> None:
    """Run every tool on every case and print how often each tool is right."""
    cases = read_cases()
    joined = {name: shlex.split(words) for name, _, words in (command.partition("=") for command in commands)}
    known = [*TOOLS, *joined]
    if unknown := [name for name in only if name not in known]:
        raise click.UsageError(f"--only {unknown[0]}: no such tool; the tools are {', '.join(known)}")
    names = [name for name in known if not only or name in only]
    scores = run_tools(names, cases, joined, console=Console(stderr=True))
    for title, sealed in (("Open half", False), ("Sealed half", True)):
        half = {
            name: [item for item in scored if item.case.sealed is sealed] for name, scored in scores.items()
        }
        click.echo(f"## {title}\n\n{describe([case for case in cases if case.sealed is sealed])}\n")
        click.echo("\n".join(table(half)) + "\n")
    for name, scored in scores.items():
        for outcome in scored:
            if (
                wrong
                and outcome.outcome in ("wrong", "none", "alarm")
                and (unseal or not outcome.case.sealed)
            ):
                case, answer = outcome.case, outcome.answer
                printed = f"{','.join(answer.cause)} {answer.confidence or ''} {answer.text[:140]}"
                click.echo(f"{name}: {case.id} ({case.cause or 'benign'}): {outcome.outcome}: {printed}")
    if write is not None:
        rows = (
            {
                "tool": name,
                "case": item.case.id,
                "outcome": item.outcome,
                "cause": item.answer.cause,
                "text": item.answer.text[:300],
            }
            for name, scored in scores.items()
            for item in scored
            if unseal or not item.case.sealed
        )
        write.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
