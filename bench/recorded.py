"""Read recordings of healthy runs as timed lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scoreboard import OWN, cases

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract

_CHAT = "deepspeedai+DeepSpeedExamples__applications+DeepSpeed-Chat+training+step2_dpo_finetuning"
#: Logs that contain several runs, and the words that begin each later run. The time between two runs
#: is not a stall. The same applies to a gap in a log: DeepSpeed-Chat's log does not contain steps 460 to
#: 1730. The 1,290 steps across this gap took 894 seconds and were as fast as the steps around it.
SEVERAL_RUNS = {
    "Tianshi-Xu+assignment5-alignment__rl_grpo_clip_offpolicy.log": "rollout batch 0 generated",
    f"{_CHAT}+training_log_output+opt-350M_globalBatchSize-32.log": "step=1740,",
}
_LOGS = (".log", ".txt", ".out", ".err")


def healthy_recordings(root: Path) -> list[Path]:
    """Return the logs of healthy runs in the project's corpus, and in the development corpus if it exists."""
    more = root.parent / "shared" / "corpus"
    folders = [*OWN, *([more] if more.is_dir() else [])]
    found = [
        content
        for folder in folders
        for _, label, content in cases(folder)
        if isinstance(content, Path) and (label == "healthy" or label.startswith("benign"))
    ]
    return sorted({*found})


def timed_runs(path: Path) -> list[list[tuple[float, Sample | None, Line]]]:
    """Return the timed lines of each run in the log."""
    runs: list[list[tuple[float, Sample | None, Line]]] = [[]]
    words = SEVERAL_RUNS.get(path.name)
    for timed in timed_lines(path):
        if words is not None and words in timed[2].text:
            moment = [each for each in runs[-1] if each[0] == timed[0]]  # lines can have the same time
            runs[-1] = runs[-1][: len(runs[-1]) - len(moment)]
            runs.append(moment)
        runs[-1].append(timed)
    return [run for run in runs if run]


def timed_lines(path: Path) -> Iterator[tuple[float, Sample | None, Line]]:
    """Yield the lines that have a time, in chronological order, together with their samples."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in _LOGS)
    lines = [line for file in files for line in _lines(file) if line.time is not None]
    for line in sorted(lines, key=lambda line: line.time or 0.0):
        yield line.time or 0.0, extract(line), line


def _lines(path: Path) -> list[Line]:
    reader = LineReader(str(path))
    return reader.feed(path.read_bytes()) + reader.finish()
