"""The probe in workers of a Ray cluster that the agent did not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stallwatch
from stallwatch.integrations.ray import ray_runtime_env
from stallwatch_exporter.rings.probing import BOOTSTRAP, with_probe

SEEN = "import os, sys; print(os.environ.get('STALLWATCH_PROBE_DIR'), 'stallwatch_probe' in sys.modules)"


def seen(variables: dict[str, str], **others: str) -> str:
    """Return a worker's value after Ray has filled in these variables."""
    environ = {"PATH": os.environ["PATH"], **others}
    path = environ.get("PYTHONPATH", "")
    environ |= {name: value.replace("${PYTHONPATH}", path) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", SEEN], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_workers_on_the_host_of_the_driver_have_its_probe(tmp_path: Path) -> None:
    driver = with_probe({}, tmp_path)
    variables = stallwatch.ray_runtime_env(environ=driver)["env_vars"]
    assert seen(variables) == f"{tmp_path} True"


def test_workers_elsewhere_or_of_another_agent_have_no_probe(tmp_path: Path) -> None:
    variables = ray_runtime_env(environ=with_probe({}, tmp_path / "driver"))["env_vars"]
    assert seen({**variables, "STALLWATCH_RAY": f"n2 {variables['STALLWATCH_RAY']}"}) == "None False"
    other = str(tmp_path / "other")
    assert seen(variables, STALLWATCH_PROBE_DIR=other) == f"{other} True"


def test_given_runtime_env_is_kept(tmp_path: Path) -> None:
    given = {"pip": ["trl"], "env_vars": {"PYTHONPATH": "/w", "NCCL_DEBUG": "INFO"}}
    found = ray_runtime_env(given, environ=with_probe({}, tmp_path))
    assert found["pip"] == ["trl"] and found["env_vars"]["NCCL_DEBUG"] == "INFO"
    assert found["env_vars"]["PYTHONPATH"] == f"{BOOTSTRAP}{os.pathsep}/w"
    assert given["env_vars"] == {"PYTHONPATH": "/w", "NCCL_DEBUG": "INFO"}


def test_runtime_env_is_unchanged_without_an_agent() -> None:
    assert ray_runtime_env({"pip": ["trl"]}, environ={}) == {"pip": ["trl"]}
