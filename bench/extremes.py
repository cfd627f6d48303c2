"""Diagnose extreme inputs. Check that Stallwatch reads or rejects each input, and print time and memory.

    python bench/extremes.py [--scale 1.0]

For each input, the benchmark starts a process (``stallwatch diagnose --workers 1``) and prints its peak
memory. ``--scale 0.01`` makes all inputs a hundred times smaller.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

LINE = b"[2026-05-02 09:00:00,000] [INFO] step %d/90000000 loss 1.5 grad_norm 0.7 lr 1e-05\n"
END = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
GIB = 1 << 30

Make = Callable[[Path, float], None]


def one_line(path: Path, scale: float) -> None:
    """Write a 1 GB line, followed by the lines of a failure."""
    with path.open("wb") as out:
        for _ in range(max(1, int(1000 * scale))):
            out.write(b"x" * 1_000_000)
        out.write(b"\n" + END)


def one_bar(path: Path, scale: float) -> None:
    """Write a 1 GB line that consists of redraws of one progress bar."""
    drawn = b"".join(b"\r 10%%|#    | %d/90000000 [00:10<01:30,  1.0it/s]" % step for step in range(20_000))
    with path.open("wb") as out:
        for _ in range(max(1, int(GIB * scale) // len(drawn))):
            out.write(drawn)
        out.write(b"\n" + END)


def sparse(path: Path, scale: float) -> None:
    """Write a 10 GB hole followed by a log, as in a truncated log that its writer still has open."""
    with path.open("wb") as out:
        out.seek(int(10 * GIB * scale))
        for step in range(1000):
            out.write(LINE % step)
        out.write(END)


def nothing_but_hole(path: Path, scale: float) -> None:
    """Write a 10 GB hole."""
    with path.open("wb") as out:
        out.truncate(int(10 * GIB * scale))


def random_bytes(path: Path, scale: float) -> None:
    """Write 256 MB of random bytes."""
    rng = random.Random(0)
    with path.open("wb") as out:
        for _ in range(max(1, int(256 * scale))):
            out.write(rng.randbytes(1_000_000))


def noise_in_a_log(path: Path, scale: float) -> None:
    """Write a log in which 256 MB of random bytes, including line ends, follow the normal lines."""
    rng = random.Random(0)
    with path.open("wb") as out:
        for step in range(2000):
            out.write(LINE % step)
        for _ in range(max(1, int(256 * scale))):
            out.write(rng.randbytes(1_000_000).replace(b"\0", b" "))
        out.write(b"\n" + END)


def tiny_files(path: Path, scale: float) -> None:
    """Write 100,000 logs of two lines each, in folders of 1,000 logs. One log also contains a failure."""
    for number in range(int(100_000 * scale)):
        folder = path / f"node{number // 1000}"
        if number % 1000 == 0:
            folder.mkdir(parents=True)
        (folder / f"rank{number}.log").write_bytes(LINE % 1 + LINE % 2 + (END if number == 77 else b""))


def crowd_of_ranks(path: Path, scale: float) -> None:
    """Write a million lines from different ranks, and then 1,000 lines with impossible rank numbers."""
    with path.open("wb") as out:
        for rank in range(max(1, int(1_000_000 * scale))):
            out.write(b"[rank%d]: step %d/900 loss 1.5\n" % (rank, rank % 900))
        for rank in range(10**12, 10**12 + 1000):
            out.write(b"[rank%d]: step 1/900 loss 1.5\n" % rank)
        out.write(b"[rank3]: " + END)


def absurd_numbers(path: Path, scale: float) -> None:
    """Write steps, totals, and losses of up to 400 digits."""
    with path.open("wb") as out:
        for number in range(max(1, int(200_000 * scale))):
            out.write(b"step %d/%d loss 1e%d\n" % (10 ** (number % 300), 10**400, number))
            out.write(b"{'loss': %s, 'step': %d, 'epoch': 1e999}\n" % (b"9" * (number % 400), -(10**350)))
        out.write(END)


def _words(number: int) -> str:
    """Return a distinct word without digits for each number."""
    return f"{number * 2654435761 % 2**32:x}".translate(_LETTERS) + "q"


_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


def countless_exceptions(path: Path, scale: float) -> None:
    """Write a million tracebacks, each with a different exception and a different code location."""
    with path.open("wb") as out:
        for number in range(max(1, int(1_000_000 * scale))):
            word = _words(number)
            trace = f'Traceback (most recent call last):\n  File "/{word}.py", line {number}, in {word}\n'
            out.write(f"{trace}{word.title()}Error: {word[::-1]} is gone\n".encode())
        out.write(END)


def countless_templates(path: Path, scale: float) -> None:
    """Write ten million error lines, each with a different template."""
    with path.open("wb") as out:
        for number in range(max(1, int(10_000_000 * scale))):
            word = _words(number)
            out.write(f"ERROR {word} happened in {word[::-1]}\n".encode())
        out.write(END)


def stretched(size: int) -> Make:
    """Return a function that writes a log of `size` bytes.

    Such logs show whether memory grows with the size.
    """

    def make(path: Path, scale: float) -> None:
        block = b"".join(LINE % step for step in range(50_000))
        with path.open("wb") as out:
            for _ in range(max(1, int(size * scale) // len(block))):
                out.write(block)
            out.write(END)

    return make


EXTREMES: dict[str, Make] = {
    "a line of 1 GB": one_line,
    "a progress bar of 1 GB": one_bar,
    "a log behind a hole of 10 GB": sparse,
    "a hole of 10 GB": nothing_but_hole,
    "random bytes, 256 MB": random_bytes,
    "a log that turns into noise, 256 MB": noise_in_a_log,
    "100,000 tiny files": tiny_files,
    "a million ranks": crowd_of_ranks,
    "numbers of 400 digits": absurd_numbers,
    "a million exceptions": countless_exceptions,
    "ten million wordings": countless_templates,
    "a log of 100 MB": stretched(100_000_000),
    "a log of 3 GB": stretched(3_000_000_000),
}


#: The command prints its own peak memory, because the value of ``wait4`` includes the parent's memory.
_PROGRAM = """
import os, pathlib, re
from stallwatch.cli import main
try:
    main()
