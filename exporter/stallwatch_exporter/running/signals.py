"""Pass signals on to the command while it runs, so that the agent can observe how the command ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)


@contextmanager
def handling(handler: Callable[..., None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals with `handler` during a ``with`` block. Enter the block in the main thread.

    Signals that are already ignored (nohup) stay ignored in this process and in the command.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class SignalRelay:
    """Context that passes signals to the command (see `attach`) and new window sizes to its terminal.

    Enter the context before the command starts, so that no signal is lost.

    If the agent is in the terminal's foreground group, Control+C reaches the command directly, and a second
    signal can interrupt the command's cleanup. Otherwise, the agent passes Control+C on. A signal to the
    whole process group (``kill -- -PGID``) reaches the command twice because a signal does not show who
    received it. Therefore, send signals only to the agent.
    """

    def __init__(self) -> None:
        self._send: Callable[[signal.Signals], None] | None = None
        self._resize: Callable[[], None] | None = None
        self._early: list[signal.Signals] = []
        self._handling = ExitStack()
        self.interrupted = False
        self.passed_on: signal.Signals | None = None

    def __enter__(self) -> SignalRelay:
        self._handling.enter_context(handling(self._handle, *_PASSED_ON, *_FROM_KEYBOARD, signal.SIGWINCH))
        return self

    @property
    def stop_requested(self) -> bool:
        """Return whether a signal has requested that the command end (Control+C, SIGTERM, or SIGHUP)."""
        return self.interrupted or self.passed_on is not None

    def attach(self, send: Callable[[signal.Signals], None], resize: Callable[[], None]) -> None:
        """Pass signals on to the command through `send`, including signals that arrived earlier."""
        self._send, self._resize = send, resize
        early, self._early = self._early, []
        for number in early:
            send(number)

    def __exit__(self, *_: object) -> None:
        self._handling.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received == signal.SIGWINCH:
            if self._resize is not None:
                self._resize()
        elif received in _FROM_KEYBOARD:
            self.interrupted = True
            if not in_foreground():
                self._pass_on(received)
        else:
            if received in (signal.SIGTERM, signal.SIGHUP):
                self.passed_on = received
            self._pass_on(received)

    def _pass_on(self, number: signal.Signals) -> None:
        if self._send is None:
            self._early.append(number)
        else:
            self._send(number)


def in_foreground() -> bool:
    """Return whether this process is in a terminal's foreground group, which gets keyboard signals."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
