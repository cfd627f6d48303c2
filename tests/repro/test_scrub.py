"""A recording must not reveal the machine on which it was made, and is otherwise unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrub import LeftOverError, Scrubber

SCRUB = Scrubber({"/home/ann/x/train": "/opt/train", "/home/ann/x": "/opt/venv"}, "node-7", ("/home/ann",))


def test_folders_are_replaced_longest_first() -> None:
    text = 'File "/home/ann/x/lib/a.py"\nFile "/home/ann/x/train/b.py"\n'
    assert SCRUB.text(text) == 'File "/opt/venv/lib/a.py"\nFile "/opt/train/b.py"\n'


def test_host_name_is_replaced_only_as_a_word() -> None:
    assert SCRUB.text("host : node-7\nnode-70 my-node-7 node-7.local") == (
        "host : localhost\nnode-70 my-node-7 localhost.local"
    )


def test_remaining_machine_path_is_refused() -> None:
    with pytest.raises(LeftOverError, match="/home/ann/secret"):
        SCRUB.text("fine\nread /home/ann/secret.txt\n")


def test_binary_bytes_and_line_ends_are_kept(tmp_path: Path) -> None:
    data = b"2026-01-01T00:00:00.000000001Z stdout P 5%\r\n\xff\xfe node-7\r\n\x1b[0m"
    (tmp_path / "a.log").write_bytes(data)
    SCRUB.copy(tmp_path / "a.log", tmp_path / "b" / "a.log")
    assert (tmp_path / "b" / "a.log").read_bytes() == data.replace(b"node-7", b"localhost")
