"""What ``run`` and ``tail`` begin with: the run's folder, its agent and its metrics endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from stallwatch_exporter.incident import Ending, Sink
from stallwatch_exporter.notices import tell
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.runs.prune import prune
from stallwatch_exporter.runs.runfolder import RunFolder, sanitise
from stallwatch_exporter.serving.server import MetricsServer, serve
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

_SHOWN = 60  # characters of a name that was given
Notice = Callable[[str], None]
OnEnd = Callable[[Diagnosis, Ending, RunFolder], None]


to_stderr = tell  #: tells the user something that is no incident


def open_agent(
    command: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    *,
    name: str | None,
    metrics: bool,
    notice: Notice,
    started: float,
    reuse: bool = False,
    rings: Path | None = None,
) -> tuple[Agent, MetricsServer | None]:
    """Make them. What cannot be made is told and done without; old runs make room in the background."""
    wanted = (name or "").strip() or None
    folder = RunFolder.create(wanted, command, home=settings.home, now=started, reuse=reuse)
    if folder.problem is not None:
        notice(f"no log copies are kept ({folder.problem}); the run goes on")
    if name is not None and (why := _why_renamed(name, folder.run)):
        notice(f"{why}: this run is called {folder.run}")
    threading.Thread(
        target=prune,
        args=(settings.home, settings.keep_days, settings.keep_gb, started, notice),
        name="stallwatch prune",
        daemon=True,
    ).start()
    probing = Probing(rings) if rings is not None else None
    agent = Agent(folder, settings, catalogue, sinks, notice=notice, probing=probing)
    server = serve(agent.metrics.registry, settings, notice) if metrics else None
    if server is not None:
        folder.write_info(endpoint=server.url)
    return agent, server


def _why_renamed(name: str, run: str) -> str:
    """Why a run is not called as it was told; empty where it is."""
    if not name.strip():
        return "the name is empty"
    if run == name.strip():
        return ""
    shown = name if name.isprintable() else repr(name)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    if run != sanitise(name):
        return f"the name {shown} is taken"
    if len(name) > len(run) and name.startswith(run):
        return f"the name {shown} is longer than {len(run)} characters"
    return f"the name {shown} has characters that the name of a run cannot have"
