"""For every labeled corpus on this machine, measure how often the diagnosis is right.

    make scoreboard                       # the project's own corpus, and ../shared/corpus if it exists;
                                          # without shared/corpus, docs/scoreboard.md is unchanged
    python bench/scoreboard.py --corpus DIR --wrong --write docs/scoreboard.md

A corpus is a folder that can contain the following files. ``cases.jsonl``, ``failures.jsonl``, and
``benign.jsonl`` contain rows with ``id``, ``signature``, and ``log`` or ``file``. ``files.jsonl`` describes
whole logs that are ``healthy`` or ``failed``, in rows with ``file`` and ``kind``. ``labels.jsonl`` describes
whole logs that had not been seen before, in rows with ``file``, ``verdict``, ``class``, and ``benign``. The
recordings of the tests (``meta.json``) are also read. Shares are printed with their 95% Wilson intervals.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from scoring import (
    Claim,
    Outcome,
    Share,
    by_family,
    calibration,
    claims,
    confusions,
    expected_error,
    failures,
    share,
    wrong_alarms,
)

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths, diagnose_run
from stallwatch_logs.log_files import from_stream
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.records import Diagnosis

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT, CALIBRATION = "Development corpus", "Calibration"  #: sections that need additional corpora
OWN = (ROOT / "tests" / "corpus", ROOT / "tests" / "recordings")


def cases(corpus: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield the ID, the label, and the path or the text of every case in the folder."""
    for name in ("cases.jsonl", "failures.jsonl", "benign.jsonl", "files.jsonl"):
        path = corpus / name
        if not path.exists():
            continue
        for number, row in enumerate(map(json.loads, path.read_text().splitlines()), 1):
            label = row.get("signature") or row["kind"]
            if name == "benign.jsonl" and not label.startswith("benign"):
                label = f"benign:{label}"
            content = row["log"] if "log" in row else corpus / row["file"]
            yield row.get("id", f"{name}:{number}"), label, content
    labels = corpus / "labels.jsonl"
    for row in map(json.loads, labels.read_text().splitlines()) if labels.exists() else ():
        yield f"{corpus.parent.name}/{row['file']}", _unseen(row), corpus / row["file"]
    for meta in sorted(corpus.glob("*/meta.json")):
        expected = json.loads(meta.read_text())["expected"]
        yield meta.parent.name, expected["primary"] or expected["verdict"], meta.parent


def _unseen(row: dict[str, Any]) -> str:
    """Return the label of a whole log, derived from the verdict in its row."""
    if row["benign"] or row["verdict"] in ("finished", "unfinished", "no-evidence"):
        return f"benign:{row['class'] or row['verdict']}"
    return row["class"] or "unknown"


def diagnosis_of(content: Path | str, catalogue: Catalogue) -> Diagnosis:
    """Diagnose the log, the folder, or the text of one case."""
    if isinstance(content, Path):
        return diagnose_paths([content], Options(catalogue))[0]
    files, problems = from_stream("train.log", io.BytesIO(content.encode()))
    return diagnose_run(files, problems, (), Options(catalogue)).diagnosis


def outcome(case: tuple[str, str, Any], catalogue: Catalogue) -> Outcome:
    """Diagnose one case and return its outcome."""
    name, label, content = case
    return Outcome.of(name, label, diagnosis_of(content, catalogue))


def section(title: str, outcomes: list[Outcome], families: dict[str, str]) -> list[str]:
    """Return the scores of one corpus in Markdown."""
    benign = [outcome for outcome in outcomes if outcome.label.startswith("benign")]
    healthy = [outcome for outcome in outcomes if outcome.label == "healthy"]
    whole = [outcome for outcome in outcomes if outcome.label == "failed"]
    lines = [f"## {title}", "", f"This corpus contains {len(outcomes)} cases.", ""]
    lines += ["| Measure | Score |", "|---|---|"]
    quiet, alarms = (
        Share(len(wrong_alarms(benign)), len(benign)),
        Share(len(wrong_alarms(healthy)), len(healthy)),
    )
    lines.append(
        f"| Share of failures for which the primary cause is right | {share(failures(outcomes)).measured} |"
    )
    lines.append(
        "| Share of failed runs without a labeled cause that Stallwatch reports as failures "
        f"| {share(whole).measured} |"
    )
    lines.append(f"| Share of benign cases with a false alarm | {quiet.measured} |")
    lines.append(f"| Share of healthy logs that Stallwatch reports as failures | {alarms.measured} |")
    lines += ["", *reliability(claims(outcomes))]
    lines += ["", "| Family | Precision | Recall |", "|---|---|---|"]
    lines += [
        f"| `{item.family}` | {item.precision} | {item.recall} |" for item in by_family(outcomes, families)
    ]
    wrong = confusions(outcomes)
    if wrong:
        lines += [
            "",
            "| Expected rule or verdict | Reported rule or verdict | Number of cases |",
            "|---|---|---|",
        ]
        lines += [f"| `{label}` | `{said}` | {count} |" for label, said, count in wrong]
    return [*lines, ""]


