"""Store the diagnosis of every log on this machine and compare the diagnoses after a change.

    python bench/verdicts.py write before.jsonl --corpus ../shared/corpus --logs ../shared/recordings
    python bench/verdicts.py compare before.jsonl --corpus ../shared/corpus --logs ../shared/recordings

The cases are the scoreboard's cases, every sample block of every rule page, and each folder with logs in
the folders that ``--logs`` names. A row contains the complete JSON report in schema 1 (without times) and
the verdict in schema 2. ``compare`` prints each difference. Its exit code is 1 if a case differs in its
verdict or in its root cause, including the confidence, the rank, the line, and the fixes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from scoreboard import OWN, ROOT, cases, diagnosis_of

from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.report.json import to_json

PRIMARY = ("rule", "confidence", "rank", "file", "line", "fixes")
MINOR_SHOWN = 20


def listed(corpora: tuple[Path, ...], logs: tuple[Path, ...]) -> Iterator[tuple[str, Path | str]]:
    """Yield the name of every case and its path or text."""
    for corpus in (*OWN, *corpora):
        for number, (name, _, content) in enumerate(cases(corpus), 1):
            yield f"{corpus.name}/{number} {name}", content
    for page in _catalogue().pages.values():
        for kind, samples in (("fires", page.fires), ("quiet", page.quiet)):
            for number, text in enumerate(samples, 1):
                yield f"page/{page.id}/{kind} {number}", text
    for folder in logs:
        runs = {path.parent for path in folder.rglob("*") if path.is_file()}
        yield from ((f"{folder.name}/{run.relative_to(folder)}", run) for run in sorted(runs))


@cache
def _catalogue() -> Catalogue:
    return load_catalogue()


def diagnosed(case: tuple[str, Path | str]) -> dict[str, Any]:
    """Return the row for one case: the case's name, and the JSON report without times."""
    name, content = case
    diagnosis = diagnosis_of(content, _catalogue())
    # Remove the path of the checkout, because a different checkout has the same logs at a different path.
    report = json.loads(to_json(diagnosis).replace(f"{ROOT}/".encode(), b""))
    report.pop("stats", None)
    return {"case": name, **report, "run": f"{diagnosis.verdict} {diagnosis.interrupted_by or ''}".rstrip()}


def difference(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences between two rows in the form ``key: a -> b``.

    The first list contains the differences in the parts of the verdict. The second list contains all other
    differences.
    """
    old, new = before.get("primary") or {}, after.get("primary") or {}
    major = [("verdict", before.get("verdict"), after.get("verdict"))]
    major += [("run", before["run"], after["run"])] if "run" in before else []  # missing in earlier versions
    major += [(f"primary.{key}", old.get(key), new.get(key)) for key in PRIMARY]
    minor = [
        (key, before.get(key), after.get(key))
        for key in sorted({*before, *after} - {"case", "verdict", "run", "primary"})
    ]
    minor += [(f"primary.{key}", old.get(key), new.get(key)) for key in sorted({*old, *new} - {*PRIMARY})]
    return _changed(major), _changed(minor)


def _changed(pairs: list[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {_short(a)} -> {_short(b)}" for key, a, b in pairs if a != b]


def _short(value: Any, most: int = 300) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[:most] + "…"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Store and compare the diagnoses of every log on this machine."""


def _common(command: Callable[..., None]) -> Callable[..., None]:
    folder = click.Path(path_type=Path, file_okay=False, exists=True)
    command = click.option("--jobs", default=2, show_default=True, help="Number of parallel processes.")(
        command
    )
    command = click.option(
        "--logs", multiple=True, type=folder, help="Folder that contains folders of runs."
    )(command)
    return click.option("--corpus", multiple=True, type=folder, help="Also use this labeled corpus.")(command)


def _rows(corpus: tuple[Path, ...], logs: tuple[Path, ...], jobs: int) -> Iterator[dict[str, Any]]:
    found = list(listed(corpus, logs))
    with ProcessPoolExecutor(jobs) as pool:
        done = pool.map(diagnosed, found, chunksize=8)
        yield from track(done, "Diagnosing", len(found), console=Console(stderr=True), transient=True)


@main.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@_common
def write(path: Path, corpus: tuple[Path, ...], logs: tuple[Path, ...], jobs: int) -> None:
    """Write a row for each case to PATH."""
    rows = [json.dumps(row, ensure_ascii=False) for row in _rows(corpus, logs, jobs)]
    path.write_text("\n".join(rows) + "\n")
    click.echo(f"{len(rows)} cases in {path}")


@main.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--all", "every", is_flag=True, help=f"Show more than {MINOR_SHOWN} lesser differences.")
@_common
def compare(path: Path, every: bool, corpus: tuple[Path, ...], logs: tuple[Path, ...], jobs: int) -> None:
    """Print how the diagnoses of the cases differ from the rows in PATH."""
    before = {row["case"]: row for row in map(json.loads, path.read_text().rstrip("\n").split("\n"))}
    verdicts, lesser, new = 0, 0, 0
    for row in _rows(corpus, logs, jobs):
        old = before.pop(row["case"], None)
        if old is None:
            new += 1
            continue
        major, minor = difference(old, row)
        verdicts += bool(major)
        lesser += bool(minor) and not major
        if major or (minor and (every or lesser <= MINOR_SHOWN)):
            click.echo("\n  ".join([row["case"], *major, *minor]))
    click.echo(
        f"{verdicts} verdicts and {lesser} other reports differ; {new} cases are new, {len(before)} are gone"
    )
    sys.exit(1 if verdicts or before else 0)


if __name__ == "__main__":
    main()
