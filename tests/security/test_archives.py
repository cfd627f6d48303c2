"""Attacks by archives and compressed files: by their expanded size, member count and names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from msgspec import structs

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads.reading import limits_of
from stallwatch_logs.archives import TarFile
from stallwatch_logs.inputs import CHUNK, InputProblem, Limits, TimeIsUp
from stallwatch_logs.log_files import expand

MIB = 1024 * 1024
LINE = b"step 1/900 loss 1.5\n"
# The default limits, except for the size at which they begin: a test need not expand a gigabyte.
SOON = Limits(ratio_from=MIB)


def read(path: Path, limits: Limits = SOON) -> tuple[dict[str, int], list[InputProblem]]:
    """The bytes that each log has, and the problems."""
    files, problems = expand([path], limits=limits)
    sizes = {file.name: sum(map(len, file.chunks(problems))) for file in files}
    return {name.removeprefix(str(path)): size for name, size in sizes.items()}, problems


def said(problems: list[InputProblem]) -> str:
    return "\n".join(map(str, problems))


def zipped(path: Path, members: dict[str, bytes], comment: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.comment = comment
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("bz2", bz2.compress),
        ("zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_bomb_of_one_repeated_line_is_read_up_to_a_ratio(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    """A few megabytes that expand to gigabytes are read up to 200 times their size, with a note."""
    packed = pack(LINE * (8 * MIB // len(LINE)))
    path = tmp_path / f"train.log.{ending}"
    path.write_bytes(packed)
    sizes, problems = read(path)
    assert sizes[""] <= max(MIB, 200 * len(packed)) + CHUNK
    assert "expands to more than 200 times its size" in said(problems)
    assert "[archives] max_ratio" in said(problems)


def test_members_of_a_zip_share_one_expansion_limit(tmp_path: Path) -> None:
    """Members that are harmless one by one are counted together."""
    path = zipped(tmp_path / "logs.zip", {f"rank{n}.log": LINE * 50_000 for n in range(40)})
    sizes, problems = read(path)
    assert sum(sizes.values()) <= max(MIB, 200 * path.stat().st_size) + 40 * CHUNK
    assert "times its size" in said(problems)


def test_skipped_tar_members_count_for_the_expansion_limit(tmp_path: Path) -> None:
    """Data that must be expanded to reach a log counts, even if it was not requested."""
    junk = tarfile.TarInfo("weights.bin")
    path = tarred(tmp_path / "logs.tar.gz", (junk, bytes(8 * MIB)), (tarfile.TarInfo("rank0.log"), LINE))
    sizes, problems = read(path)
    assert sizes == {}
    assert "times its size" in said(problems)


def test_holes_of_a_sparse_tar_count_for_the_expansion_limit(tmp_path: Path) -> None:
    """A sparse file of two kilobytes that claims 8 GiB expands, though nothing is compressed."""
    info = tarfile.TarInfo("rank0.log")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % 0, b"%011o\0" % 512  # where it has data
    block[483:495] = b"%011o\0" % (8 * 1024 * MIB - 1)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path = tmp_path / "logs.tar"
    path.write_bytes(bytes(block) + (LINE * 26)[:512] + bytes(1024))
    sizes, problems = read(path)
    assert sizes["!rank0.log"] <= MIB + 2 * CHUNK
    assert "expands to more than 200 times its size" in said(problems)
    uploads = limits_of(DashboardSettings())
    assert uploads.ratio_from == 64 * MIB
    sizes, problems = read(path, structs.replace(uploads, ratio_from=MIB))
    assert sizes["!rank0.log"] <= MIB + 2 * CHUNK
    assert "raise [dashboard] max_ratio" in said(problems)


def test_uncompressed_tar_beyond_the_size_limit_is_read_whole(tmp_path: Path) -> None:
    """Logs that are not compressed are no expansion, whatever their size, nor are they if read again."""
    path = tmp_path / "logs.tar"
    with tarfile.open(path, "w") as archive:
        for rank in range(3):
            info = tarfile.TarInfo(f"rank{rank}.log")
            info.size = MIB
            archive.addfile(info, io.BytesIO((LINE * MIB)[:MIB]))
    files, problems = expand([path], limits=Limits(expanded=MIB, ratio=2, ratio_from=MIB))
    for _ in range(3):
        assert sum(len(chunk) for file in files for chunk in file.chunks(problems)) == 3 * MIB
    assert problems == []


def test_huge_sparse_map_of_a_tar_is_refused(tmp_path: Path) -> None:
    """The list of a sparse file's holes may claim any length: it may take a megabyte."""
    info = tarfile.TarInfo("rank0.log")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # more follows
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    more = b"%011o\0%011o\0" % (0, 1) * 21 + b"\1"
    path = tmp_path / "logs.tar.gz"
    path.write_bytes(gzip.compress(bytes(block) + more.ljust(512, b"\0") * 4096))
    sizes, problems = read(path, Limits())
    assert sizes == {}
    assert "a header claims to be larger than 1 MiB" in said(problems)


