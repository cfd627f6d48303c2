"""Create run names for labels and folders from the name that the user chose or from the script."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

LONGEST = 100  #: maximum number of characters in a label, and in each part of a folder's name
_LAUNCHERS = lazy(r"(python[\d.]*|uv|bash|sh|env|nohup|time|timeout|srun|torchrun|deepspeed|accelerate)")
_ASSIGNMENT = lazy(r"(?s)(-{0,2}[\w.-]+=)(.+)")
_SOME_SECRET = "x1234567"  # text that is masked if it follows the name of a secret


def run_name(command: Sequence[str], now: float) -> str:
    """Return a name for a run that the user did not name: the script's stem and the local start time."""
    return sanitise(f"{script_name(command)}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}")


def script_name(command: Sequence[str]) -> str:
    """Return the name of the command's script or program, without secrets."""
    return redact(_stem(redacted_command(command)))


def _stem(command: Sequence[str]) -> str:
    # Variables set for the command (env NAME=value …) and masked words are not names.
    command = [word for word in command if not re.match(r"\w+=", word) and "***" not in word]
    scripts = [Path(word).stem for word in command if word.endswith((".py", ".sh"))]
    if scripts:
        return scripts[0]
    for before, word in zip(("", *command), command, strict=False):
        if before == "-m":
            return word
        if before == "-c":
            break
        if not word.startswith("-") and not _LAUNCHERS.fullmatch(Path(word).name):
            return Path(word).name
    named = [word for word in command if word != "env"]
    return Path(named[0]).name if named else "run"


def sanitise(name: str) -> str:
    """Return the name in a form that is safe as a folder name and as a label."""
    safe = re.sub(r"[^\w.+=-]+", "-", name, flags=re.UNICODE).strip(".-")
    return safe[:LONGEST] or "run"


def folder_names(label: str, host: str | None) -> Iterator[str]:
    """Yield names for the folder of a run's agent, in order of preference.

    `host` is given if the run can have several agents, which share the label.
    """
    yield label
    second = label if host is None else f"{label}+{sanitise(host)}"
    if host is not None:
        yield second
    join = "-" if host is None else "."
    for number in range(2, 1000):
        yield f"{second}{join}{number}"


def label_of(folder: str, label: str) -> str:
    """Return the label in a run's record, or the folder's name if the folder does not match the label.

    An arbitrary label in a record can point outside the state folder.
    """
    return label if label and folder.startswith(f"{label}+") else folder


def redacted_command(command: Sequence[str]) -> list[str]:
    """Return a copy of the command in which secrets are masked, both parts of words and whole words."""
    return [_redacted_word(before, word) for before, word in zip(("", *command), command, strict=False)]


def _redacted_word(before: str, word: str) -> str:
    # In a shell word, a secret can contain a blank or a comma, although these characters end a secret in a
    # log.
    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and before != "-c" and _is_secret(assigned[1]):
        return assigned[1] + "***"
    if before.startswith("--") and not word.startswith("-") and _is_secret(f"{before} "):
        return "***"
    return redact(word)


def _is_secret(name: str) -> bool:
    """Return whether the value that follows this name is a secret."""
    return _SOME_SECRET not in redact(name + _SOME_SECRET)
