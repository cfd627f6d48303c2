"""Logs of a run over hosts in one folder: the report names the first rank and host in few lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
import folders_made as made

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.terminal import print_report

HOSTS, ODD = 16, 9
RANKS = range(ODD * made.PER_HOST, (ODD + 1) * made.PER_HOST)
RANK = RANKS[3]

Diagnose = Callable[[Path], Diagnosis]


@pytest.fixture(scope="module")
def diagnose(catalogue: Catalogue) -> Diagnose:
    return lambda path: diagnose_paths([str(path)], Options(catalogue))[0]


def named(diagnosis: Diagnosis) -> tuple[str, int | None, str]:
    assert diagnosis.primary is not None
    return diagnosis.primary.rule, diagnosis.primary.rank, diagnosis.primary.host


def in_words(diagnosis: Diagnosis) -> list[str]:
    return [render(line) for line in diagnosis.digest]


def test_rank_without_memory_is_named_with_its_host(tmp_path: Path, diagnose: Diagnose) -> None:
    found = diagnose(made.folder_of(tmp_path, {RANK: made.out_of_memory}))
    assert named(found) == ("cuda-oom", RANK, f"n{ODD}")
    assert in_words(found) == [
        f"rank {RANK} on n{ODD}: The GPU ran out of memory",
        "127 ranks on 16 hosts: A collective timed out because a rank did not join it, 10 min later",
    ]
    assert [(host.host, len(host.ranks)) for host in found.hosts] == [
        (f"n{host}", made.PER_HOST) for host in range(HOSTS)
    ]


@pytest.mark.parametrize("left_out", [False, True], ids=["silent", "without a log"])
def test_dead_host_is_named(tmp_path: Path, diagnose: Diagnose, *, left_out: bool) -> None:
    ends = dict.fromkeys(RANKS, made.nothing)
    found = diagnose(made.folder_of(tmp_path, ends, left_out=[ODD] if left_out else []))
    assert named(found) == ("nccl-collective-timeout", RANKS[0], f"n{ODD}")
    assert found.primary is not None
    assert render(found.primary.title).endswith(f": ranks 72–79 on n{ODD}")
    assert render(found.primary.fixes[0]).startswith(
        "n9 (its ranks" if left_out else "All ranks on n9 (72–79)"
    )
    assert in_words(found)[0] == f"ranks 72–79 on n{ODD}: held up the other ranks"
    assert in_words(found)[1].startswith("120 ranks on 15 hosts: ")
    assert [host.host for host in found.hosts if not host.logged] == ([f"n{ODD}"] if left_out else [])


@pytest.mark.parametrize(("hosts", "named_hosts"), [(2, "ranks 8–15 on n1"), (3, "ranks 8–15 on n1")])
def test_dead_host_of_few_is_named(tmp_path: Path, diagnose: Diagnose, hosts: int, named_hosts: str) -> None:
    found = diagnose(made.folder_of(tmp_path, dict.fromkeys(range(8, 16), made.nothing), hosts=hosts))
    assert found.primary is not None
    assert render(found.primary.title).endswith(f": {named_hosts}")
    assert render(found.primary.fixes[0]).startswith("All ranks on n1 (8–15)")
    assert found.primary.rank == 8


def test_dead_host_is_shown_by_the_rank_that_printed_until_the_end(
    tmp_path: Path, diagnose: Diagnose
) -> None:
    steps = dict.fromkeys(range(8, 15), 2)
    found = diagnose(
        made.folder_of(tmp_path, dict.fromkeys(range(8, 16), made.nothing), hosts=2, steps=steps)
    )
    assert found.primary is not None
    assert (found.primary.rank, found.primary.file) == (15, str(tmp_path / "n1/rank_15.log"))


@pytest.mark.parametrize(("hosts", "silent"), [(2, range(4, 12)), (2, range(8, 14)), (3, range(8, 24))])
def test_many_silent_ranks_are_named_only_on_one_host(
    tmp_path: Path, diagnose: Diagnose, hosts: int, silent: range
) -> None:
    """If most ranks are silent, the launcher might have ended them before they reported the timeout."""
    found = diagnose(made.folder_of(tmp_path, dict.fromkeys(silent, made.nothing), hosts=hosts))
    assert found.primary is not None
    assert "ranks" not in render(found.primary.title)


@pytest.mark.parametrize(
    ("name", "prefix", "rank"),
    [
        ("n{}/attempt_0/{}/stderr.log", "", 6),
        ("n{}/local_rank_{}.log", "", 6),
        ("n{}/attempt_0/{}/stderr.log", "[rank2]: ", 2),  # the lines contain the ranks
        ("n{}/rank_{}.log", "", 2),  # two runs in two folders have the same names
    ],
)
def test_local_ranks_are_numbered_host_by_host(
    tmp_path: Path, diagnose: Diagnose, name: str, prefix: str, rank: int
) -> None:
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4242"
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    for host in (9, 10):
        for local in range(4):
            path = tmp_path / name.format(host, local)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = error if (host, local) == (10, 2) else lost
            path.write_text(f'Traceback (most recent call last):\n  File "t.py", line 3\n{prefix}{text}\n')
    found = diagnose(tmp_path)
    note = "The logs contain only local ranks."
    assert any(render(each).startswith(note) for each in found.notes) is (rank == 6)
    assert named(found)[:2] == ("cuda-oom", rank)
    if rank == 6:
        assert named(found)[2] == "n10"
        assert in_words(found)[1].startswith("ranks 0–5, 7 on n9, n10: ")


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        (made.nothing, "nccl-collective-timeout"),
        (made.timed_out(93119), "nccl-collective-timeout"),
        (made.timed_out(93119, "ALLGATHER"), "nccl-collective-timeout"),
        (made.timed_out(93120, "BROADCAST"), "nccl-collective-mismatch"),
    ],
    ids=["left out", "one behind", "in an earlier one", "in another one"],
)
def test_rank_in_another_collective_is_named(
    tmp_path: Path, diagnose: Diagnose, end: made.End, rule: str
) -> None:
    found = diagnose(made.folder_of(tmp_path, {RANK: end}))
    assert named(found) == (rule, RANK, f"n{ODD}")
    assert found.primary is not None
    assert found.primary.file.endswith(f"rank_{RANK}.log")


@pytest.mark.parametrize("ranks", [[RANK], [*RANKS]], ids=["one rank", "a host"])
def test_hanging_save_is_named(tmp_path: Path, diagnose: Diagnose, ranks: list[int]) -> None:
    folder = made.folder_of(tmp_path, dict.fromkeys(ranks, made.saving), usual=made.saved)
    found = diagnose(folder)
    assert named(found) == ("nccl-collective-timeout", ranks[0], f"n{ODD}")
    assert found.primary is not None
    shown = render(found.primary.title)
    assert shown.startswith("Rank 75 had been saving" if len(ranks) == 1 else "Ranks 72–79 had been saving")


def saying(text: str, after: float) -> made.End:
    """Return the last lines of a rank: this text, `after` seconds after its last step."""

    def end(rank: int, last: datetime) -> list[str]:
        return [made.logged(last + timedelta(seconds=after), rank, text)]

    return end


LATER = saying("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.", 20)
FIRST = saying("OSError: [Errno 28] No space left on device: '/mnt/ckpt/step_40'", 1)


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(host=st.sampled_from([0, 1, 2]), by=st.integers(-4000, 4000))
def test_wrong_clock_does_not_change_the_first_rank(
    tmp_path_factory: pytest.TempPathFactory, diagnose: Diagnose, host: int, by: int
) -> None:
    ends = {3: LATER, 17: FIRST}
    folder = tmp_path_factory.mktemp("skewed")
    found = diagnose(made.folder_of(folder, ends, hosts=3, clocks={host: by}))
    assert named(found)[1:] == (17, "n2")
    clocks = {
        item.host: item.clock_ahead_seconds for item in found.hosts if item.clock_ahead_seconds is not None
    }
    assert clocks == (pytest.approx({f"n{host}": by}, abs=0.5) if abs(by) > 3 else pytest.approx(clocks))


def test_wrong_clock_is_reported(tmp_path: Path, diagnose: Diagnose) -> None:
    found = diagnose(made.folder_of(tmp_path, {RANK: made.out_of_memory}, clocks={3: 41}))
    assert "The clock of n3 is 41 s ahead. The times in this report have been corrected accordingly." in [
        render(note) for note in found.notes
    ]
    timed = next(finding for finding in found.findings if finding.rule == "nccl-collective-timeout")
    assert timed.last.time is not None
    assert timed.last.time < "2026-11-20T03:12:05"  # 41 s later by the clock of n3


def test_report_fits_on_a_screen(tmp_path: Path, diagnose: Diagnose) -> None:
    for number, ends in enumerate(({RANK: made.out_of_memory}, dict.fromkeys(RANKS, made.nothing))):
        found = diagnose(made.folder_of(tmp_path / str(number), ends))
        out = io.StringIO()
        print_report(found, Console(file=out, width=100))
        lines = out.getvalue().splitlines()
        assert len(lines) <= 52
        first = " ".join(" ".join(lines[:12]).split())  # a long path moves the line breaks
        assert f"rank {RANK if not number else RANKS[0]} on n9" in first
        assert "ranks on 1" in first
        assert "Hosts  16: n0–n15 (ranks 0–127)" in lines


def test_schema_1_has_no_hosts(tmp_path: Path, diagnose: Diagnose) -> None:
    found = diagnose(made.folder_of(tmp_path, {3: made.out_of_memory}, hosts=2))
    assert b'"host"' not in to_json(found, schema=1)
    assert b'"hosts"' not in to_json(found, schema=1)
    assert b'"host": "n0"' in to_json(found, schema=2)
