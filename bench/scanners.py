"""Readers that ``bench/scan.py`` compares. Each reader is a function that counts matching lines in files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.file_reading import Matching
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue

Run = Callable[[Sequence[Path]], int]


class Contender(NamedTuple):
    """A reader to compare."""

    name: str
    run: Run
    share: float = 1.0  #: share of the log to read; slow readers would take hours for the whole log
    counts: bool = True  #: True if the reader returns the number of matching lines
    same_as: Run | None = None  #: a reader that must return the same count


def plain_rules(catalogue: Catalogue, limit: int, store: DatabaseStore) -> tuple[Catalogue, list[str]]:
    """Return two values: the patterns that every tool can search for at full speed, and matching lines.

    Patterns with counted repeats are excluded, because they require automata that have thousands of states.
    For such patterns, ripgrep uses an automaton that is 500 times slower.
    """
    matcher_pages, faults, left = [], [], limit
    for page in catalogue.pages.values():
        patterns = [
            p for p in page.patterns if p.isascii() and not re.search(r"[{}`'^$]|\.\*|\(\?i|\\b|/", p)
        ]
        patterns = patterns[:left]
        if not patterns or page.requires or page.unless:
            continue
        left -= len(patterns)
        matcher_pages.append(msgspec.structs.replace(page, patterns=patterns))
        faults += [text for sample in page.fires for text in sample.split("\n")]
    rules = Catalogue.of(matcher_pages, store=store)
    matcher = Matcher(rules)
    hitting = {fault for fault in faults if matcher.match(lines_of(fault))}
    # Skip indented lines and statements, because a reader of tracebacks takes them for source code.
    return rules, sorted(f for f in hitting if f[0].isalnum() and "raise " not in f and "stallwatch" not in f)


def patterns_of(catalogue: Catalogue) -> list[str]:
    """Return the patterns without the names of their groups, because a name can occur in several patterns."""
    return [
        re.sub(r"\(\?P<\w+>", "(?:", pattern)
        for page in catalogue.pages.values()
        for pattern in page.patterns
    ]


def contenders(catalogue: Catalogue, folder: Path, workers: int) -> list[Contender]:
    """Return all readers that are installed on this machine."""
    patterns = patterns_of(catalogue)
    matcher = Matcher(catalogue)
    pattern_file = folder / "patterns"
    pattern_file.write_text("\n".join(patterns) + "\n")
    alternation = re.compile("|".join(patterns).encode())

    def signatures(files: Sequence[Path]) -> int:
        """Return the number of matching lines. Each match is extracted with its line, captures, and time."""
        lines, segments = set(), Counter[tuple[str, float | None]]()
        for match in Matching(files, matcher).matches():
            lines.add((match.line.source, match.line.number))
            segments[match.rule, match.bucket(60.0)] += 1
        return len(lines)

    def diagnose(files: Sequence[Path], parallel: Parallel | None = None) -> int:
        names = [str(path) for path in files]
        return sum(
            finding.count
            for finding in diagnose_paths(names, Options(catalogue, parallel=parallel))[0].findings
            if finding.rule in catalogue.pages and catalogue.pages[finding.rule].patterns
        )

    def fired(files: Sequence[Path]) -> int:
        return sum(1 for _ in Matching(files, matcher).matches())

    def python(files: Sequence[Path]) -> int:
        return sum(1 for path in files for line in path.open("rb") if alternation.search(line))

    found = [
        Contender("cat (upper limit)", lambda files: _bytes(["cat", *map(str, files)]), counts=False),
        Contender("stallwatch matches", signatures),
        Contender("stallwatch diagnose", lambda files: diagnose(files), counts=False, same_as=fired),
        Contender(
            f"stallwatch diagnose with {workers} processes",
            lambda files: diagnose(files, Parallel(workers=workers, worth=0, may_fork=True)),
            counts=False,
        ),
        Contender("Python's re", python, share=0.02),
    ]
    if shutil.which("rg"):
        found.append(Contender("ripgrep --json", lambda files: _ripgrep(pattern_file, files)))
    if shutil.which("mtail"):
        for number, share in ((20, 0.1), (len(patterns), 0.01)):
            name = f"mtail with {number} patterns"
            found.append(Contender(name, _mtail(folder, patterns[:number]), share, number == len(patterns)))
    try:
        import drain3  # noqa: F401
    except ImportError:
        pass
    else:
        found.append(Contender("Drain3 with masking", _drain, share=0.02, counts=False))
    return found


def _bytes(command: list[str]) -> int:
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode


def _ripgrep(pattern_file: Path, files: Sequence[Path]) -> int:
    zipped = ["-z"] if any(path.suffix in (".gz", ".zst") for path in files) else []
    done = subprocess.run(
        ["rg", "-a", "-j1", "--json", "--no-unicode", *zipped, "-f", str(pattern_file), *map(str, files)],
        capture_output=True,
        check=False,
    )
    if done.returncode > 1:  # exit code 1 means that no line matches
        raise subprocess.CalledProcessError(done.returncode, "rg", stderr=done.stderr)
    summary = json.loads(done.stdout.splitlines()[-1])
    return int(summary["data"]["stats"]["matched_lines"])


def _mtail(folder: Path, patterns: Sequence[str]) -> Run:
    program = folder / f"rules{len(patterns)}.mtail"
    body = " {\n  hits++\n  stop\n}\n"
    program.write_text("counter hits\n" + "".join(f"/{pattern}/{body}" for pattern in patterns))

    def run(files: Sequence[Path]) -> int:
        with tempfile.TemporaryDirectory() as logs:
            command = [
                "mtail",
                "--one_shot",
                "--logtostderr=false",
                f"--log_dir={logs}",
                "--progs",
                str(program),
            ]
            command += [f"--logs={path}" for path in files]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        values = re.findall(r'"Value":\s*(\d+)', done.stdout) or re.findall(r"\bhits\S*\s+(\d+)", done.stdout)
        return int(values[-1]) if values else -1

    return run


def _drain(files: Sequence[Path]) -> int:
    from drain3 import TemplateMiner
    from drain3.masking import MaskingInstruction
    from drain3.template_miner_config import TemplateMinerConfig

    config = TemplateMinerConfig()
    config.masking_instructions = [
        MaskingInstruction(r"0x[0-9a-fA-F]+", "HEX"),
        MaskingInstruction(r"\d+(?:\.\d+)?", "NUM"),
    ]
    miner = TemplateMiner(config=config)
    for path in files:
        for line in path.open(errors="replace"):
            miner.add_log_message(line)
    return len(miner.drain.clusters)
