"""Several threads decode records at once."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("exporter", "rules", "logs", "alerts", "dashboard", "stallwatch", "lint")

_PROGRAM = """
from __future__ import annotations
import sys, threading, types
from stallwatch_rules.decoding import convert

MODULE = types.ModuleType("records")
sys.modules["records"] = MODULE
RECORDS = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    a: int = 0
    b: list[dict[str, int]] = []
class Outer(msgspec.Struct):
    x: Inner | None = None
    y: list[Inner] = []
    z: dict[str, str] = {}
'''
sys.setswitchinterval(1e-6)
for _ in range(200):
    exec(RECORDS, MODULE.__dict__)
    ready = threading.Barrier(4)
    def work(kind):
        ready.wait()
        convert({"x": {"a": 1}, "y": [{"a": 2}], "z": {"a": "b"}}, kind)
    threads = [threading.Thread(target=work, args=(MODULE.Outer,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_concurrent_first_use_of_a_record_does_not_crash() -> None:
    """With plain ``msgspec.convert``, a thread uses incomplete types: SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


_FORKING = """
import os, signal, threading
import msgspec
from stallwatch_rules import decoding

class Record(msgspec.Struct):
    a: int = 0

begun, end = threading.Event(), threading.Event()

def prepare(kind):
    begun.set()
    end.wait()

threading.Timer(0.2, end.set).start()
decoding._prepared = prepare
thread = threading.Thread(target=decoding.convert, args=({}, Record))
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    signal.alarm(20)
    os._exit(decoding.convert({"a": 7}, Record).a)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), decoding.convert({"a": 8}, Record).a)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_fork_during_preparation_of_a_record_is_safe() -> None:
    """The child had the lock without the thread that would release it, and waited without end."""
    done = subprocess.run([sys.executable, "-c", _FORKING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 8\n", "")


_DECODING = ("convert", "decode", "json", "msgpack", "toml", "yaml")


def _decoding_records(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield calls that decode into a type in functions, where several threads may run them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "msgspec":
            yield from [node for name in node.names if name.name in _DECODING]
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for call in ast.walk(node):
            called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if called == "msgspec.convert" or (
                called.startswith("msgspec.")
                and called.endswith(".decode")
                and any(given.arg in ("type", None) for given in call.keywords)
            ):
                yield call


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("def f(): return msgspec.convert({}, T)", True),
        ("def f(): return [msgspec.yaml.decode(b'', type=T)]", True),
        ("class A:\n async def f(self): return msgspec.json.decode(\n  b'',\n  type=T)", True),
        ("f = lambda: msgspec.convert({}, T)", True),
        ("from msgspec import convert", True),
        ("from msgspec.json import decode", True),
        ("TABLE = msgspec.json.decode(b'', type=T)", False),
        ("def f(): return msgspec.json.decode(b'')", False),
        ("from msgspec.structs import replace", False),
    ],
)
def test_unsafe_decoders_are_found(code: str, is_found: bool) -> None:
    assert bool([*_decoding_records(ast.parse(code))]) == is_found


@pytest.mark.parametrize("package", PRODUCT)
def test_records_are_decoded_only_by_the_safe_function(package: str) -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "decoding.py"
        for node in _decoding_records(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
