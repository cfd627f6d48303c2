"""Each shell command of the documentation parses, and a test runs it or a marker names the reason why not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import click
import pytest
from shellblocks import Block, blocks, calls, documentation, simple_commands
from waiting import wait_until

from stallwatch.cli import cli

ROOT = Path(__file__).parents[2]
BLOCKS = {name: list(blocks(name, (ROOT / name).read_text(encoding="utf-8"))) for name in documentation(ROOT)}
#: Commands that end with Ctrl-C, and what they print once they run.
LASTING = {
    "tail": "as history",
    "dashboard": "dashboard on http://",
    "relay": "Alertmanager can post to",
    "coordinator": "agents can join",
}
#: Commands that exit with 1 for what they find.
FINDING = ("check", "diagnose", "matches", "rules test", "stacks")
#: Commands whose results later commands of a page use.
BEFOREHAND = ("alerts", "config", "rules new")
#: Programs that not every machine has; ``make test`` installs the first.
OPTIONAL = ("torchrun", "jq")
#: Replacements for secrets and for folders of the machine.
REPLACED = {"…": "TokenA/TokenB/TokenC", "/etc/": "etc/", "/var/": "var/"}


def to_run() -> dict[str, list[tuple[Block, str]]]:
    """The commands of each page. A call of stallwatch that several pages show alike runs on the first."""
    seen: set[str] = set()
    pages: dict[str, list[tuple[Block, str]]] = {}
    for name, found in BLOCKS.items():
        for block in found:
            for command in block.commands:
                alike = repr([*simple_commands(command)])
                alone = any(calls(command)) and not begins(command, BEFOREHAND)
                if block.reason(command) is None and not (alone and alike in seen):
                    seen.add(alike)
                    pages.setdefault(name, []).append((block, command))
    return pages


def begins(command: str, names: tuple[str, ...]) -> bool:
    """Whether a call of stallwatch in a command is of one of these subcommands."""
    return any(" ".join(words).startswith(names) for words in calls(command))


def lasting(command: str) -> str | None:
    return next((LASTING[words[0]] for words in calls(command) if words and words[0] in LASTING), None)


def lookup(words: list[str]) -> tuple[click.Context, list[str]]:
    """The context of the command that words name, and its arguments."""
    # click keeps the help option that the first context of a command asks for, so the flags must be right
    context = click.Context(cli, info_name="stallwatch", **cli.context_settings)
    while isinstance(group := context.command, click.Group):
        words = list(group.make_parser(context).parse_args(words)[1])
        if not words:
            return context, words
        command = group.get_command(context, words[0])
        if command is None:
            raise click.UsageError(f"{group.name} has no command {words[0]}")
        context, words = click.Context(command, context, words[0]), words[1:]
    return context, words


def mistake(words: list[str], whole: bool = True) -> str | None:
    """What click refuses in a call of stallwatch; a call within a sentence may lack arguments."""
    try:
        context, arguments = lookup(words)
        if not isinstance(context.command, click.Group):
            context.command.parse_args(context, arguments)
    except click.MissingParameter as error:
        return error.format_message() if whole and error.param and not error.param.envvar else None
    except click.BadOptionUsage as error:
        return error.format_message() if whole or "requires an argument" not in error.message else None
    except click.UsageError as error:
        return error.format_message()
    except click.exceptions.Exit:  # --help
        return None
    return None


PAGE = """\
<!-- not run `push`: needs a server that no test starts -->
```sh
stallwatch grafana push \\
    --url http://localhost:3000   # the address
stallwatch grafana boards DIR
```

* with a log

  ```text
  $ PORT=1 stallwatch relay --host 0.0.0.0 > log && git clone stallwatch
  an answer of stallwatch
  ```

```python
import stallwatch
```
"""


def test_commands_of_a_page_are_found() -> None:
    boards, relay = blocks("page.md", PAGE)
    assert (boards.place, relay.place) == ("page.md:2", "page.md:10")
    assert [boards.reason(command) for command in boards.commands] == [
        "needs a server that no test starts",
        None,
    ]
    assert [list(calls(command)) for command in (*boards.commands, *relay.commands)] == [
        [["grafana", "push", "--url", "http://localhost:3000"]],
        [["grafana", "boards", "DIR"]],
        [["relay", "--host", "0.0.0.0"]],
    ]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("diagnose logs/ --json=2", "None"),
        ("diagnose --each", "Missing argument 'PATH"),
        ("diagnoze logs/", "cli has no command diagnoze"),
        ("alerts acknowledge myrun", "alerts has no command acknowledge"),
        ("diagnose logs/ --htm report.html", "--htm"),
        ("check --world-size eight ds.json", "Invalid value for '--world-size'"),
        ("run --name", "Option '--name' requires an argument."),
    ],
)
def test_mistake_in_a_command_is_found(call: str, problem: str) -> None:
    assert problem in str(mistake(call.split()))


def test_each_stallwatch_command_parses() -> None:
    wrong = [
        f"{block.place}: {command}: {problem}"
        for found in BLOCKS.values()
        for block in found
        for command in block.commands
        for words in calls(command)
        if (problem := mistake(words))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", [name for name in BLOCKS if name != "docs/upgrade.md"])  # old commands
def test_each_inline_stallwatch_command_parses(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    spans = re.findall(
        r"(?<!`)`((?:[A-Z_]+=\S+ )?stallwatch [^`]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S)
    )
    found = [(span, words) for span in spans for words in calls(span.replace("…", " "))]
    named = [(span, words) for span, words in found if not words[0].isupper()]
    assert [f"{span}: {problem}" for span, words in named if (problem := mistake(words, whole=False))] == []


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [
        words
        for found in BLOCKS.values()
        for block in found
        for line in block.commands
        for words in simple_commands(line)
    ]
    asked = {words[1] for words in commands if words[0] == "make"}
    assert len(asked) > 4 and asked <= targets


def test_each_marker_has_a_reason_and_a_command() -> None:
    wrong = [
        f"{block.place}: {marker}"
        for found in BLOCKS.values()
        for block in found
        for marker in block.markers
        if len(marker.reason) < 10 or not any(marker.text in command for command in block.commands)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", to_run())
def test_commands_run(page: str, folder: Path, environment: dict[str, str]) -> None:
    for block, command in to_run()[page]:
        missing = [name for name in OPTIONAL if name in command and not shutil.which(name)]
        if missing and ("CI" not in os.environ or missing == ["jq"]):
            continue
        code, output = execute(command, folder, environment)
        assert code in ((0, 1) if begins(command, FINDING) else (0,)), (
            f"{block.place}: {command}: {code}\n{output}"
        )


def execute(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command in bash; end what lasts by Ctrl-C once it is ready. An export counts for the page."""
    for shown, real in REPLACED.items():
        command = command.replace(shown, real)
    output = folder.parent / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail\n{command}\nenv -0 > ../environment"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if ready := lasting(command):
        wait_until(lambda: process.poll() is not None or ready in output.read_text())
        os.killpg(process.pid, signal.SIGINT)
    code = process.wait(120)
    if command.startswith("export "):
        text = (folder.parent / "environment").read_text()
        environment.update(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return (0 if ready and code in (130, -signal.SIGINT) else code), output.read_text()
