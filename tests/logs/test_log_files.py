"""Logs from files, folders, globs, archives and pipes: problems are reported, and the rest is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard
from packing import TEXT, make_zip, read, tar_bytes, write

from stallwatch_logs.inputs import CHUNK
from stallwatch_logs.log_files import expand, from_stream


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- files, folders, globs


def test_file_is_read_in_bounded_chunks() -> None:
    write("train.log", TEXT)
    files, problems = expand(["train.log"])
    chunks = list(files[0].chunks(problems))
    assert b"".join(chunks) == TEXT and len(chunks) > 1
    assert max(map(len, chunks)) <= CHUNK
    assert (files[0].size, files[0].rank, problems) == (len(TEXT), None, [])


def test_named_file_is_read_regardless_of_its_extension() -> None:
    write("notes.md")
    assert read("notes.md") == ({"notes.md": b"hello\n"}, [])


def test_folder_gives_its_logs_in_natural_order() -> None:
    for name in (
        "rank10.log",
        "rank9.log",
        "sub/attempt_0/1/stderr.log",
        "slurm-17.out",
        "train.log.1",
        "job.e123",
    ):
        write(f"logs/{name}")
    for name in ("model.bin", ".hidden.log", "train.py", "config.json", "train.jsonl", "requirements.txt"):
        write(f"logs/{name}")
    for folder in ("checkpoint-100", ".git", "global_step20", "__pycache__"):
        write(f"logs/{folder}/trainer.log")
    files, problems = expand(["logs"])
    assert problems == []
    assert [(file.name, file.rank) for file in files] == [
        ("logs/job.e123", None),
        ("logs/rank9.log", 9),
        ("logs/rank10.log", 10),
        ("logs/slurm-17.out", None),
        ("logs/sub/attempt_0/1/stderr.log", 1),
        ("logs/train.log.1", None),
    ]


def test_both_streams_of_a_rank_belong_to_it() -> None:
    write("logs/rank3.stdout.log")
    write("logs/rank3.stderr.log")
    assert [file.rank for file in expand(["logs"])[0]] == [3, 3]


def test_records_in_a_run_folder_are_not_logs() -> None:
    for name in ("agent.json", "diagnosis.json", "incidents.jsonl", "output.log", "ranks/rank0.log"):
        write(f"run/{name}")
    assert sorted(read("run")[0]) == ["run/output.log", "run/ranks/rank0.log"]


def test_folder_without_log_names_yields_possible_logs() -> None:
    write("out/worker-a")
    write("out/train.py")
    assert read("out") == ({"out/worker-a": b"hello\n"}, [])


def test_binary_file_in_a_folder_is_skipped() -> None:
    write("logs/a.log", bytes(range(256)) * 100)
    write("logs/b.log")
    assert read("logs") == ({"logs/a.log": b"", "logs/b.log": b"hello\n"}, [])


def test_empty_files_are_skipped_if_others_have_content() -> None:
    write("logs/rank0.err", b"")
    write("logs/rank0.out")
    assert read("logs") == ({"logs/rank0.out": b"hello\n"}, [])
    assert read("logs/*") == ({"logs/rank0.out": b"hello\n"}, [])


def test_file_found_twice_is_read_once() -> None:
    write("logs/a.log")
    Path("logs/b.log").symlink_to("a.log")
    assert len(read("logs", "logs/a.log")[0]) == 1


def test_glob_pattern_is_expanded() -> None:
    write("logs/rank10.log")
    write("logs/rank9.log")
    assert list(read("logs/rank*.log")[0]) == ["logs/rank9.log", "logs/rank10.log"]
    assert len(read("**/*.log")[0]) == 2


def test_existing_name_with_glob_characters_is_not_expanded() -> None:
    write("a[1].log")
    write("a1.log", b"other\n")
    assert read("a[1].log") == ({"a[1].log": b"hello\n"}, [])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.log", "no such file or folder"),
        ("*.gone", "no file matches"),
        ("", "the path is empty"),
        ("void", "the folder contains no log files"),
        ("empty.log", "the file is empty"),
        ("binary.log", "this is a binary file, not a log"),
        ("dangling.log", "no such file or folder"),
        ("gone\0.log", "no such file or folder"),
    ],
)
def test_problem_is_reported_once_and_the_other_files_are_read(path: str, message: str) -> None:
    Path("void").mkdir()
    write("empty.log", b"")
    write("binary.log", b"\x7fELF" + bytes(2000))
    Path("dangling.log").symlink_to("nowhere")
    read_alone, problems = read(path)
    assert not any(read_alone.values())
    assert [(problem.path, problem.message) for problem in problems] == [(path or "''", message)]
    assert problems[0].remedy and "\n" not in str(problems[0])
    write("good.log")
    found, problems = read(path, "good.log")
    assert found["good.log"] == b"hello\n" and len(problems) == 1


def test_control_characters_in_names_are_removed() -> None:
    write("a\x1b[2J\n.log", b"")
    _, problems = read("a\x1b[2J\n.log")
    assert str(problems[0]).startswith("a?[2J .log: ")
    make_zip("b.zip", {"c\x1b]0;x\x07.log": TEXT})
    assert list(read("b.zip")[0]) == ["b.zip!c?]0;x?.log"]


def test_undecodable_file_name_is_accepted() -> None:
    Path(os.fsdecode(b"a\xff.log")).write_bytes(TEXT)
    logs, problems = read("*.log", os.fsdecode(b"gone\xff"))
    assert logs == {"a?.log": TEXT}
    assert str(problems[0]).encode().startswith(b"gone?: ")


def test_file_without_read_permission_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who can read every file."""

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    write("secret.log")
    monkeypatch.setattr("stallwatch_logs.log_files._opened", refuse)
    found, problems = read("secret.log")
    assert found == {}
    assert [str(problem) for problem in problems] == [
        "secret.log: cannot be read (Permission denied); check the permissions"
    ]


