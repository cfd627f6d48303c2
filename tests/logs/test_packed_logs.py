"""Logs in compressed files and archives, complete and broken, and the limits on their unpacked size."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from packing import TEXT, make_zip, read, tar_bytes, write

from stallwatch_logs.inputs import CHUNK, Limits
from stallwatch_logs.log_files import expand

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- compressed files


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("name", ["train.log", "misnamed.log"])
def test_compression_is_detected_by_content(ending: str, name: str) -> None:
    path = name if name == "misnamed.log" else f"{name}.{ending}"
    write(path, COMPRESSORS[ending](TEXT))
    assert read(path) == ({path: TEXT}, [])


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_concatenated_members_of_a_compressed_file_are_read(ending: str) -> None:
    pack = COMPRESSORS[ending]
    write(f"a.{ending}", pack(TEXT[:100_000]) + pack(b"") + pack(TEXT[100_000:]))
    assert read(f"a.{ending}")[0] == {f"a.{ending}": TEXT}


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_truncated_compressed_file_is_read_up_to_its_end(ending: str) -> None:
    data = COMPRESSORS[ending](TEXT)
    write(f"a.{ending}", data[: len(data) * 3 // 4])
    found, problems = read(f"a.{ending}")
    assert TEXT.startswith(found[f"a.{ending}"])
    if ending != "bz2":  # bz2 blocks are larger than this text
        assert len(found[f"a.{ending}"]) > len(TEXT) // 3
    assert len(problems) == 1 and "is truncated" in problems[0].message


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_corrupt_compressed_file_is_read_up_to_the_error(ending: str) -> None:
    data = bytearray(COMPRESSORS[ending](TEXT))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    write(f"a.{ending}", bytes(data))
    found, problems = read(f"a.{ending}")
    good = len(TEXT) // 4
    if ending not in ("bz2", "xz"):  # the blocks of both are larger than this text
        assert found[f"a.{ending}"][:good] == TEXT[:good]
    assert len(problems) == 1 and "is corrupt" in problems[0].message
    assert problems[0].remedy == "copy or compress the file again"


def test_corrupt_gzip_yields_every_byte_before_the_error() -> None:
    packer = zlib.compressobj(wbits=31)
    data = packer.compress(TEXT[:300_000]) + packer.flush(zlib.Z_FULL_FLUSH)
    write("a.gz", data + b"\xff" * 5000)  # an invalid type of block
    found, problems = read("a.gz")
    assert found == {"a.gz": TEXT[:300_000]}
    assert "is corrupt" in problems[0].message


def test_compressed_binary_file_is_refused() -> None:
    write("model.gz", gzip.compress(b"\x80\x04pickle" + bytes(range(256)) * 100))
    assert [problem.message for problem in read("model.gz")[1]] == ["this is a binary file, not a log"]


# ---- archives

MEMBERS = {
    "logs/rank10.log": b"ten\n",
    "logs/rank9.log": TEXT,
    "logs/rank1.log.gz": gzip.compress(TEXT),
    "logs/model.bin": b"x" * 100,
    "logs/empty.log": b"",
    "../../etc/evil.log": b"evil\n",
}


def test_logs_in_a_zip_are_read_in_natural_order() -> None:
    make_zip("all.zip", MEMBERS)
    found, problems = read("all.zip")
    assert problems == []
    assert list(found) == [  # in natural order, and only the logs
        "all.zip!../../etc/evil.log",
        "all.zip!logs/rank1.log.gz",
        "all.zip!logs/rank9.log",
        "all.zip!logs/rank10.log",
    ]
    assert found["all.zip!logs/rank1.log.gz"] == found["all.zip!logs/rank9.log"] == TEXT
    assert [path.name for path in Path().iterdir()] == ["all.zip"]  # nothing was extracted


@pytest.mark.parametrize("ending", ["", *COMPRESSORS])
def test_logs_in_a_tar_are_read(ending: str) -> None:
    data = tar_bytes(MEMBERS)
    path = f"all.tar.{ending}" if ending else "all.tar"
    write(path, COMPRESSORS[ending](data) if ending else data)
    found, problems = read(path)
    assert problems == []
    assert found == {
        f"{path}!logs/rank10.log": b"ten\n",
        f"{path}!logs/rank9.log": TEXT,
        f"{path}!logs/rank1.log.gz": TEXT,
        f"{path}!../../etc/evil.log": b"evil\n",
    }
    assert [entry.name for entry in Path().iterdir()] == [path]


def test_tar_members_can_be_read_repeatedly_in_any_order() -> None:
    write("all.tar.gz", tar_bytes({"a.log": b"a\n", "b.log": b"b\n", "c.log": b"c\n"}, "w:gz"))
    files, problems = expand(["all.tar.gz"])
    for index in (2, 0, 0, 1, 2):
        assert b"".join(files[index].chunks(problems)) == files[index].name[-5:-4].encode() + b"\n"
    assert problems == []


def test_rank_of_a_member_comes_from_its_name() -> None:
    make_zip("all.zip", {"rank3.log": b"x\n", "attempt_0/2/stdout.log": b"x\n"})
    assert {file.name: file.rank for file in expand(["all.zip"])[0]} == {
        "all.zip!rank3.log": 3,
        "all.zip!attempt_0/2/stdout.log": 2,
    }


def test_nested_archive_is_reported() -> None:
    make_zip("all.zip", {"logs.tar": tar_bytes({"a.log": b"x"}), "b.log": b"b\n"})
    found, problems = read("all.zip")
    assert found["all.zip!b.log"] == b"b\n"
    assert [(p.path, p.message) for p in problems] == [
        ("all.zip!logs.tar", "the file is a tar archive inside an archive and was not read")
    ]


def test_archive_without_logs_is_reported() -> None:
    make_zip("all.zip", {"train.py": b"x", "model.bin": b"x"})
    assert [problem.message for problem in read("all.zip")[1]] == ["the archive contains no log files"]


def test_corrupt_archives_are_reported() -> None:
    make_zip("a.zip", {"rank0.log": TEXT})
    data = Path("a.zip").read_bytes()
    write("cut.zip", data[: len(data) // 2])
    write("bad.zip", data[:5000] + b"\xff" * 1000 + data[6000:])
    assert "is corrupt" in read("cut.zip")[1][0].message
    assert [problem.path for problem in read("bad.zip")[1]] == ["bad.zip!rank0.log"]
    tar = tar_bytes({"rank0.log": TEXT, "rank1.log": TEXT}, "w:gz")
    write("cut.tar.gz", tar[: len(tar) * 3 // 4])
    found, problems = read("cut.tar.gz")
    assert found["cut.tar.gz!rank0.log"] == TEXT
    assert TEXT.startswith(found["cut.tar.gz!rank1.log"]) and found["cut.tar.gz!rank1.log"]
    assert [problem.path for problem in problems] == ["cut.tar.gz"]


def test_encrypted_member_is_reported() -> None:
    make_zip("a.zip", {"rank0.log": b"x\n"})
    data = bytearray(Path("a.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    write("a.zip", bytes(data))
    (problem,) = read("a.zip")[1]
    assert "encrypted" in problem.message and problem.path == "a.zip!rank0.log"


# ---- limits


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_decompression_bomb_is_stopped_by_its_ratio(ending: str) -> None:
    packed = COMPRESSORS[ending](b"a" * 8_000_000)
    write(f"bomb.{ending}", packed)
    found, problems = read(f"bomb.{ending}", limits=Limits(ratio=100, ratio_from=1_000_000))
    assert len(found[f"bomb.{ending}"]) <= max(1_000_000, 100 * len(packed)) + CHUNK
    assert len(problems) == 1 and "100 times its size" in problems[0].message


def test_decompression_limit_of_a_zip_covers_all_members() -> None:
    make_zip("bomb.zip", {f"rank{n}.log": b"a\n" * 400_000 for n in range(20)})
    found, problems = read("bomb.zip", limits=Limits(ratio=100, ratio_from=1_000_000))
    assert sum(map(len, found.values())) < 4_000_000
    assert problems and all("times its size" in problem.message for problem in problems)


def test_unpacked_size_is_limited() -> None:
    write("a.gz", gzip.compress(TEXT))
    found, problems = read("a.gz", limits=Limits(expanded=300_000))
    assert 0 < len(found["a.gz"]) <= 300_000 < len(TEXT)
    assert "expands to more than" in problems[0].message


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_number_of_members_is_limited(kind: str) -> None:
    members = {f"rank{n}.log": b"x\n" for n in range(20)}
    if kind == "zip":
        make_zip("a.zip", members)
    else:
        write("a.tar", tar_bytes(members))
    found, problems = read(f"a.{kind}", limits=Limits(members=5))
    assert len(found) == 5
    assert [problem.message for problem in problems] == [
        "the archive contains more than 5 files; the rest was not read"
    ]


def test_tar_header_cannot_reserve_memory() -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    write("a.tar", header.tobuf(tarfile.GNU_FORMAT) + bytes(100_000))
    (problem,) = read("a.tar")[1][:1]
    assert "larger than 1 MiB" in problem.message
