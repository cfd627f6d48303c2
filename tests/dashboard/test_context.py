"""Lines around a given line of an upload."""

from __future__ import annotations

import gzip
import io
import zipfile

from stallwatch_dashboard.uploads.context import lines_around

TEXT = "".join(f"line {number}\n" for number in range(1, 101)).encode()


def test_lines_around_a_place_are_shown_with_a_mark() -> None:
    shown = lines_around(
        [("a.log", io.BytesIO(b"x\n")), ("b.log", io.BytesIO(TEXT))], "b.log", 50, before=2, after=1
    )
    assert [line.split() for line in shown.splitlines()] == [
        ["48", "line", "48"],
        ["49", "line", "49"],
        ["▶", "50", "line", "50"],
        ["51", "line", "51"],
    ]


def test_lines_at_the_edges_of_a_file_are_shown() -> None:
    assert lines_around([("a", io.BytesIO(TEXT))], "a", 1, after=0).count("\n") == 0
    assert lines_around([("a", io.BytesIO(TEXT + b"no end"))], "a", 101, before=0) == "▶     101  no end"


def test_lines_in_archives_are_found_by_their_name() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("logs/rank0.log", TEXT)
    from stallwatch_logs.log_files import from_stream

    name = from_stream("logs.zip", packed)[0][0].name
    assert "▶      50  line 50" in lines_around([("logs.zip", packed)], name, 50)
    zipped = io.BytesIO(gzip.compress(TEXT))
    name = from_stream("a.log.gz", zipped)[0][0].name
    assert "▶      50  line 50" in lines_around([("a.log.gz", zipped)], name, 50)


def test_secrets_are_masked_and_long_lines_truncated() -> None:
    token = "hf_" + "a1B2c3D4e5" * 3 + "f6G7"
    text = f"login {token}\n{'x' * 5000}\n".encode()
    shown = lines_around([("a", io.BytesIO(text))], "a", 1)
    assert token not in shown and len(shown) < 1000


def test_unknown_place_shows_nothing() -> None:
    assert lines_around([("a", io.BytesIO(TEXT))], "other", 1) == ""
    assert lines_around([("a", io.BytesIO(b""))], "a", 1) == ""


def test_place_deep_in_a_log_is_found_by_its_line_number() -> None:
    log = b"".join(b"step %d loss 1.0\n" % n for n in range(1, 200_001))
    drawn = lines_around([("a.log", io.BytesIO(log))], "a.log", 150_000, before=1, after=1)
    assert [line.split()[-4:] for line in drawn.splitlines()] == [
        ["step", str(n), "loss", "1.0"] for n in (149_999, 150_000, 150_001)
    ]