def reliability(claimed: list[Claim]) -> list[str]:
    """Return a table that shows how often the named causes are right, for each range of confidence."""
    lines = ["| Range of the confidence | Average confidence | Right causes |", "|---|---|---|"]
    for bucket in calibration(claimed):
        mean = f"{bucket.mean:.2f}" if bucket.score.all else ""
        lines.append(f"| {bucket.low:.1f}–{min(bucket.high, 1):.1f} | {mean} | {bucket.score.measured} |")
    return lines


def calibrated(claimed: list[Claim]) -> list[str]:
    """Return the section about all corpora, which shows the reliability of the confidence in each half."""
    lines = [
        f"## {CALIBRATION}",
        "",
        "Each case of both corpora and of `make benchmark` belongs to one of two halves, depending on the",
        "hash of its name. We choose the confidence levels on the development half, and evaluate them on",
        "the frozen half.",
        "",
        "| Half | Number of named causes | Right causes at a confidence of 0.9 or more "
        "| Expected calibration error |",
        "|---|---|---|---|",
    ]
    for name, frozen in (("Development", False), ("Frozen", True)):
        half = [item for item in claimed if item.frozen is frozen]
        sure = [item for item in half if item.confidence >= 0.9]
        right = Share(sum(item.right for item in sure), len(sure))
        lines.append(f"| {name} | {len(half)} | {right.measured} | {expected_error(half):.1%} |")
    return [
        *lines,
        "",
        "The following table shows the result on the frozen half:",
        "",
        *reliability([item for item in claimed if item.frozen]),
        "",
    ]


def levels(claimed: list[Claim]) -> list[str]:
    """Return a table that shows, for each confidence, how often the causes are right.

    The table uses only the development half, on which the confidences are calibrated.
    """
    lines = ["| Confidence | Right, development half |", "|---|---|"]
    half = [item for item in claimed if not item.frozen]
    for level in sorted({item.confidence for item in half}, reverse=True):
        these = [item for item in half if item.confidence == level]
        lines.append(f"| {level:.2f} | {Share(sum(item.right for item in these), len(these)).measured} |")
    return lines


HEAD = """# Scoreboard

The `make scoreboard` command generates this page and also prints its tables. Stallwatch diagnoses every
labeled case of two corpora. The project's own corpus is the output of the programs in `tests/repro/`. The
development corpus contains real cases from public issue threads and logs, which we labeled by hand. The
development corpus is not part of the repository. We used both corpora to write the rules, so expect lower
scores for other logs.

A score such as `62/62 = 100.0% [94.2%, 100.0%]` contains the number of right cases, the number of all
cases, the share, and the 95% confidence interval for the share.
"""


def benchmark_claims(console: Console) -> list[Claim]:
    """Return the causes that Stallwatch names for the cases of the open benchmark."""
    import benchmark

    scored = benchmark.run_tools(["stallwatch"], benchmark.read_cases(), console=console)["stallwatch"]
    return [
        Claim(item.case.id, item.answer.confidence, item.outcome == "right")
        for item in scored
        if item.answer.failed and item.answer.confidence is not None
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--corpus",
    "more",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Also measure this labeled corpus. You can repeat this option.",
)
@click.option("--wrong", is_flag=True, help="List the cases with a wrong diagnosis.")
@click.option(
    "--levels", "by_level", is_flag=True, help="Also print the share of right causes by confidence."
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the tables to this file if --corpus is given.",
)
def main(more: tuple[Path, ...], wrong: bool, by_level: bool, write: Path | None) -> None:
    """Diagnose every labeled case and print how often the diagnosis is right."""
    console, catalogue = Console(stderr=True), load_catalogue()
    families = {page.id: page.family for page in catalogue.pages.values()}
    corpora = [("The project's own corpus", list(OWN)), *((DEVELOPMENT, [path]) for path in more)]
    text, claimed = [HEAD], benchmark_claims(console) if more or by_level else []
    for title, folders in corpora:
        listed = [case for folder in folders for case in cases(folder)]
        outcomes = [
            outcome(case, catalogue) for case in track(listed, title, console=console, transient=True)
        ]
        text += section(title, outcomes, families)
        claimed += claims(outcomes)
        if wrong:
            for row in outcomes:
                if not row.right:
                    console.print(
                        f"{row.case}: expected {row.label}, reported {row.verdict}, "
                        f"{row.primary} {row.confidence:.2f}",
                        style="yellow",
                        highlight=False,
                    )
    text += calibrated(claimed) if more else []
    sys.stdout.write("\n".join([*text[1:], *(levels(claimed) if by_level else ())]))
    if not more:
        unchanged = f"; {write} is unchanged" if write is not None else ""
        console.print(
            f'Not measured without a development corpus (--corpus DIR): every row of "{DEVELOPMENT}" and '
            f'"{CALIBRATION}"{unchanged}.',
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    elif write is not None:
        write.write_text("\n".join(text))


if __name__ == "__main__":
    main()
