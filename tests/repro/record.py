"""Rebuild the recordings in tests/recordings/: run the real program, and keep its output.

    python tests/repro/record.py                 # the recording behind `stallwatch demo` (takes five minutes)
    python tests/repro/record.py NAME …          # others, see --help
    python tests/repro/record.py --all

torchrun launches a copy of each program in a working folder. In the recording, only the machine's own paths
and host name are replaced (see scrub.py).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scenarios import SCENARIOS, Scenario
from scrub import Scrubber, scrubber

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
RECORDINGS = HERE.parent / "recordings"
PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "numpy")


def record(scenario: Scenario, target: Path) -> None:
    """Run one scenario and replace its recording."""
    overlay = old_deepspeed(scenario.deepspeed) if scenario.deepspeed else None
    with tempfile.TemporaryDirectory(prefix="recording-") as temporary:
        workdir = Path(temporary).resolve() / "train"
        own = shutil.ignore_patterns("test_*", "conftest.py", "__pycache__")
        shutil.copytree(HERE, workdir, ignore=own)
        clean = scrubber(workdir, REPOSITORY, overlay)
        fresh = Path(temporary) / "recording"
        launch = run_under_stallwatch if scenario.layout == "stallwatch" else run_with_redirects
        command, code = launch(scenario, workdir, fresh, clean, environment(overlay))
        if code != scenario.exit_code:
            raise SystemExit(
                f"{scenario.name}: exit code {code}, expected {scenario.exit_code}; nothing recorded"
            )
        meta = {
            "command": shlex.join(command),
            "versions": versions(scenario),
            "exit_code": code,
            "expected": scenario.expected,
        }
        (fresh / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(fresh, target)


def run_with_redirects(
    scenario: Scenario, workdir: Path, fresh: Path, clean: Scrubber, env: dict[str, str]
) -> tuple[list[str], int]:
    """Let torchrun write a file per rank and stream; the launcher's own output goes to launcher.log."""
    command = scenario.command(log_dir="logs")
    launcher = workdir.parent / "launcher.log"
    with launcher.open("wb") as out:
        code = subprocess.run(command, cwd=workdir, env=env, stdout=out, stderr=out, check=False).returncode
    for log in sorted(workdir.glob("logs/*/attempt_*/*/std*.log")):
        if log.stat().st_size:
            clean.copy(log, fresh.joinpath(*log.parts[-3:]))
    if launcher.stat().st_size:
        clean.copy(launcher, fresh / "launcher.log")
    return command, code


def run_under_stallwatch(
    scenario: Scenario, workdir: Path, fresh: Path, clean: Scrubber, env: dict[str, str]
) -> tuple[list[str], int]:
    """Let `stallwatch run` write the recording: copies per rank, and what it saw of the ranks at a stall."""
    home = workdir.parent / "home"
    env = {**env, "STALLWATCH_HOME": str(home)}
    command = scenario.command()
    watched = ["stallwatch", "run", "--name", scenario.name, "--port", "0", "--", *command]
    code = subprocess.run(watched, cwd=workdir, env=env, check=False).returncode
    folder = home / "runs" / scenario.name
    logs = [*sorted(folder.glob("ranks/*.log")), folder / "output.log"]
    for file in (*logs, folder / "agent.json", folder / "incidents.jsonl", *folder.glob("stacks-*.txt")):
        if file.exists():
            clean.copy(file, fresh / file.relative_to(folder))
    return command, code


def environment(overlay: Path | None) -> dict[str, str]:
    """Return the environment of a recorded run: this Python's tools first, one thread, no settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    if overlay is not None:
        env["PYTHONPATH"] = str(overlay)
    return env


def old_deepspeed(version: str) -> Path:
    """Return a folder with only an old DeepSpeed, which PYTHONPATH puts before the installed one.

    The old version requires `numactl`.
    """
    folder = REPOSITORY / "build" / f"deepspeed-{version}"
    if not folder.exists():
        if shutil.which("numactl") is None:
            raise SystemExit(
                f"DeepSpeed {version} calls numactl: install it (Debian: apt-get install numactl)"
            )
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        env = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        subprocess.run([*pip, "--target", str(folder), f"deepspeed=={version}"], env=env, check=True)
    return folder


def versions(scenario: Scenario) -> dict[str, str]:
    """Return the versions of the involved packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        if package in scenario.needs or package == "numpy":
            found[package] = importlib.metadata.version(package)
    if scenario.deepspeed:
        found["deepspeed"] = scenario.deepspeed
    return found


def main() -> None:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="names: " + ", ".join(by_name),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: zero3-stall")
    parser.add_argument("--all", action="store_true", help="every recording")
    options = parser.parse_args()
    if unknown := set(options.names) - set(by_name):
        parser.error(f"no such recording: {', '.join(sorted(unknown))}")
    for name in by_name if options.all else options.names or ["zero3-stall"]:
        print(f"recording {name}", flush=True)
        record(by_name[name], RECORDINGS / name)


if __name__ == "__main__":
    main()
