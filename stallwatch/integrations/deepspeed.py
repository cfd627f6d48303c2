"""Run an agent for each rank that ``deepspeed --hostfile`` starts, through the option ``--module``.

``deepspeed --hostfile hosts --module stallwatch.integrations.deepspeed train.py`` runs, for each rank,
``stallwatch run -- python -u train.py`` (DeepSpeed 0.19.8, launcher/launch.py). Options of ``stallwatch run``
can precede the script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def command_of(words: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the ``stallwatch run`` command for the arguments that DeepSpeed passes.

    The arguments are ``stallwatch run`` options, the script, and the script's arguments. The script can be
    ``-m MODULE``. DeepSpeed writes ``--local_rank``, which is an argument of the script, before all other
    arguments.
    """
    ours, rest, given = list[str](), list(words), list[str]()
    while rest[:1] and rest[0].startswith("--"):
        word = rest.pop(0)
        if word.startswith("--local_rank"):
            given.append(word)
        else:
            is_flag = "=" in word or word.startswith("--no-") or word == "--fail-on-finding"
            ours += [word] if is_flag else [word, *rest[:1]]
            rest = rest if is_flag else rest[1:]
    program = rest[:2] if rest[:1] == ["-m"] else rest[:1]
    training = [python, "-u", *program, *given, *rest[len(program) :]]
    return [python, "-m", "stallwatch", "run", *ours, "--", *training]


def main() -> None:
    """Replace this process with ``stallwatch run``."""
    command = command_of(sys.argv[1:])
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
