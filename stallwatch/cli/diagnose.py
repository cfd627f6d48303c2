"""Implement ``stallwatch diagnose``: diagnose a run from its logs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import (
    FILE,
    App,
    any_unread,
    catalogue_of,
    duration,
    language_option,
    paths_argument,
    print_notice,
    print_notices,
    progress_bar,
    rendered,
    rules_option,
    write_text,
)
from stallwatch.config.handover import read_limits

if TYPE_CHECKING:
    from rich.console import Console

    from stallwatch_exporter.postmortem.jobs import JobsResult
    from stallwatch_logs.inputs import InputProblem, Limits
    from stallwatch_logs.parallel_reading import Parallel
    from stallwatch_rules.failures.unexplained import Baseline
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.records import Diagnosis, JobSummary
    from stallwatch_rules.report.json import Schema

_FEW = 3  # maximum number of paths in a suggested command
_STRICT = 3  #: exit code if the log does not show how the run ended


class _Diagnose(click.Command):
    """The command ``diagnose``, which accepts both ``--json`` and ``--json=2``.

    If click parsed an optional value of ``--json``, it would take the following path as the value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Convert the value in ``--json=2`` to a separate option before click parses the arguments."""
        end = args.index("--") if "--" in args else len(args)
        split: list[str] = []
        for arg in args[:end]:
            if not arg.startswith("--json="):
                split.append(arg)
            elif arg[7:] in ("1", "2"):
                split += ["--json", "--json-schema", arg[7:]]
            else:
                raise click.UsageError(f"{arg}: the schema must be 1 or 2; use --json=2", ctx)
        return super().parse_args(ctx, split + args[end:])


@click.command(cls=_Diagnose)
@paths_argument
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON; --json=2 uses schema 2.")
@click.option("--json-schema", "schema", type=click.IntRange(1, 2), default=1, hidden=True)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 if the log does not show how the run ended, and with 1 if the system stopped the run.",
)
@click.option("--brief", "as_brief", is_flag=True, help="Print the verdict, the cause, and the first fix.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the report as Markdown.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write the report to this file.",
)
@click.option(
    "--html",
    "page",
    type=FILE,
    metavar="FILE",
    help="Also write the report with its charts to this self-contained HTML file.",
)
@click.option(
    "--explain", is_flag=True, help="Show which rules matched and how each assessor changed the findings."
)
@click.option(
    "--each",
    is_flag=True,
    help="Diagnose every file as a separate run, and print a table of verdicts.",
)
@click.option("--job", metavar="NAME", help="Diagnose only this job.")
@click.option("--together", is_flag=True, help="Read all files as one run, regardless of their names.")
@click.option(
    "--baseline",
    "healthy",
    multiple=True,
    metavar="PATH",
    help="Logs of a healthy run; lines that are not in these logs are reported as new. Can be repeated.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes that read files (default: one per processor, at most 8). With 1, Stallwatch"
    " starts no other process.",
)
@click.option(
    "--timeout",
    callback=duration,
    metavar="DURATION",
    help="Stop reading after this time (such as 30s or 5m), and diagnose the text that was read until then.",
)
@language_option
@rules_option
@click.pass_obj
def diagnose(
    app: App,
    paths: tuple[str, ...],
    as_json: bool,
    schema: Schema,
    strict: bool,
    as_brief: bool,
    as_markdown: bool,
    output: Path | None,
    page: Path | None,
    explain: bool,
    each: bool,
    job: str | None,
    together: bool,
    healthy: tuple[str, ...],
    workers: int | None,
    timeout: float | None,
) -> None:
    """Find out what stopped a run, from its logs alone.

    PATH is a file, a folder of per-rank logs, a glob, an archive (.gz .xz .zst .zip .tar.*), or - for
    standard input. An excerpt, such as a traceback, is enough.

    \b
    stallwatch diagnose logs/
    stallwatch diagnose slurm-1234.out --markdown -o report.md
    stallwatch diagnose logs/ --html report.html
    stallwatch diagnose --each runs/*.log
    stallwatch diagnose logs/ --baseline logs-of-last-week/
    kubectl logs my-job-0 | stallwatch diagnose - --json

    All files are read as one run, unless their names show that they belong to several jobs (such as
    slurm-1001.out and slurm-1002.out). Each job is then diagnosed separately: a table lists the jobs, newest
    first, and the report covers the newest job that has a problem or, if no job has a problem, the newest
    training job.

    Exit code: 1 if the run, or any of the jobs, failed for a known or unknown reason, stalled, or was stopped
    by the system; 2 if an input could not be read (all other inputs are still diagnosed); otherwise 0. With
    --strict or --json=2, the exit code is 3 if the log stops mid-run without an explanation, or has too
    little evidence. An empty file counts as unreadable only if no other input could be read.
    """
    # Disable the threads of numpy's linear algebra, which use processor time while they wait for work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stallwatch_exporter.postmortem.diagnose import Options, diagnose_each
    from stallwatch_exporter.postmortem.jobs import NoSuchJob, diagnose_jobs
    from stallwatch_logs.parallel_reading import Parallel, default_workers
    from stallwatch_rules.text.digest import counted

    form = _form(json=as_json, brief=as_brief, markdown=as_markdown)
    _form(each=each, job=job is not None, together=together)
    if explain and (each or form not in (None, "json")):
        raise click.UsageError("--explain works only for a single report, on the terminal or with --json")
    if each and page is not None:
        raise click.UsageError("--each and --html cannot be combined; use --html for one log at a time")
    config = app.config()
    catalogue = catalogue_of(config)
    paths = tuple(_where_kept(path) for path in paths)
    parallel = Parallel(workers=workers or default_workers(), may_fork=True)
    limits = read_limits(config, timeout)
    baseline, problems = _baseline(healthy, catalogue, parallel, limits)
    language = str(config["ui.language"])
    with progress_bar() as progress:
        how = Options(catalogue, progress, limits, baseline=baseline, parallel=parallel)
        if each:
            found, unread = diagnose_each(paths, how)
        else:
            try:
                result = diagnose_jobs(paths, how, job=job, together=together)
            except NoSuchJob as error:
                raise click.UsageError(f"--job: {error}") from error
            diagnosis, unread = result.diagnosis, result.problems
            # The exit code covers all jobs, even if only one is reported.
            found = [("", diagnosis)]
    several_jobs = not each and result.jobs
    judged: Sequence[Diagnosis | JobSummary] = result.jobs if several_jobs else [run for _, run in found]
    problems += unread
    print_notices(problems)
    if late := sum(outcome.stats.unread_files for _, outcome in found):
        print_notice(f"--timeout: the time was too short to read {counted(late, 'file')} completely")
    if each:
        unwritten = not _deliver(report_each(found, form, language, schema), output)
    elif (
        form is None
        and output is None
        and problems
        and not diagnosis.stats.files
        and diagnosis.verdict == "no-training-log"
    ):
        unwritten = False  # a verdict without evidence would hide the reason why nothing was read
    else:
        options = [
            *(
                word
                for flag in app.flags.values()
                for value in (flag.value if isinstance(flag.value, tuple) else [flag.value])
                for word in (flag.source, str(value))
            ),
            *(word for path in healthy for word in ("--baseline", path)),
        ]
        unwritten = not _deliver(
            _report(result, paths, options, form, language, output, explain=explain, schema=schema), output
        )
    if page is not None:
        from stallwatch_rules.report.html import to_html

        unwritten = not _deliver(to_html(diagnosis, language, jobs=result.jobs), page) or unwritten
    if any_unread(problems) or config.problems or catalogue.problems or unwritten:
        raise click.exceptions.Exit(2)
    raise click.exceptions.Exit(exit_code(judged, strict=strict or (as_json and schema == 2)))


def _where_kept(path: str) -> str:
    """Return the folder of a run's record, even if it is elsewhere because the state folder had no space."""
    if Path(path).parent.name != "runs" or Path(path).exists():
        return path
    from stallwatch_exporter.runs.runfolder import where_kept

    return str(where_kept(Path(path)))


def exit_code(judged: Sequence[Diagnosis | JobSummary], *, strict: bool) -> int:
    """Return the exit code: 1 if a run has a problem, otherwise 0.

    If `strict` is true, also return 1 if the system stopped a run, and 3 if the outcome of a run is
    unknown.
    """
    stopped = [run for run in judged if run.verdict == "interrupted" and run.interrupted_by != "user"]
    if any(run.in_trouble for run in judged) or (strict and stopped):
        return 1
    unknown = ("unfinished", "no-evidence", "no-training-log")
    return _STRICT if strict and any(run.verdict in unknown for run in judged) else 0


def _form(**options: bool) -> str | None:
    """Return the form of the report that the user requested, or ``None`` for the terminal's default form."""
    forms = [name for name, wanted in options.items() if wanted]
    if len(forms) > 1:
        raise click.UsageError(
            f"{' and '.join(f'--{name}' for name in forms)} cannot be combined; use only one of them"
        )
    return forms[0] if forms else None


def _baseline(
    paths: tuple[str, ...], catalogue: Catalogue, parallel: Parallel, limits: Limits
) -> tuple[Baseline | None, list[InputProblem]]:
    """Return two values: the baseline from a healthy run's logs, or ``None``, and a list of problems."""
    if not paths:
        return None, []
    from stallwatch_logs.parallel_reading import read_baseline
    from stallwatch_rules.records import TRAINS

    baseline, verdict, problems = read_baseline(paths, catalogue=catalogue, limits=limits, parallel=parallel)
    if problems and not baseline.exemplars:
        return None, problems  # without lines, there is no baseline; the problems contain the reason
    if verdict not in TRAINS:
        print_notice(
            f"--baseline: {', '.join(paths)}: this run is not healthy ({verdict}),"
            " but its lines still count as known"
        )
    return baseline, problems


def _report(
    result: JobsResult,
    paths: tuple[str, ...],
    options: Sequence[str],
    form: str | None,
    language: str,
    output: Path | None,
    *,
    explain: bool,
    schema: Schema,
) -> str:
    diagnosis, jobs = result.diagnosis, result.jobs
    if form == "json":
        from stallwatch_rules.report.json import to_json

        return to_json(diagnosis, language, jobs=jobs, explain=explain, schema=schema).decode()
    if form == "markdown":
        from stallwatch_rules.report.markdown import to_markdown

        return to_markdown(diagnosis, language, jobs).rstrip("\n") + "\n"
    if form == "brief":
        from stallwatch_rules.report.brief import to_brief

        return to_brief(diagnosis, language, jobs)
    from stallwatch_rules.report.terminal import print_jobs, print_report

    def show(console: Console) -> None:
        if jobs:
            print_jobs(jobs, console, language, another(result, paths, options))
        print_report(diagnosis, console, language, explain=explain)

    # The entire report is rendered before it is printed; it is colored only for a terminal.
    return rendered(show, coloured=output is None and sys.stdout.isatty())


def _deliver(report: str, output: Path | None) -> bool:
    if output is None:
        click.echo(report, nl=False)
        return True
    try:
        write_text(output, report)
    except OSError as error:
        print_notice(f"{output}: cannot be written: {error.strerror}; choose another file")
        return False
    return True


def report_each(
    found: Sequence[tuple[str, Diagnosis]], form: str | None, language: str, schema: Schema = 1
) -> str:
    """Return all diagnoses as a JSON list, or as a text or Markdown table that has a row for each file."""
    if form == "json":
        from stallwatch_rules.report.json import to_json

        reports = [
            {"file": name, "diagnosis": json.loads(to_json(each, language, schema=schema))}
            for name, each in found
        ]
        return json.dumps(reports, indent=2, ensure_ascii=False) + "\n"
    from stallwatch_rules.report.table import to_markdown_table, to_text

    return to_markdown_table(found, language) if form == "markdown" else to_text(found, language)


def another(result: JobsResult, paths: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return a command that reports a different job: the newest job with a problem, or else the newest job.

    ``options`` are the options of this call that change the report.
    """
    others = sorted((job for job in result.jobs if not job.reported), key=lambda job: not job.in_trouble)
    return next((command for job in others if (command := _command(job, result, paths, options))), "")


def _command(job: JobSummary, result: JobsResult, paths: Sequence[str], options: Sequence[str]) -> str:
    from stallwatch_rules.report.jobtable import OTHER

    files = result.paths.get(job.name, [])
    again = "-" not in paths  # standard input can be read only once
    if files and (len(files) <= _FEW or not again):
        # Files without a known job can belong to several jobs.
        apart = ["--together"] if len(files) > 1 and job.name.startswith(OTHER) else []
        if command := _shell([*options, *apart], files):
            return command
    return _shell([*options, "--job", job.name], paths) if again else ""


def _shell(options: Sequence[str], paths: Sequence[str]) -> str:
    from stallwatch_rules.report.clean import clean_path

    words = [*options, *(["--"] if any(path.startswith("-") for path in paths) else []), *paths]
    # Suggest no command that contains a secret. Also suggest no command with control or unprintable
    # characters, because these cannot be copied from a terminal.
    if any(clean_path(word) != word or not word.isprintable() for word in words):
        return ""
    return shlex.join(["stallwatch", "diagnose", *words])