def test_tar_with_a_chain_of_long_names_is_reported_as_broken(tmp_path: Path) -> None:
    """A chain of headers, which tarfile follows by recursion, ends the list."""
    path = tmp_path / "logs.tar"
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 8
    path.write_bytes((name.tobuf(tarfile.GNU_FORMAT) + b"name.log".ljust(512, b"\0")) * 1020)
    sizes, problems = read(path)
    assert sizes == {}
    assert "the tar archive is corrupt" in said(problems)


def test_zip_with_a_huge_directory_is_refused(tmp_path: Path) -> None:
    """The list of a zip archive's files is refused before it is read if it takes more than 16 MiB."""
    path = zipped(tmp_path / "logs.zip", {f"rank{n}.log": LINE for n in range(300)}, comment=b"x" * 65_000)
    sizes, problems = read(path)
    assert sizes == {}
    assert "the archive's list of files is larger than 16 MiB" in said(problems)


def test_tar_with_countless_folders_is_refused(tmp_path: Path) -> None:
    """Folders and links, which are no files, are counted as well."""
    folders = [(tarfile.TarInfo(f"d{n}"), b"") for n in range(500)]
    for info, _ in folders:
        info.type = tarfile.DIRTYPE
    path = tarred(tmp_path / "logs.tar.gz", *folders, (tarfile.TarInfo("rank0.log"), LINE))
    sizes, problems = read(path, Limits(members=10))
    assert sizes == {}
    assert "the archive contains more than 200 files, folders, and links" in said(problems)


def test_tar_with_too_many_global_keywords_is_refused(tmp_path: Path) -> None:
    """Global headers, each of which adds to those before, may hold a thousand keywords."""
    path = tmp_path / "logs.tar"
    with path.open("wb") as out:
        for number in range(4):
            words = {f"key{number}-{n}": "x" for n in range(500)}
            out.write(tarfile.TarInfo.create_pax_global_header(words))
        info = tarfile.TarInfo("rank0.log")
        info.size = len(LINE)
        out.write(info.tobuf() + LINE.ljust(512, b"\0") + bytes(1024))
    sizes, problems = read(path)
    assert sizes == {}
    assert "too many keywords" in said(problems)


@pytest.mark.parametrize("inner", ["logs.zip", "logs.tar.gz", "attempt-1.tar"])
@pytest.mark.parametrize("outer", ["zip", "tar"])
def test_nested_archive_is_reported_and_not_opened(tmp_path: Path, outer: str, inner: str) -> None:
    """Nesting multiplies: an inner archive is not opened, but named with the reason, beside the logs."""
    content = zipped(tmp_path / "inner", {"rank1.log": LINE}).read_bytes()
    members = {"rank0.log": LINE, inner: content}
    path = tmp_path / f"all.{outer}"
    if outer == "zip":
        zipped(path, members)
    else:
        tarred(path, *((tarfile.TarInfo(name), data) for name, data in members.items()))
    sizes, problems = read(path)
    assert sizes == {"!rank0.log": len(LINE)}
    if inner.startswith("logs"):  # a name of logs
        (problem,) = problems
        assert problem.path == f"{path}!{inner}"
        assert "archive inside an archive" in str(problem) and "unpack it" in str(problem)


def test_folder_with_only_archives_is_reported(tmp_path: Path) -> None:
    """A folder with logs packed under other names is reported."""
    zipped(tmp_path / "data.zip", {"rank0.log": LINE})
    sizes, problems = read(tmp_path)
    assert sizes == {}
    assert "data.zip; specify the paths of the archives" in said(problems)


@pytest.mark.parametrize("name", ["../../escaped/rank0.log", "/escaped/rank0.log", "..\\escaped\\rank0.log"])
def test_member_path_outside_the_archive_is_only_a_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is extracted: the path of a member is a displayed name, not a place on the disk."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    before = sorted(tmp_path.rglob("*"))
    path = zipped(tmp_path / "logs.zip", {name: LINE})
    path_tar = tarred(tmp_path / "logs.tar.gz", (tarfile.TarInfo(name), LINE))
    assert list(read(path)[0].values()) == list(read(path_tar)[0].values()) == [len(LINE)]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path, path_tar])


def test_links_and_devices_in_a_tar_are_skipped(tmp_path: Path) -> None:
    """A link in an archive leads nowhere: neither it nor a device is opened."""
    secret = tmp_path / "secret.log"
    secret.write_bytes(b"token\n")
    members = []
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
        info = tarfile.TarInfo(f"rank{number}.log")
        info.type, info.linkname = kind, str(secret)
        members.append((info, b""))
    path = tarred(tmp_path / "logs.tar.gz", *members, (tarfile.TarInfo("rank9.log"), LINE))
    assert read(path) == ({"!rank9.log": len(LINE)}, [])


def test_listing_of_an_archive_ends_at_the_time_limit(tmp_path: Path) -> None:
    """The list of a tar archive is only found by expanding it: the time for reading ends that as well."""
    path = tarred(tmp_path / "logs.tar.gz", (tarfile.TarInfo("rank0.log"), LINE))
    found, error = TarFile(lambda: path.open("rb"), "gzip", Limits(until=time.monotonic())).members()
    assert found == []
    assert isinstance(error, TimeIsUp)
