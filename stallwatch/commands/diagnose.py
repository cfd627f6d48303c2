"""``stallwatch diagnose``: what the logs of a run say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, language_option, rules_option, tell, tell_all
from stallwatch.commands.progressbar import progress_bar

if TYPE_CHECKING:
    from stallwatch_exporter.postmortem.jobs import JobsResult
    from stallwatch_logs.inputs import InputProblem
    from stallwatch_logs.parallel_reading import Parallel
    from stallwatch_rules.failures.unexplained import Baseline
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.records import Diagnosis

_BAD = ("failed", "stalled", "unknown-failure")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--json", "as_json", is_flag=True, help="Print the report for programs.")
@click.option("--brief", "as_brief", is_flag=True, help="Print the verdict, the cause and the first fix.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the report for an issue tracker.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to this file.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report with its charts to this HTML file, which loads nothing, beside what is printed.",
)
@click.option(
    "--explain", is_flag=True, help="Show which rules matched and how each assessor changed the findings."
)
@click.option(
    "--each",
    is_flag=True,
    help="Diagnose every file by itself, as logs of different runs: a table of verdicts.",
)
@click.option("--job", metavar="NAME", help="Of logs of several jobs, diagnose only this one.")
@click.option("--together", is_flag=True, help="Read all files as one run, whatever their names say.")
@click.option(
    "--baseline",
    "healthy",
    multiple=True,
    metavar="PATH",
    help="Logs of a healthy run: lines that it does not have are told as new. May be repeated.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that read large inputs; by default one for each processor, 8 at most. 1 starts none.",
)
@language_option
@rules_option
@click.pass_obj
def diagnose(
    app: App,
    paths: tuple[str, ...],
    as_json: bool,
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
    language: str | None,
    rule_dirs: tuple[Path, ...],
) -> None:
    """Say what stopped a run, from its logs alone.

    PATH is a file, a folder of per-rank logs, a glob, an archive (.gz .xz .zst .zip .tar.*), or - for
    standard input. An excerpt will do: paste a traceback.

    \b
    stallwatch diagnose logs/
    stallwatch diagnose slurm-1234.out --markdown -o report.md
    stallwatch diagnose logs/ --html report.html
    stallwatch diagnose --each runs/*.log
    stallwatch diagnose logs/ --baseline logs-of-last-week/
    kubectl logs my-job-0 | stallwatch diagnose - --json

    All files are taken for one run, except where their names say for certain that they are of several jobs
    (slurm-1001.out, slurm-1002.out). Each of those is diagnosed by itself: a table tells of them, the newest
    first, and the report is that of the newest that is in trouble, else of the newest training.

    Exit code: 1 when the run, or any of the jobs, failed, stalled or died of something unknown; 2 when
    something could not be read (the rest is still diagnosed); else 0.
    """
    from stallwatch_exporter.postmortem.diagnose import Options, diagnose_each
    from stallwatch_exporter.postmortem.jobs import NoSuchJob, diagnose_jobs
    from stallwatch_logs.parallel_reading import Parallel, default_workers

    form = _form(json=as_json, brief=as_brief, markdown=as_markdown)
    _form(each=each, job=job is not None, together=together)
    if explain and (each or form not in (None, "json")):
        raise click.UsageError("--explain works only with one report, on the terminal or with --json")
    if each and page is not None:
        raise click.UsageError("--each and --html exclude each other: make a page of each log by itself")
    config = app.config(ui__language=language, rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    parallel = Parallel(workers=workers or default_workers(), may_fork=True)
    baseline, problems = _baseline(healthy, catalogue, parallel)
    asked_language, language = language, str(config["ui.language"])
    with progress_bar() as progress:
        how = Options(catalogue, progress, baseline=baseline, parallel=parallel)
        if each:
            found, unread = diagnose_each(paths, how)
        else:
            try:
                told = diagnose_jobs(paths, how, job=job, together=together)
            except NoSuchJob as error:
                raise click.UsageError(f"--job: {error}") from error
            diagnosis, unread = told.diagnosis, told.problems
            # The one that is reported is in trouble where any job is.
            found = [("", diagnosis)]
    problems += unread
    tell_all(problems)
    if each:
        from stallwatch.commands.diagnose_each import report_each

        unwritten = not _deliver(report_each(found, form, language), output)
    elif form is None and output is None and problems and _is_of_nothing(diagnosis):
        unwritten = False  # a verdict on nothing would only stand in front of why nothing was read
    else:
        options = [
            *(["--language", asked_language] if asked_language is not None else []),
            *(word for folder in rule_dirs for word in ("--rules", str(folder))),
            *(word for pack in app.packs for word in ("--rules-pack", pack)),
            *(word for path in healthy for word in ("--baseline", path)),
        ]
        unwritten = not _deliver(
            _report(told, paths, options, form, language, output, explain=explain), output
        )
    if page is not None:
        from stallwatch_rules.report.html import to_html

        unwritten = not _deliver(to_html(diagnosis, language, jobs=told.jobs), page) or unwritten
    if problems or config.problems or catalogue.problems or unwritten:
        raise click.exceptions.Exit(2)
    raise click.exceptions.Exit(1 if any(one.verdict in _BAD for _, one in found) else 0)


def _is_of_nothing(diagnosis: Diagnosis) -> bool:
    """No file was read, nor is it known how the run ended: a run that printed nothing may have."""
    return not diagnosis.stats.files and diagnosis.verdict == "no-training-log"


def _form(**asked: bool) -> str | None:
    """The one that was asked for; ``None`` for the terminal's."""
    forms = [name for name, wanted in asked.items() if wanted]
    if len(forms) > 1:
        raise click.UsageError(f"{' and '.join(f'--{name}' for name in forms)} exclude each other: give one")
    return forms[0] if forms else None


def _baseline(
    paths: tuple[str, ...], catalogue: Catalogue, parallel: Parallel
) -> tuple[Baseline | None, list[InputProblem]]:
    """What the healthy run says, where one is given."""
    if not paths:
        return None, []
    from stallwatch_logs.parallel_reading import read_baseline

    baseline, verdict, problems = read_baseline(paths, catalogue=catalogue, parallel=parallel)
    if problems and not baseline.exemplars:
        return None, problems  # nothing to compare with; the problems say why
    if verdict not in ("healthy", "degraded"):
        tell(
            f"--baseline: {', '.join(paths)}: this run is not healthy itself ({verdict});"
            " its lines count as known all the same"
        )
    return baseline, problems


def _report(
    told: JobsResult,
    paths: tuple[str, ...],
    options: Sequence[str],
    form: str | None,
    language: str,
    output: Path | None,
    *,
    explain: bool,
) -> str:
    diagnosis, jobs = told.diagnosis, told.jobs
    if form == "json":
        from stallwatch_rules.report.json import to_json

        return to_json(diagnosis, language, jobs=jobs, explain=explain).decode()
    if form == "markdown":
        from stallwatch_rules.report.markdown import to_markdown

        return to_markdown(diagnosis, language, jobs).rstrip("\n") + "\n"
    if form == "brief":
        from stallwatch_rules.report.brief import to_brief

        return to_brief(diagnosis, language, jobs)
    import io

    from rich.console import Console

    from stallwatch_rules.report.terminal import print_jobs, print_report

    # Rendered first and printed in one go, coloured only where a terminal reads it.
    coloured = output is None and sys.stdout.isatty()
    text = io.StringIO()
    width = None if coloured else 100
    console = Console(file=text, force_terminal=coloured or None, width=width)
    if jobs:
        from stallwatch.commands.diagnose_jobs import another

        print_jobs(jobs, console, language, another(told, paths, options))
    print_report(diagnosis, console, language, explain=explain)
    if coloured:
        return text.getvalue()
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _deliver(report: str, output: Path | None) -> bool:
    if output is None:
        click.echo(report, nl=False)
        return True
    try:
        output.write_text(report, encoding="utf-8")
    except OSError as error:
        tell(f"{output}: cannot be written: {error.strerror}; name another file")
        return False
    return True