finally:
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]
        pathlib.Path(os.environ["PEAK_FILE"]).write_text(peak)
"""


def measured(path: Path) -> tuple[float, float, float, str]:
    """Return the elapsed seconds, processor seconds, peak memory in MiB, and first line of output."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.NamedTemporaryFile() as peak:
        command = [sys.executable, "-c", _PROGRAM, "diagnose", "--workers", "1", str(path)]
        environ = {**os.environ, "PEAK_FILE": peak.name}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ)
        _, _, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        out.seek(0)
        printed = next(
            (line.strip() for line in out.read(65536).decode(errors="replace").splitlines() if line.strip()),
            "",
        )
        kibibytes = peak.read().decode()
    unit = 1 if sys.platform == "darwin" else 1024
    mebibytes = int(kibibytes) / 1024 if kibibytes else used.ru_maxrss * unit / 1024**2
    return seconds, used.ru_utime + used.ru_stime, mebibytes, printed


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="factor for the size of each input")
@click.option("--only", default="", help="run only inputs whose names contain this text")
def main(scale: float, only: str) -> None:
    """Diagnose the extreme inputs and print a table."""
    click.echo(f"All sizes are multiplied by {scale}.\n")
    click.echo(
        "| input | seconds | processor seconds | peak MiB | first line of output |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for name, make in EXTREMES.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.log")
            make(path, scale)
            seconds, processor, peak, printed = measured(path)
        click.echo(f"| {name} | {seconds:.1f} | {processor:.1f} | {peak:.0f} | {printed[:60]} |")


if __name__ == "__main__":
    main()
