"""Load the probe in workers of a running Ray cluster: ``stallwatch.ray_runtime_env``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallwatch_exporter.probe.api import FOLDER_VARIABLE
from stallwatch_exporter.probe.clock import VARIABLE
from stallwatch_exporter.rings.probing import BOOTSTRAP


def ray_runtime_env(
    runtime_env: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return a copy of `runtime_env` whose workers load the probe of the driver's ``stallwatch run``.

    With ``ray.init(address="auto", runtime_env=stallwatch.ray_runtime_env())``, actors that train on the
    driver's host are ranks of the driver's agent. Workers on other hosts, or with their own agent, are not
    affected. Outside ``stallwatch run``, the environment is unchanged.

    Ray replaces ``${NAME}`` with the worker's own variables (2.60, _private/utils.py, update_envs).
    """
    found = dict(runtime_env or {})
    try:
        here = f"{os.uname().nodename} {Path('/proc/self/ns/pid').readlink()}"
    except (AttributeError, OSError):  # a system other than Linux
        return found
    if not environ.get(FOLDER_VARIABLE):
        return found
    given = found.get("env_vars") or {}
    facts = [f"{name}={environ[name]}" for name in (FOLDER_VARIABLE, VARIABLE) if name in environ]
    found["env_vars"] = {
        **given,
        "PYTHONPATH": os.pathsep.join((str(BOOTSTRAP), given.get("PYTHONPATH", "${PYTHONPATH}"))),
        "STALLWATCH_RAY": "\n".join((here, *facts)),
    }
    return found
