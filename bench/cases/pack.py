"""Pack new runs into the cases and rewrite ``cases.jsonl``: ``python bench/cases/pack.py [REAL] [HANGS]``.

REAL is the output folder of run_real.py, and HANGS is the output folder of record.py. For generated cases,
the program only writes the rows of ``cases.jsonl``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE / "programs"), str(ROOT / "tests" / "repro")]

import generate  # noqa: E402
from scrub import Scrubber, scrubber  # noqa: E402
from table import FAILING, FINE  # noqa: E402

_WORK = re.compile(r"/tmp/hang-\w+/(?:work|home/runs/[^/\"\s]+)")


def clean() -> Scrubber:
    """Return a scrubber from tests/repro that removes local details, including the benchmark's folders."""
    base = scrubber(HERE / "programs", ROOT)
    return Scrubber({**dict(base._folders), str(ROOT / "bench" / "live_programs"): "/opt/train"}, _host(), ())


def _host() -> str:
    import socket

    return socket.gethostname()


def pack_hang(folder: Path, scrub: Scrubber) -> None:
    """Pack the folder of a run as a reproducible archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name == "case.json":
                continue
            text = scrub.text(path.read_text(errors="surrogateescape"))
            text = _WORK.sub("/opt/train", text).replace(f"{Path.home()}/", "/home/me/")
            if str(ROOT) in text:
                raise SystemExit(f"{path} still contains {ROOT}")
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            content = text.encode("utf-8", "surrogateescape")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    (HERE / "recordings").mkdir(exist_ok=True)
    (HERE / "recordings" / f"{folder.name}.tar.gz").write_bytes(gzip.compress(out.getvalue(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--hangs", type=Path)
    options = parser.parse_args()
    known = {}
    index = HERE / "cases.jsonl"
    if index.exists():
        known = {row["id"]: row for row in map(json.loads, index.read_text().splitlines())}
    by_name = {run.scenario.replace("_", "-"): run for run in [*FAILING, *FINE]}
    rows = {name: row for name, row in known.items() if row["kind"] != "generated"}
    for path in sorted(options.real.glob("*.json")) if options.real else ():
        row = json.loads(path.read_text())
        run = by_name[row["id"].partition("-")[2].rpartition("-")[0]]
        content = path.with_suffix(".log.gz").read_bytes()
        text = gzip.decompress(content).decode("utf-8", "replace")
        if run.cause and run.sign and not any(part in text for part in run.sign.split("|")):
            print(f"{row['id']}: skipped, because its log does not name the cause")
            continue
        (HERE / "real").mkdir(exist_ok=True)
        (HERE / "real" / path.with_suffix(".log.gz").name).write_bytes(content)
        rows[row["id"]] = _row(
            row["id"],
            run.kind,
            run.cause,
            run.sign,
            row["exit_code"],
            run.rank,
            row["ranks"],
            content,
            row["command"],
        )
    scrub = clean()
    for path in sorted(options.hangs.glob("*/case.json")) if options.hangs else ():
        row = json.loads(path.read_text())
        pack_hang(path.parent, scrub)
        content = (HERE / "recordings" / f"{row['id']}.tar.gz").read_bytes()
        ranks = max(len([*(path.parent / "ranks").glob("*")]), 1)
        command = f"{row['form']} {row['program']}".replace(str(ROOT) + "/", "")
        rows[row["id"]] = _row(
            row["id"], "real run", "stall", row["place"], None, row["rank"], ranks, content, command
        )
    for name, log in generate.logs().items():
        rows[name] = _row(
            name,
            "generated",
            log.cause,
            log.sign,
            log.exit_code,
            log.rank,
            log.ranks,
            log.text.encode(),
            log.source,
        )
    index.write_text("".join(json.dumps(rows[name], ensure_ascii=False) + "\n" for name in sorted(rows)))
    print(len(rows), "cases")


def _row(
    name: str,
    kind: str,
    cause: str,
    sign: str,
    code: int | None,
    rank: int | None,
    ranks: int,
    content: bytes,
    source: str,
) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    return {
        "id": name,
        "kind": kind,
        "cause": cause,
        "sign": sign,
        "exit_code": code,
        "rank": rank,
        "ranks": ranks,
        "sha256": digest,
        "source": source,
    }


if __name__ == "__main__":
    main()
