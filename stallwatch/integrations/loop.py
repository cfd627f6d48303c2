"""Report from a training loop to the probe: ``training_run``, ``watch``, and the base class of callbacks.

Under ``stallwatch run``, the rank's probe is used. Otherwise, the rank itself serves /metrics. An error in
this module is reported once, and the training continues.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch_exporter.probe.api import Probe
    from stallwatch_exporter.serving.standalone import Standalone

_ENGINE = "deepspeed.runtime.engine"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"
_begun = False
_served: Standalone | None = None
_hooked = False
_watched = False


@contextmanager
def _training_goes_on(without: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        from stallwatch_exporter.notices import print_notice

        print_notice(f"{without} ({type(error).__name__}: {error}); training continues")


def api() -> Any:
    """Return the loaded module ``probe.api``, or import it. A process must have only one probe."""
    loaded = sys.modules.get("stallwatch_probe.api")
    if loaded is not None:
        return loaded
    if "stallwatch_probe" in sys.modules:
        return import_module("stallwatch_probe.api")
    from stallwatch_exporter.probe import api as packaged

    return packaged


def probe(name: str | None = None) -> Probe:
    """Return this process's probe. If there is no agent, create a probe whose metrics this process serves."""
    global _begun
    module = api()
    current: Probe = module.current()
    alone = module.FOLDER_VARIABLE not in os.environ and os.environ.get(module.SWITCH_VARIABLE) != "0"
    if alone and not _begun:
        _begun = True  # set even after a failure, so that later steps do not retry
        with _training_goes_on("no metrics for this rank"):
            module.use(_alone(module, name))
        current = module.current()
    return current


def endpoint() -> str | None:
    """Return the URL of this process's own metrics, or ``None`` if an agent serves them."""
    return _served.server.url if _served is not None and _served.server is not None else None


def _alone(module: Any, name: str | None) -> Any:
    global _served
    import time

    from stallwatch.config.handover import exporter_settings, mask_site_patterns
    from stallwatch.config.loading import load
    from stallwatch_exporter.notices import print_notice
    from stallwatch_exporter.runs.naming import run_name, sanitise
    from stallwatch_exporter.serving.standalone import Standalone

    run = sanitise(name) if name else run_name(sys.argv[:1] or ["run"], time.time())
    local = os.environ.get("LOCAL_RANK", "")
    config = load()
    mask_site_patterns(config)
    for ignored in config.ignored:
        print_notice(str(ignored))
    _served = Standalone(run, exporter_settings(config), int(local) if local.isdigit() else 0)
    return module.Probe(_served.folder)


class TrainingRun:
    """A reporter of a training loop's steps and phases. Its methods never raise errors and never wait."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        layout = import_module(f"{api().__package__}.layout")
        self._fields, self._phases = frozenset(layout.FIELDS), frozenset(layout.PHASES)
        self._reported: set[str] = set()

    def step(self, number: int | None = None, **values: Any) -> None:
        """Report an optimizer step.

        `values` can have the keys ``loss``, ``grad_norm``, ``learning_rate``, and ``loss_scale``. The method
        does not wait for a tensor on a device. If `number` is omitted, the steps are counted. An unknown name
        is reported once on standard error.
        """
        if not values.keys() <= self._fields:
            self._unknown("number", values.keys(), self._fields)
        self._probe.step(number, **values)

    def value(self, name: str, value: Any) -> None:
        """Report a value that belongs to the next step."""
        if str(name) not in self._fields:
            self._unknown("number", [name], self._fields)
        self._probe.value(name, value)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report that the code in the ``with`` block is a phase.

        The name of a phase is ``eval``, ``save``, ``rollout``, ``weight-sync``, or ``init``, as in
        ``with run.phase("eval"):``.
        """
        if str(name) not in self._phases:
            self._unknown("phase", [name], self._phases)
        self._probe.phase(name)
        try:
            yield
        finally:
            self._probe.phase("train")

    def _unknown(self, kind: str, names: Iterable[object], known: Collection[str]) -> None:
        """Print a notice about unknown names.

        The notice is not a Python warning, because with ``-W error``, a warning would raise an exception in
        the training loop.
        """
        from difflib import get_close_matches

        from stallwatch_exporter.notices import print_notice

        for name in sorted(map(str, names)):
            if name in known or f"{kind} {name}" in self._reported:
                continue
            self._reported.add(f"{kind} {name}")
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(sorted(known))}"
            print_notice(f"training_run ignores the unknown {kind} {name!r}; {hint}")

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._probe.reported_by_user = False


def training_run(name: str | None = None, *, total_steps: int | None = None) -> TrainingRun:
    """Report steps and phases of a training loop. Use it in a ``with`` statement.

    Under ``stallwatch run``, the agent receives the steps and phases. Otherwise, this process serves them at
    ``/metrics``, under the run's `name`.
    """
    found = probe(name)
    found.reported_by_user = True
    if total_steps is not None:
        found.value("target_steps", total_steps)
    return TrainingRun(found)


def hook(name: str | None = None) -> None:
    """Install the hooks that ``stallwatch run`` uses to observe the training. Report a failure once."""
    global _hooked
    with _training_goes_on("the trainer is not watched"):
        current = probe(name)
        module = api()
        if _hooked or "stallwatch_probe" in sys.modules or os.environ.get(module.SWITCH_VARIABLE) == "0":
            return
        _hooked = True
        current.is_rank = True
        import_module(f"{module.__package__}.imports").watch()


def watch(engine: Any) -> Any:
    """Report steps, losses, and trace-cache invalidations of a DeepSpeed engine, and return the engine."""
    global _watched
    with _training_goes_on("the engine is not watched"):
        current = probe()
        if not _watched and "stallwatch_probe" not in sys.modules:
            _watched = True
            hooks = f"{api().__package__}.hooks"
            current.is_rank = True
            torch = import_module(f"{hooks}.torch")
            current.samplers += [torch.accelerator_memory, torch.resident_memory]
            import_module(f"{hooks}.deepspeed").install(sys.modules[_ENGINE], current, engine)
            if _COORDINATOR in sys.modules:
                import_module(f"{hooks}.zero").watch_trace(sys.modules[_COORDINATOR], current)
    return engine
