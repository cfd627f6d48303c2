"""Stacks in three forms, as the probe, faulthandler and py-spy really write them."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from stallwatch_exporter.probe import answers as probe
from stallwatch_rules.stacks.reading import (
    from_faulthandler,
    from_probe,
    from_py_spy,
    main_thread,
)


def here() -> int:
    return sys._getframe(1).f_lineno


def waiting_thread(stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=stop.wait, name="prefetch", daemon=True)
    thread.start()
    return thread


def test_stacks_of_the_probe_have_names_and_a_main_thread() -> None:
    stop = threading.Event()
    thread = waiting_thread(stop)
    messages: list[object] = []
    asker = threading.Thread(target=lambda: messages.append(json.loads(json.dumps(probe.stacks()))))
    asker.start()
    asker.join()
    stop.set()
    thread.join()
    found = from_probe(messages[0])
    main = main_thread(found)
    assert main is not None and main.name == "MainThread"
    names = [frame.function.rpartition(".")[2] for frame in main.frames]
    assert "test_stacks_of_the_probe_have_names_and_a_main_thread" in names
    assert names[-1] != names[0], "outermost first"
    (other,) = [each for each in found if each.name == "prefetch"]
    assert other.frames[-1].function.endswith("wait") and not other.main
    assert all("asker" not in each.name for each in found), "who asks is not told"


def test_faulthandler_output_is_read() -> None:
    stop = threading.Event()
    thread = waiting_thread(stop)
    with tempfile.TemporaryFile("w+") as file:
        line = here() + 1
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    stop.set()
    thread.join()
    main = main_thread(from_faulthandler(text))
    assert main is not None
    assert (main.frames[-1].function, main.frames[-1].line) == ("test_faulthandler_output_is_read", line)
    assert Path(main.frames[-1].file).name == "test_reading.py"


def test_later_of_two_dumps_is_used() -> None:
    """Two readers at once get both dumps, perhaps from the middle of the first one."""
    frame, thread = '  File "/w/train.py", line {} in step\n\n', "Thread 0x{} (most recent call first):\n"
    text = frame.format(3) + thread.format(1) + frame.format(8)
    text += thread.format(2) + frame.format(4) + thread.format(1) + frame.format(9)
    found = from_faulthandler(text)
    assert [(thread.frames[-1].line, thread.main) for thread in found] == [(4, False), (9, True)]


def test_faulthandler_output_of_newer_pythons_is_read() -> None:
    text = (
        "Thread 0x00007f1c [prefetch] (most recent call first):\n"
        '  File "/w/a b.py", line 3 in <lambda>\n\n'
        "Current thread 0x00007f1d [python3] (most recent call first):\n"
        '  File "/w/train.py", line ??? in step\n'
        '  File "/w/train.py", line 9 in <module>\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "python3", at _Py_DumpStack+0x4 [0x5]\n'
    )
    other, main = from_faulthandler(text)
    assert (other.name, other.frames[0].file, other.main) == ("prefetch", "/w/a b.py", False)
    assert [frame.line for frame in main.frames] == [9, 0] and main.main


PROGRAM = """
import threading, sys
def inner():
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=threading.Event().wait, name="aux", daemon=True).start()
inner()
"""


def test_py_spy_output_is_read() -> None:
    from stallwatch_exporter.stacks.queries import find_py_spy, spied

    program = find_py_spy()
    if program is None:
        pytest.skip("py-spy is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        found = spied(program, child.pid, 30.0)
        child.stdin.close()
    main = main_thread(found)
    assert main is not None
    assert [frame.function for frame in main.frames] == ["<module>", "inner"]
    assert "aux" in [each.name for each in found]


@pytest.mark.parametrize(
    "expected", [None, 3, {}, {"threads": 3}, {"threads": [3, {"frames": [3, [1], ["a", "b", "c", "d"]]}]}]
)
def test_malformed_stacks_are_ignored(expected: object) -> None:
    assert all(not thread.frames for thread in from_probe(expected))


@pytest.mark.parametrize("text", ["", "no json", "{}", '[{"frames": 3}]', "[3]"])
def test_other_text_is_not_a_dump(text: str) -> None:
    assert all(not thread.frames for thread in from_py_spy(text))
    assert from_faulthandler(text) == ()
