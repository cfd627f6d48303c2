"""The command alone: for when the watching cannot even begin, which is no reason not to train."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from stallwatch_exporter.running.capture import start_problem
from stallwatch_exporter.running.signals import SignalRelay


def run_unwatched(command: Sequence[str]) -> int:
    """Run `command` with our own input and output; its exit code, 128 + n after signal n."""
    with SignalRelay() as relay:
        try:
            child = subprocess.Popen(command)
        except OSError as error:
            raise start_problem(command[0], error) from error
        relay.attach(child.send_signal, lambda: None)
        returncode = child.wait()
    return 128 - returncode if returncode < 0 else returncode
