"""Frame of the command line: help, version, errors, start-up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

import stallwatch as package
from stallwatch.cli import cli
from stallwatch.config.keys import KEYS

Stallwatch = Callable[..., Result]


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its path of words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = [(" ".join(words), command) for words, command in commands()]


@pytest.mark.parametrize("words", [words for words, _ in EVERY])
def test_every_command_has_help_with_both_flags(stallwatch: Stallwatch, words: str) -> None:
    for flag in ("-h", "--help"):
        result = stallwatch(*words.split(), flag)
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: stallwatch " + words)


def test_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "stallwatch", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"stallwatch {package.__version__}\n")


def test_call_without_a_command_shows_the_help(stallwatch: Stallwatch) -> None:
    assert "stallwatch diagnose logs/" in stallwatch().stdout
    assert stallwatch("--version").stdout == f"stallwatch {package.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", package.__version__)


@pytest.mark.parametrize("group", [words for words, command in EVERY if isinstance(command, click.Group)])
def test_group_without_a_command_shows_its_help_once(stallwatch: Stallwatch, group: str) -> None:
    result = stallwatch(*group.split())
    output = result.stdout + result.stderr
    assert output.startswith(f"Usage: stallwatch {group} ")
    assert output.count("Usage: ") == 1
    assert "stallwatch: " not in output


def test_documentation_has_a_place_for_the_options_of_every_command(root: Path) -> None:
    """The site inserts the options from click: tests/tools/test_docs_site.py."""
    text = (root / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## stallwatch (\w+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    names = {words.split()[0] for words, _ in EVERY}
    assert set(sections) == names
    places = {name: re.findall(r"<!-- options: (.*) -->", section) for name, section in sections.items()}
    assert places == {name: [f"stallwatch {name}"] for name in names}
    assert text.count("<!-- options: stallwatch -->") == 1


def test_documentation_lists_every_key_once(root: Path) -> None:
    text = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    rows = {
        name: re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.M) for name, section in sections.items()
    }
    named = [
        f"{name}.{key}" for name, cells in rows.items() for key in re.findall(r"`(\w+)`", "".join(cells))
    ]
    assert sorted(key for key in named if "STALLWATCH" not in key) == sorted(key.full_name for key in KEYS)
    assert set(sections) == {key.section for key in KEYS}
    documented = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.M)
    unknown = {name for cell in documented for name in re.findall(r"`(\w+)`", cell)} - {
        key.name for key in KEYS
    }
    variables = ("HOME", "CACHE", "CONFIG", "MATCHER", "PROBE", "PROBE_CLOCK", "PROBE_DIR")
    assert unknown == {f"STALLWATCH_{name}" for name in variables}


@pytest.mark.parametrize("arguments", [["--help"], ["diagnose", "--help"], ["config", "show"], ["runs"]])
def test_light_commands_import_no_heavy_packages(process: Callable[..., Any], arguments: list[str]) -> None:
    heavy = ("hyperscan", "streamlit", "apprise", "sqlalchemy", "pandas", "duckdb", "torch")
    check = (
        "import sys\nsys.argv = ['stallwatch', *sys.argv[1:]]\nfrom stallwatch.cli import main\n"
        "try:\n    main()\nfinally:\n"
        f"    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", check, *arguments], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1] == "[]"


def test_unknown_option_is_reported_with_the_prefix(stallwatch: Stallwatch) -> None:
    result = stallwatch("runs", "--colour")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "\nstallwatch: No such option" in result.stderr and "--colour" in result.stderr
    assert "Traceback" not in result.stderr


def test_crash_is_one_message_without_traceback_by_default(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(home: Path) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("stallwatch_exporter.runs.runfolder.list_runs", crash)
    result = stallwatch("runs")
    assert result.exit_code == 70
    assert result.stderr.startswith("stallwatch: internal error: RuntimeError: boom;")
    result = stallwatch("--debug", "runs")
    assert isinstance(result.exception, RuntimeError)


def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    code = "from stallwatch.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        assert child.stderr.read().splitlines()[1:] == []
        assert child.wait(120) in (1, 141)  # click's exit code, or Stallwatch's


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_available(process: Callable[..., Any], shell: str) -> None:
    script = Path(sys.executable).with_name("stallwatch")
    result = subprocess.run(
        [str(script)],
        env={"PATH": "/usr/bin:/bin", "_STALLWATCH_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "_STALLWATCH_COMPLETE" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--version", "rules list", "diagnose run.log", "samples run.log"])
def test_full_disk_behind_the_output_is_reported_without_traceback(
    tmp_path: Path, words: str, unbuffered: str
) -> None:
    (tmp_path / "run.log").write_text("{'loss': 1.5, 'epoch': 0.1}\n" * 3)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", "from stallwatch.cli import main; main()", *words.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "stallwatch: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "similar"),
    [
        (["diagnos"], "'diagnose'"),
        (["alerts", "lst"], "'list'"),
        (["incident"], "'alerts'"),  # no command has this name, but the help of `alerts` has the word
    ],
)
def test_similar_commands_are_suggested(stallwatch: Stallwatch, words: list[str], similar: str) -> None:
    result = stallwatch(*words)
    assert result.exit_code == 2
    assert f"Did you mean {similar}?" in result.stderr


@pytest.mark.parametrize("start", [["-m", "stallwatch"], ["-c", "from stallwatch.cli import main; main()"]])
def test_modules_of_the_user_replace_no_package(tmp_path: Path, start: list[str]) -> None:
    """A project on ``PYTHONPATH`` can contain a module with the name of a package that Stallwatch imports."""
    for folder in ("project", "here"):
        (tmp_path / folder).mkdir()
        for name in ("h11", "sqlalchemy", "apprise"):
            (tmp_path / folder / f"{name}.py").write_text("print('from the project')")
    path = os.pathsep.join(filter(None, [str(tmp_path / "project"), os.environ.get("PYTHONPATH", "")]))
    environ = {**os.environ, "PYTHONPATH": path, "STALLWATCH_HOME": str(tmp_path / "home")}
    command = [sys.executable, *start, "alerts", "list"]
    listed = subprocess.run(
        command, cwd=tmp_path / "here", env=environ, capture_output=True, text=True, timeout=120
    )
    assert listed.returncode == 0 and "project" not in listed.stdout + listed.stderr
    program = ["run", "--no-probe", "--", sys.executable, "-c", "import h11"]
    ran = subprocess.run([*command[:-2], *program], env=environ, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "from the project" in ran.stdout
