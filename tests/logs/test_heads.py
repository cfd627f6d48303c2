"""The head of a file is the same for any portions of its bytes."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.inputs import InputError, InputProblem
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.portions import HEAD, head_first
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.records import Diagnosis

SENTENCE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.88 GiB memory in "
    "use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 5.50 GiB is reserved but unallocated"
)
PLAIN = b"".join(b"step %d/900 loss 1.5\n" % step for step in range(60))
NOISE = bytes(range(256)) * 512


def portions(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return load_catalogue(cache=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("size", [1, 512, 65536, HEAD, HEAD + 1, 3 * HEAD])
def test_first_portion_is_the_head_and_nothing_is_lost(size: int) -> None:
    data = bytes(range(251)) * 2200
    parts = list(head_first(portions(data, size)))
    assert parts[0] == data[:HEAD]
    assert b"".join(parts) == data
    assert list(head_first(portions(data[:700], size))) == [data[:700]]
    assert list(head_first(iter(()))) == []


def test_bytes_before_an_error_are_returned_first() -> None:
    def breaks() -> Iterator[bytes]:
        yield b"one\n"
        yield b"two\n"
        raise InputError("is broken", "copy it again")

    found = []
    with pytest.raises(InputError, match="is broken"):
        found.extend(head_first(breaks()))
    parts = head_first(breaks())
    assert next(parts) == b"one\ntwo\n"


@pytest.mark.parametrize("size", [7, 512, 65536, HEAD])
def test_noise_is_detected_regardless_of_the_chunks(size: int) -> None:
    """The first 512 bytes alone would pass for text."""
    data = b"a line of text\n" * 40 + NOISE
    problems: list[InputProblem] = []
    binary: list[str] = []
    asked = LogFile("a.log", None, True, len(data), lambda: portions(data, size))
    found = LogFile("b.log", None, False, len(data), lambda: portions(data, size))
    assert list(asked.chunks(problems)) == [] and [problem.path for problem in problems] == ["a.log"]
    assert list(found.chunks(problems, binary)) == [] and binary == ["b.log"]
    assert len(problems) == 1


def test_diagnosis_is_the_same_for_every_kind_of_input(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure follows the first portion of every input, but is within its head."""
    steps = b"".join(
        b"step %4d/900 loss 1.5000 lr 0.00100000 grad_norm 0.7500\n" % step for step in range(1300)
    )
    data = steps + b"".join(f"{number} {SENTENCE}\n".encode() for number in range(200))
    assert 65536 < len(data) < HEAD
    (tmp_path / "x.log").write_bytes(data)
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.log", data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    said = []
    for path in (tmp_path / "x.log", tmp_path / "x.log.gz", tmp_path / "x.zip", "-"):
        diagnosis, problems = diagnose_paths([path], Options(catalogue))
        assert problems == []
        said.append(_said(diagnosis))
    assert said[1:] == said[:1] * 3
    assert any("PyTorch, and 5.50" in line for line in said[0][1])  # the whole sentence


def _said(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    assert diagnosis.primary is not None
    return diagnosis.primary.rule, list(diagnosis.primary.evidence)


def test_binary_files_of_a_folder_are_reported_in_one_note(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "rank0.log").write_bytes(PLAIN)
    for rank in range(1, 6):
        (tmp_path / f"rank{rank}.log").write_bytes(NOISE + PLAIN)
    diagnosis, problems = diagnose_paths([tmp_path], Options(catalogue))
    assert problems == []
    messages = [note for note in map(render, diagnosis.notes) if "binary" in note]
    assert len(messages) == 1
    assert messages[0].startswith("5 binary files were not read")
    assert "rank1.log" in messages[0] and "rank3.log, …" in messages[0] and "rank5.log" not in messages[0]
