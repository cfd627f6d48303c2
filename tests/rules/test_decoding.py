"""Records are decoded by several threads at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("exporter", "rules", "logs", "alerts", "dashboard", "stallwatch")

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


def test_threads_that_use_a_record_for_the_first_time_at_once_do_not_crash() -> None:
    """With ``msgspec.convert`` itself, a thread finds types that are not there yet: SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("package", PRODUCT)
def test_no_other_way_decodes_records_after_the_import(package: str) -> None:
    unsafe = re.compile(r"msgspec\.convert\(|^ .*\.decode\(.*\btype=")
    found = [
        f"{path}: {line.strip()}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if unsafe.search(line) and path.name != "decoding.py"
    ]
    assert found == []
