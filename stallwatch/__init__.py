"""Find out whether a training run is alive and, if not, why, and what to change.

>>> import stallwatch
>>> stallwatch.diagnose(["logs/"]).verdict  # doctest: +SKIP
'failed'
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from stallwatch_rules import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from stallwatch.integrations.lightning import LightningCallback
    from stallwatch.integrations.loop import training_run, watch
    from stallwatch.integrations.ray import ray_runtime_env
    from stallwatch.integrations.transformers import Callback
    from stallwatch_logs.ray_reading import ray_executor
    from stallwatch_rules.records import Diagnosis

__all__ = [
    "Callback",
    "Diagnosis",
    "LightningCallback",
    "__version__",
    "diagnose",
    "ray_executor",
    "ray_runtime_env",
    "samples",
    "training_run",
    "watch",
]

_ON_DEMAND = {
    "Diagnosis": "stallwatch_rules.records",
    "Callback": "stallwatch.integrations.transformers",
    "LightningCallback": "stallwatch.integrations.lightning",
    "ray_executor": "stallwatch_logs.ray_reading",
    "ray_runtime_env": "stallwatch.integrations.ray",
    "training_run": "stallwatch.integrations.loop",
    "watch": "stallwatch.integrations.loop",
}


def diagnose(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    language: str = "en",
    *,
    baseline: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    workers: int = 1,
    executor: Executor | None = None,
    job: str | None = None,
    together: bool = False,
    timeout: float | None = None,
    packs: Iterable[str] = (),
) -> Diagnosis:
    """Diagnose a run from its logs, as ``stallwatch diagnose`` does.

    `paths` are files, folders, globs, or archives. ``Diagnosis.notes`` lists unreadable files. All other
    files are diagnosed. `language` is the language of the diagnosis: ``en`` or ``zh``. `baseline` names the
    logs of a healthy run. Lines that do not occur in these logs are reported as new. `packs` contains the
    names of opt-in rule packs, as for ``--rules-pack``.

    If the filenames show that the files belong to several jobs (such as ``slurm-1001.out`` and
    ``slurm-1002.out``), the result is about a single job: the newest job with a problem or, if no job has a
    problem, the newest training job. The first note names the job. `job` selects a different job
    (``ValueError`` if it does not exist). `together` reads all files as one run.

    `workers` is the number of processes, including this process, that read the files of a large run. If there
    are several processes, the calling script requires an ``if __name__ == "__main__":`` guard. If `executor`
    is set, it reads the files instead, on any hosts that have the files at the same paths. The diagnosis does
    not depend on `workers` or `executor`.

    Reading stops after `timeout` seconds. The first note and ``Diagnosis.stats`` then report the unread
    files.
    """
    from stallwatch_exporter.postmortem.diagnose import Options
    from stallwatch_exporter.postmortem.jobs import diagnose_jobs
    from stallwatch_exporter.settings import cache_home
    from stallwatch_logs.inputs import Limits
    from stallwatch_logs.parallel_reading import Parallel, read_baseline
    from stallwatch_rules.pages.catalogue import folder_of_pack, load_catalogue

    several, healthy = _listed(paths), _listed(baseline)
    catalogue = load_catalogue([folder_of_pack(name) for name in packs], cache=cache_home())
    parallel = Parallel(workers=workers, executor=executor)
    limits = Limits(until=None if timeout is None else time.monotonic() + timeout)
    known = None
    if healthy:
        known = read_baseline(healthy, catalogue=catalogue, limits=limits, parallel=parallel).baseline
    options = Options(catalogue, limits=limits, baseline=known, parallel=parallel)
    result = diagnose_jobs(several, options, job=job, together=together)
    if result.jobs:
        from stallwatch_rules.report.jobtable import table

        result.diagnosis.notes = [table(result.jobs, language).summary, *result.diagnosis.notes]
    from stallwatch_rules.locale import rendered

    return rendered(result.diagnosis, language)


def samples(paths: str | PathLike[str] | Iterable[str | PathLike[str]]) -> pd.DataFrame:
    """Return the metrics in logs as a table, as ``stallwatch samples`` does.

    `paths` are files, folders, globs, or archives. A warning names unreadable files. The table contains the
    samples of all other files. ``docs/samples.md`` explains the columns.
    """
    from stallwatch_exporter.sampling.files import frame_of

    return frame_of(_listed(paths))


def _listed(paths: str | PathLike[str] | Iterable[str | PathLike[str]]) -> list[str | PathLike[str]]:
    return [paths] if isinstance(paths, str | PathLike) else list(paths)


def __getattr__(name: str) -> Any:
    # Import on demand, so that the import of stallwatch does not load unused modules.
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
