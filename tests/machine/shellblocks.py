"""Shell commands in the fenced blocks of the documentation, with the markers of those that no test runs.

A marker stands directly before a fence, and is shown on no page: ``<!-- not run: REASON -->`` is about the
whole block, ``<!-- not run `TEXT`: REASON -->`` about its commands that contain TEXT.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHELLS = {"sh", "bash", "shell", "console", "zsh"}
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([\w-]*).*$")
_MARKER = re.compile(r"^ *<!-- not run(?: `(?P<text>[^`]+)`)?: *(?P<reason>.*?) *-->$")
_OPERATORS = re.compile(r"[|&;()]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
#: Programs that run the command in their arguments.
_WRAPPERS = {"srun", "mpirun", "nohup", "ssh"}


@dataclass(frozen=True)
class Marker:
    """Commands that no test runs, and the reason."""

    text: str  #: a part of the command; empty for all commands of the block
    reason: str


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands."""

    place: str  #: ``docs/cli.md:14``
    commands: tuple[str, ...]
    markers: tuple[Marker, ...]

    def reason(self, command: str) -> str | None:
        """Return why a command is not run; ``None`` for a command to run."""
        return next((marker.reason for marker in self.markers if marker.text in command), None)


def documentation(root: Path) -> list[str]:
    """Return the names of the pages whose commands count."""
    patterns = ("README.md", "README.zh.md", "CONTRIBUTING.md", "docs/*.md")
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True
    )
    names = listed.stdout.splitlines()
    return [name for name in names if not name.startswith(("docs/decisions/", "docs/reviews/"))]


def blocks(name: str, text: str) -> Iterator[Block]:
    """Yield the shell blocks of a page: by their language, or because they begin with a prompt (``$ ``)."""
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        fence = _FENCE.match(lines[place])
        if fence is None:
            place += 1
            continue
        end = next(number for number in range(place + 1, len(lines)) if lines[number].strip() == fence[2])
        body = [line[len(fence[1]) :] for line in lines[place + 1 : end]]
        if fence[3] in _SHELLS or body[0].startswith("$ "):
            yield Block(f"{name}:{place + 1}", tuple(_commands(body)), tuple(_markers(lines, place)))
        place = end + 1


def _commands(body: list[str]) -> Iterator[str]:
    if any(line.startswith("$ ") for line in body):  # a session: what has no prompt is output
        body = [line[2:] for line in body if line.startswith("$ ")]
    for line in "\n".join(body).replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def _markers(lines: list[str], fence: int) -> Iterator[Marker]:
    while fence and (found := _MARKER.match(lines[fence - 1])):
        yield Marker(found["text"] or "", found["reason"])
        fence -= 1


def calls(command: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of stallwatch in a command."""
    for words in simple_commands(command):
        if "stallwatch" in words and words[0] in {"stallwatch", *_WRAPPERS}:
            yield words[words.index("stallwatch") + 1 :]


def simple_commands(command: str) -> Iterator[list[str]]:
    """Yield the words of each program of a pipeline or list, without assignments and redirections."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*lexer, ";"]:
        if _OPERATORS.fullmatch(word):
            if words:
                yield words
            words = []
        elif redirected or re.fullmatch(r"[<>]+", word):
            redirected = not redirected
        elif words or not _ASSIGNMENT.fullmatch(word):
            words.append(word)
