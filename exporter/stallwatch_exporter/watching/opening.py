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
    folder = RunFolder.create(name, command, home=settings.home, now=started, reuse=reuse)
    if folder.problem is not None:
        notice(f"no log copies are kept ({folder.problem}); the run goes on")
    elif name is not None and folder.run != sanitise(name):
        notice(f"the name {name} is taken: this run is called {folder.run}")
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
