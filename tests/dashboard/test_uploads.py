"""Uploads that are too large or not logs: they are refused, or read within limits, with a message."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads.gate import UploadGate, UploadSessions
from stallwatch_dashboard.uploads.reader import Answer
from stallwatch_dashboard.uploads.reading import read_uploads, safe_name, spooled, too_much
from stallwatch_exporter.runs.runfolder import AgentInfo

LOG = b"step 1 loss 2.0\nstep 2 loss 1.9\n"
LOG += b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.fixture
def settings(home: Path) -> DashboardSettings:
    """Return settings with small limits, so that small files exceed them."""
    return DashboardSettings(home=home, max_members=50, max_ratio=100, max_expanded_mb=200)


def read(settings: DashboardSettings, *files: tuple[str, bytes]) -> Answer:
    """Return the result for the files; no file may be left."""
    streams = [(name, io.BytesIO(data)) for name, data in files]
    answer = read_uploads(streams, settings, lambda _read, _of: None)
    assert not list(settings.home.glob(".upload-*"))
    return answer


def problems_of(answer: Answer) -> str:
    return "\n".join(map(str, answer.problems))


def zipped(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return packed.getvalue()


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def test_baseline_reveals_new_lines(settings: DashboardSettings) -> None:
    steps = [f"step {number}/100 loss 0.5" for number in range(1, 31)]
    known, new = "WARNING: the cache of shard 3 is cold", "WARNING: the belt of conveyor 7 slips"
    ended = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "OddError: odd"]
    failed = ("run.log", io.BytesIO("\n".join([*steps, known, new, *ended]).encode()))
    healthy = ("run.log", io.BytesIO("\n".join([*steps, known, *steps]).encode()))
    signs: list[tuple[int, int]] = []
    both = len(failed[1].getvalue()) + len(healthy[1].getvalue())
    answer = read_uploads([failed], settings, lambda *sign: signs.append(sign), healthy=[healthy])
    assert answer.healthy == "unfinished" and answer.found.stats.files == 1
    assert {of for _, of in signs} == {both} and signs == sorted(signs) and signs[-1][0] == both
    empty = read_uploads([failed], settings, lambda *_: None, healthy=[("other.log", io.BytesIO())])
    assert empty.healthy == "", "nothing was compared"
    assert [new_line.exemplar for new_line in answer.found.new_lines] == [new]


def test_archives_of_two_hosts_are_one_run(settings: DashboardSettings) -> None:
    def of_host(number: int, *last: str) -> bytes:
        lines = [f"step {step}/100 loss 0.5" for step in range(1, 31)]
        copy = "".join(
            f"2026-11-27T03:54:{at:02}.000000000Z stdout F [default1]:{line}\n"
            for at, line in enumerate([*lines, *last])
        )
        info = AgentInfo(
            run="sft-8123.0",
            key="5f" * 8,
            host=f"n{number}",
            ranks=f"{2 * number}-{2 * number + 1}",
            pid=number + 1,
            command=["x"],
            cwd="/",
            started_at=1_795_750_000.0,
            updated_at=1_795_750_100.0,
        )
        folder = f"sft-8123.0+n{number}"
        return zipped(
            (f"{folder}/agent.json", msgspec.json.encode(info)),
            (f"{folder}/ranks/rank1.log", copy.encode()),
        )

    answer = read(settings, ("n0.zip", of_host(0)), ("n1.zip", of_host(1, LOG.decode().splitlines()[-1])))
    primary = answer.found.primary
    assert primary is not None
    assert (primary.rule, primary.rank, primary.host) == ("cuda-oom", 3, "n1")
    assert [(host.host, host.ranks) for host in answer.found.hosts] == [("n0", [0, 1]), ("n1", [2, 3])]


def test_zip_bomb_is_stopped_and_reported(settings: DashboardSettings) -> None:
    bomb = zipped(("rank0.log", bytes(150 * 1024 * 1024)))
    answer = read(settings, ("bomb.zip", bomb), ("good.log", LOG))
    assert "bomb.zip!rank0.log" in problems_of(answer) and "zip bomb" in problems_of(answer)
    assert answer.found.primary is not None and answer.found.primary.file == "good.log"


def test_nested_zip_bomb_is_not_unpacked(settings: DashboardSettings) -> None:
    inner = zipped(("rank0.log", bytes(10_000_000)))
    answer = read(settings, ("nested.zip", zipped(*((f"{n}.log", inner) for n in range(5)))))
    assert "the file is a zip archive inside an archive and was not read; unpack it" in problems_of(answer)


def test_limits_apply_to_compressed_members(settings: DashboardSettings) -> None:
    inner = gzip.compress(bytes(150 * 1024 * 1024))
    assert "zip bomb" in problems_of(read(settings, ("nested.zip", zipped(("rank0.log.gz", inner)))))


@pytest.mark.parametrize(
    "name", ["../../escape.log", "/etc/escape.log", "..\\..\\escape.log", "a/../../escape.log"]
)
def test_path_traversal_in_names_has_no_effect(
    settings: DashboardSettings, name: str, tmp_path: Path
) -> None:
    answer = read(settings, (name, LOG), ("x.zip", zipped((name, LOG))))
    assert answer.found.primary is not None and answer.found.stats.files == 2
    assert not [path for path in tmp_path.rglob("*") if "escape" in path.name]


def test_links_in_archives_are_not_followed(settings: DashboardSettings, tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_bytes(LOG)
    link = tarfile.TarInfo("rank0.log")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.log")
    hard = tarfile.TarInfo("rank1.log")
    hard.type, hard.linkname = tarfile.LNKTYPE, "../../secret.log"
    answer = read(settings, ("links.tar", tarred((link, b""), (hard, b""))))
    assert answer.found.primary is None and "contains no log files" in problems_of(answer)


def test_wrong_sizes_in_headers_are_harmless(settings: DashboardSettings) -> None:
    packed = bytearray(zipped(("rank0.log", LOG * 1000)))
    central = packed.rindex(b"PK\x01\x02")
    packed[central + 24 : central + 28] = (10).to_bytes(4, "little")  # the header claims ten bytes
    answer = read(settings, ("lies.zip", bytes(packed)), ("good.log", LOG))
    assert answer.found.stats.bytes < 2 * len(LOG) * 1000 and "lies.zip" in problems_of(answer)
    huge = bytearray(tarred((tarfile.TarInfo("rank0.log"), LOG)))
    huge[124:136] = b"77777777777\x00"  # the header claims eight gigabytes
    huge[148:156] = b" " * 8
    huge[148:156] = b"%06o\x00 " % sum(huge[:512])
    assert "huge.tar" in problems_of(read(settings, ("huge.tar", bytes(huge))))


def test_number_of_members_is_bounded(settings: DashboardSettings) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(100_000):
            archive.writestr(f"r{number}.log", b"x")
    answer = read(settings, ("many.zip", packed.getvalue()))
    assert "many.zip: the archive contains more than 50 files; the rest was not read" in problems_of(answer)
    assert answer.found.stats.files == 50


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "a.log.gz"), (bz2.compress, "a.tar.bz2")])
def test_truncated_archives_are_reported(settings: DashboardSettings, pack: Any, name: str) -> None:
    whole = pack(b"".join(b"step %d loss 1.0 %d\n" % (n, n * 7919 % 10007) for n in range(50_000)))
    assert name in problems_of(read(settings, (name, whole[: len(whole) // 2])))


def test_pickles_are_not_loaded(settings: DashboardSettings, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str, str]]:
            return open, (str(tmp_path / "loaded"), "w")

    answer = read(
        settings,
        ("model.pkl", pickle.dumps(Evil())),
        ("optimizer.pt", zipped(("data.pkl", pickle.dumps(Evil())))),
    )
    assert not (tmp_path / "loaded").exists() and answer.problems


def test_uploaded_modules_are_not_imported(settings: DashboardSettings, tmp_path: Path) -> None:
    evil = f"open({str(tmp_path / 'imported')!r}, 'w')\n".encode()
    names = ("msgspec.py", "json.py", "sitecustomize.py", "stallwatch_dashboard.py", "numpy.py")
    answer = read(settings, *((name, evil) for name in names), ("good.log", LOG))
    assert not (tmp_path / "imported").exists()
    assert answer.found.primary is not None and answer.found.primary.rule == "cuda-oom"


def test_files_with_the_same_name_are_both_read(settings: DashboardSettings) -> None:
    answer = read(settings, ("rank0.log", b"step 1 loss 2.0\n"), ("rank0.log", LOG))
    assert answer.found.stats.files == 2 and answer.found.primary is not None


def test_disconnected_client_ends_the_reading(settings: DashboardSettings) -> None:
    class Gone(Exception):
        pass

    def leave(_read: int, _of: int) -> None:
        raise Gone

    with pytest.raises(Gone):
        read_uploads([("a.log", io.BytesIO(LOG))], settings, leave)
    assert not list(settings.home.iterdir()) or not list(settings.home.glob(".upload-*"))


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("rank0.log", "rank0.log"),
        ("a/b/rank1.log", "rank1.log"),
        ("..", "upload-3"),
        ("", "upload-3"),
        ("-", "upload-"),
        ("--help", "upload--help"),
        ("a\x00b\n.log", "a_b_.log"),
    ],
)
def test_file_names_are_sanitized(name: str, safe: str) -> None:
    assert safe_name(name, 3) == safe


def test_long_names_keep_their_extension(tmp_path: Path) -> None:
    with spooled([("界" * 400 + ".log", io.BytesIO(LOG))], tmp_path) as (folder, names):
        assert names[0].endswith(".log") and (folder / names[0]).read_bytes() == LOG


def test_oversized_upload_names_the_largest_file() -> None:
    mib = 1024 * 1024
    assert too_much([("a.log", mib)], 2) is None
    problem = too_much([("a.log", mib), ("b.log", 2 * mib)], 2)
    assert problem is not None and problem.path == "b.log" and "exceeds the limit of 2 MiB" in str(problem)


class TestGate:
    """Requests to Streamlit's upload address without a browser."""

    @pytest.fixture(autouse=True)
    def _asked(self, ask_app: Callable[..., Any]) -> None:
        self.ask_app = ask_app

    def ask(
        self, ledger: UploadSessions, session: str, size: int | None, method: str = "PUT", inner: int = 204
    ) -> int:
        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": inner, "headers": []})

        headers = [] if size is None else [(b"content-length", str(size).encode())]
        path = f"/base/_stcore/upload_file/{session}/f{size}"
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        gate = UploadGate(app, ledger, 100, lambda item: item != "gone")
        return int(self.ask_app(gate, scope)[0]["status"])

    def test_only_sessions_that_were_offered_it(self) -> None:
        ledger = UploadSessions()
        assert self.ask(ledger, "a", 10) == 403
        ledger.open_for("a")
        assert self.ask(ledger, "a", 10) == 204

    def test_all_together_may_keep_so_much(self) -> None:
        ledger = UploadSessions()
        for session in ("a", "b", "gone"):
            ledger.open_for(session)
        assert self.ask(ledger, "gone", 60) == 204
        assert self.ask(ledger, "a", 70) == 204  # the space of the ended session is free again
        assert self.ask(ledger, "b", 40) == 413
        assert self.ask(ledger, "a", 70, "DELETE") == 204
        assert self.ask(ledger, "b", 40) == 204

    def test_refused_upload_does_not_count(self) -> None:
        ledger = UploadSessions()
        ledger.open_for("a")
        assert self.ask(ledger, "a", 90, inner=413) == 413
        assert self.ask(ledger, "a", 80) == 204

    def test_length_is_required(self) -> None:
        ledger = UploadSessions()
        ledger.open_for("a")
        assert self.ask(ledger, "a", None) == 411


def test_limits_come_from_the_settings(settings: DashboardSettings) -> None:
    wide = replace(settings, max_members=3)
    answer = read(wide, ("few.zip", zipped(*((f"r{n}.log", LOG) for n in range(5)))))
    assert "more than 3 files" in problems_of(answer)
