"""Stallwatch's own messages are marked, safe for a terminal, and never block."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from stallwatch_exporter.notices import guard_threads, print_notice, surviving
from stallwatch_rules.text.controls import printable


def test_every_line_has_the_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice("one\n\n  two \r\n")
    print_notice("")
    assert capsys.readouterr().err == "stallwatch: one\nstallwatch:\nstallwatch:   two\nstallwatch:\n"


def test_control_characters_are_removed_from_notices(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice("\x1b[2J\x07\r\x9b1m\u202egnp.log \t 损失 é")
    assert capsys.readouterr().err == "stallwatch: ?[2J???1m?gnp.log \t 损失 é\n"
    assert printable("plain\n") == "plain\n"


def closed() -> io.TextIOBase:
    stream = io.StringIO()
    stream.close()
    return stream


def full() -> io.TextIOBase:
    return Path("/dev/full").open("w")


@pytest.mark.parametrize("stderr", [closed, full, lambda: None])
def test_notice_without_a_working_stderr_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, stderr: object
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr())  # type: ignore[operator]
    print_notice("lost")


def test_failing_notice_is_ignored() -> None:
    def broken(text: str) -> None:
        raise OSError(text)

    surviving(broken)("lost")


def test_error_that_ends_a_thread_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    said: list[str] = []
    guard_threads(said.append)

    def work() -> None:
        raise OSError(24, "Too many open files")

    for _ in range(2):
        thread = threading.Thread(target=work, name="prune")
        thread.start()
        thread.join()
    assert said == ["the thread prune failed (OSError: [Errno 24] Too many open files); the run continues"]
    assert capsys.readouterr().err == ""
