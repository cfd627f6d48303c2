"""Start ranks as forked.py does, as forks of one process that many launches share.

    python tests/repro/forkserver.py DESCRIPTOR [NAME …]                          # the process that forks
    python tests/repro/forkserver.py SOCKET [--ranks 2] [--log-dir DIR] PROGRAM [OPTION …]     # a launch

Importing torch and DeepSpeed costs nine seconds of processor time, more than the rest of most reproductions.
The server imports them once, with the other names on its command line. A launch passes its streams, folder
and environment to the server, forwards signals to the launcher that the server forks, and ends with its exit
code. That launcher is not a child of the launch: tests of a command's descendants use forked.py itself or
torchrun. If a launch is killed, its ranks end too. The server ends when the other end of its stdin is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

STREAMS = (0, 1, 2)


class Forks:
    """The fork server of the tests; started at once, and ready when it has imported all names."""

    def __init__(self, environ: dict[str, str], *names: str) -> None:
        # Not a test's folder, nor a deep one: the path of a socket has at most 107 characters (unix(7)).
        where = "/tmp" if len(tempfile.gettempdir()) > 60 else None
        self._folder = tempfile.TemporaryDirectory(prefix="forks-", dir=where)
        self._address = Path(self._folder.name, "socket")
        self._names = names
        self._environ = {**environ, "STALLWATCH_PROBE": "0", "PYTHONUNBUFFERED": "1"}
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._address.unlink(missing_ok=True)
        # A bound socket queues launches while the imports take their time.
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._address))
        listening.listen()
        with listening:
            return subprocess.Popen(
                [sys.executable, __file__, str(listening.fileno()), *self._names],
                env=self._environ,
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )

    def command(self, *options: str) -> list[str]:
        """Return the command of a launch with options of forked.py; restart the server if it was killed."""
        if self._process.poll() is not None:
            self._process = self._started()
        return [sys.executable, "-S", __file__, str(self._address), *options]

    def close(self) -> None:
        """Stop the server; launches continue."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def ask(address: str, options: list[str]) -> int:
    """Act as a launch: return the exit code of the launcher that is forked for it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"\n"], STREAMS)
        asked = {"options": options, "folder": str(Path.cwd()), "environ": dict(os.environ)}
        server.sendall(json.dumps(asked).encode() + b"\n")
        with server.makefile() as answers:
            launcher = int(answers.readline())

            def pass_on(number: int, _: FrameType | None) -> None:
                os.kill(launcher, number)

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, pass_on)
            return int(answers.readline() or 1)


def serve(listening: socket.socket, names: Sequence[str]) -> tuple[str, list[str]]:
    """Fork a launcher for each launch until stdin ends; return in ranks, with their program."""
    import forked

    forked.import_all(*names)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers are not waited for
    while True:
        ready, _, _ = select.select([sys.stdin, listening], [], [])
        if sys.stdin in ready:
            sys.exit()
        launch, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return become_launcher(launch)
        launch.close()


def become_launcher(launch: socket.socket) -> tuple[str, list[str]]:
    """Take the launch's place in a fork, and end with its ranks; return in ranks, with their program."""
    import forked

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(launch, 1, len(STREAMS))
    for given, own in zip(streams, STREAMS, strict=True):
        os.dup2(given, own)
        os.close(given)
    with launch.makefile() as found:
        asked = json.loads(found.readline())
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ |= asked["environ"]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    launch.sendall(f"{os.getpid()}\n".encode())
    code = 1
    try:
        chosen = forked.main(asked["options"], lambda: bool(select.select([launch], [], [], 0)[0]))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        with contextlib.suppress(BrokenPipeError):  # the launch was killed and reads no more
            launch.sendall(f"{code}\n".encode())
        raise
    launch.close()
    return chosen


if __name__ == "__main__":
    where, *chosen = sys.argv[1:]
    if not where.isdecimal():
        sys.exit(ask(where, chosen))
    program, sys.argv = serve(socket.socket(fileno=int(where)), chosen)
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