def test_file_that_disappears_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.log")
    files, problems = expand(["a.log"])
    Path("a.log").unlink()
    assert list(files[0].chunks(problems)) == []
    assert [problem.path for problem in problems] == ["a.log"]


# ---- standard input and pipes


def feed_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]) -> None:
    feed_stdin(monkeypatch, pack(TEXT))
    assert read("-") == ({"<stdin>": TEXT}, [])


def test_unusable_standard_input_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in (
        (b"", "no data was received"),
        (tar_bytes({"a.log": b"x"}), "a tar archive cannot be read from a pipe"),
    ):
        feed_stdin(monkeypatch, data)
        assert [problem.message for problem in read("-")[1]] == [message]


def test_named_pipe_is_read() -> None:
    """The shell makes such pipes for ``<(command)``."""
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(TEXT))
    writer.start()
    assert read("pipe") == ({"pipe": TEXT}, [])
    writer.join()


def test_pipes_in_a_folder_are_skipped() -> None:
    write("logs/a.log")
    os.mkfifo("logs/b.log")
    assert list(read("logs")[0]) == ["logs/a.log"]


# ---- others


def test_upload_is_read_and_not_closed() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("rank0.log", TEXT)
    for _ in range(2):
        files, problems = from_stream("up.zip", out)
        assert [b"".join(file.chunks(problems)) for file in files] == [TEXT]
    assert from_stream("empty.log", io.BytesIO())[1][0].message == "the file is empty"


def test_trainer_state_is_read_as_a_log() -> None:
    history: Sequence[dict[str, float]] = [{"loss": 2.5, "step": 5, "epoch": 0.1}, {"loss": 1.5, "step": 10}]
    write("out/trainer_state.json", json.dumps({"log_history": history, "max_steps": 20}, indent=2).encode())
    found, problems = read("out")
    lines = [json.loads(line) for line in found["out/trainer_state.json"].splitlines()]
    assert lines == [{**entry, "max_steps": 20} for entry in history]
    write("out/trainer_state.json", b'{"cut": ')
    assert read("out") == ({"out/trainer_state.json": b'{"cut": '}, [])
    assert problems == []


def test_notebook_is_read_as_the_output_of_its_cells() -> None:
    printed = {"output_type": "stream", "name": "stderr", "text": ["one\n", "two"]}
    shown = {"output_type": "execute_result", "data": {"text/plain": "three"}}
    failed = {
        "output_type": "error",
        "ename": "ValueError",
        "evalue": "no",
        "traceback": ["a\nb", "ValueError: no"],
    }
    bare = {"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": []}
    cells = [{"cell_type": "markdown"}, {"outputs": [printed, shown]}, {"outputs": [failed, bare]}]
    write("run.ipynb", json.dumps({"cells": cells}, indent=1).encode())
    found, problems = read("run.ipynb")
    assert found["run.ipynb"].decode().splitlines() == [
        *("one", "two", "three", "a", "b", "ValueError: no", "KeyError: 'a'")
    ]
    write("run.ipynb", b'{"cells": ')
    assert read("run.ipynb") == ({"run.ipynb": b'{"cells": '}, [])
    assert problems == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tar.gz", "tar"),
        ("a.tgz", "tar"),
        ("a.tzst", "tar"),
        ("a.zip", "zip"),
        ("A.ZIP", "zip"),
        ("a.gz", ""),
    ],
)
def test_plain_file_with_an_archive_extension_is_read_and_reported(
    tmp_path: Path, name: str, kind: str
) -> None:
    path = tmp_path / name
    path.write_text("step 1 loss 1.5\n")
    files, problems = expand([str(path)])
    assert b"".join(files[0].chunks([])) == b"step 1 loss 1.5\n"
    assert [problem.message for problem in problems] == (
        [f"the file is not a {kind} archive and was read as text"] if kind else []
    )
