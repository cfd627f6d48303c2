"""Folders of one run's agents on several hosts: any of them is read together with the others."""

from __future__ import annotations

import shutil
import socket
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_exporter.cluster.absence import Absence, host_missing
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem import recorded as recorded_facts
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.postmortem.jobs import diagnose_jobs
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_logs import packed_records
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.locale import render
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.report.phrases import headline
from stallwatch_rules.stacks.folding import fold, over_hosts
from stallwatch_rules.stacks.records import Frame, RankAnswer, Recorded, StallStacks, ThreadStack, Waiting

GIB = 2**30
START = 1_795_750_000.0
IDENTITY = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm", agents=3)
OTHER = msgspec.structs.replace(IDENTITY, key="6a" * 8, attempt=1)
PEER_GONE = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [10.99.0.12]:58501"
)
KILLED = "failed (exitcode: -9) local_rank: 1 (pid: 15554) of binary: /usr/bin/python"
STOPPED = Ending("killed", 1, "SIGTERM", message("run.passed-on", signal="SIGTERM", how="1"))

Keep = Callable[..., RunFolder]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Return a function that stores the records of an agent on n1, n2 or n3 with two ranks each."""

    def of_host(
        number: int,
        ending: Ending | None,
        *,
        lines: Mapping[str, str] | None = None,
        seconds: float = 100.0,
        incidents: Mapping[str, list[Incident]] | None = None,
        home: str = "home",
        identity: RunIdentity = IDENTITY,
        ranks: str = "",
    ) -> RunFolder:
        monkeypatch.setattr(socket, "gethostname", lambda: f"n{number}")
        folder = RunFolder.create("sft", ["x"], home=tmp_path / home, now=START, identity=identity)
        for name, text in (lines or {}).items():
            (folder.path / name).write_text(text)
        for name, every in (incidents or {}).items():
            (folder.path / name).write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in every))
        ended = START + seconds
        facts: dict[str, Any] = {"ending": ending, "ended_at": ended} if ending is not None else {}
        ranks = ranks or f"{2 * number - 2}-{2 * number - 1}"
        folder.write_info(ranks=ranks, updated_at=ended, **facts)
        return folder

    return of_host


@pytest.fixture
def diagnose(catalogue: Catalogue) -> Callable[[Path], Diagnosis]:
    def of(path: Path) -> Diagnosis:
        diagnosis, problems = diagnose_paths([path], Options(catalogue))
        assert problems == []
        return diagnosis

    return of


Diagnose = Callable[[Path], Diagnosis]


def steps(local: int, *last: str, late: int = 0) -> str:
    """Return a rank's log copy under ``torchrun --tee 3``, labelled with its local rank.

    The `last` lines come `late` seconds after the step before.
    """
    said = [f"step {n}/2000 loss {1 / n:.4f}" for n in range(1, 60)]
    seconds = [*range(len(said)), *(len(said) + late for _ in last)]
    times = (f"2026-11-27T03:{54 + at // 60:02}:{at % 60:02}.000000000Z" for at in seconds)
    return "".join(
        f"{time} stdout F [default{local}]:{line}\n" for time, line in zip(times, (*said, *last), strict=True)
    )


def both(*last: str) -> dict[str, str]:
    return {f"ranks/rank{local}.log": steps(local, *last, late=2) for local in (0, 1)}


def packed(folder: Path, kind: str) -> Path:
    """Return an archive of a folder, as it is copied from a cluster or uploaded."""
    return Path(shutil.make_archive(str(folder.parent / f"packed-{kind}"), kind, folder.parent, folder.name))


def test_killed_rank_is_named_for_the_folder_of_any_host(keep: Keep, diagnose: Diagnose) -> None:
    peers = Ending("failed", 1, detail="It exited with 1.", codes={0: 1, 1: 1})
    memory = MemoryUse(counted=False, held=GIB, limit=64 * GIB, ranks={2: GIB // 2, 3: GIB // 2})
    killed = Ending("failed", 1, detail="It exited with 1.", codes={3: -9, 2: -15}, memory=memory)
    folders = [
        # The launcher of n2 waited for its other rank, so the other hosts ended earlier.
        keep(2, killed, lines={**both(), "output.log": f"{STAMP}{KILLED}\n"}, seconds=110.0),
        keep(1, peers, lines=both(PEER_GONE), seconds=101.0),
        keep(3, peers, lines=both(PEER_GONE), seconds=102.0),
    ]
    home = folders[0].path.parent
    for path in (*(folder.path for folder in folders), home, packed(home, "gztar"), packed(home, "zip")):
        found = diagnose(path)
        assert found.primary is not None
        assert (found.verdict, found.primary.rule) == ("failed", "process-killed-from-outside")
        assert (found.primary.rank, found.primary.host) == (3, "n2")
        assert [(host.host, host.ranks) for host in found.hosts] == [
            ("n1", [0, 1]),
            ("n2", [2, 3]),
            ("n3", [4, 5]),
        ]
        assert next(
            finding.ranks for finding in found.findings if finding.rule == "gloo-connection-closed"
        ) == [
            0,
            1,
            4,
            5,
        ]
        assert message("diagnosis.first-host", host="n2") in found.notes
    first = render(diagnose(folders[1].path).notes[0])
    assert first == (
        "This folder is from one host of run sft-8123.0. "
        "The records of n2, n3 in the same parent folder were also read."
    )
    assert not any("beside" in render(note) for note in diagnose(folders[0].path.parent).notes)


def test_parallel_reading_gives_the_same_ranks(keep: Keep, catalogue: Catalogue) -> None:
    for number in (1, 2, 3):
        folder = keep(number, STOPPED, lines=both(PEER_GONE))
    with ThreadPoolExecutor(1) as executor:
        options = Options(catalogue, parallel=Parallel(executor=executor))
        found, _ = diagnose_paths([folder.path], options)
    assert next(finding.ranks for finding in found.findings if finding.rule == "gloo-connection-closed") == [
        *range(6)
    ]


STAMP = (
    "2026-11-27T03:55:01.000000000Z stderr F E1127 03:55:01.000000 13460 torch/distributed/elastic/x.py:1] "
)


def test_exception_is_named_with_its_host(keep: Keep, diagnose: Diagnose) -> None:
    ending = Ending("failed", 1, detail="It exited with 1.")
    raised = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in score',
        '    raise ValueError("bad sample")',
        "ValueError: bad sample",
    ]
    keep(1, ending, lines=both(PEER_GONE))
    keep(2, ending, lines={**both(PEER_GONE), "ranks/rank1.log": steps(1, *raised)})
    found = diagnose(keep(3, ending, lines=both(PEER_GONE)).path)
    assert render(headline(found)) == "ValueError: bad sample (train.py:9) (rank 3 on n2)"
    assert render(found.digest[0]).startswith("rank 3 on n2: ValueError")


@pytest.mark.parametrize("recorded", [True, False])
def test_local_rank_numbers_are_mapped_per_host(
    keep: Keep, diagnose: Diagnose, tmp_path: Path, *, recorded: bool
) -> None:
    """The ranks loaded no probe, so their agents do not know their global ranks."""
    raised = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    for number in (1, 2, 3):
        lines = both(PEER_GONE) | ({"ranks/rank1.log": steps(1, raised)} if number == 1 else {})
        folder = keep(number, Ending("failed", 1), lines=lines)
        folder.write_info(ranks="")
        shutil.copytree(folder.path / "ranks", tmp_path / "logs" / f"n{number}")
    primary = diagnose(folder.path if recorded else tmp_path / "logs").primary
    assert primary is not None
    assert (primary.rule, primary.rank) == ("cuda-oom", 1)
    assert primary.host in ("", "n1")


def test_killed_rank_with_its_own_agent_is_named(keep: Keep, diagnose: Diagnose) -> None:
    """Under ``srun … stallwatch run -- python train.py``, no launcher reports the killed rank."""
    memory = MemoryUse(counted=False, held=GIB, limit=64 * GIB, ranks={3: GIB})
    detail = message("run.ended-signal", signal="SIGKILL")
    killed = Ending("killed", 137, "SIGKILL", detail, codes={3: -9}, memory=memory)
    for rank in range(6):
        late = [stall("n1", look(1, odd=1), opened_at=START + 115.0)] if rank == 0 else []
        folder = keep(
            rank // 2 + 1,
            killed if rank == 3 else Ending("failed", 1, detail="It exited with 1.", codes={rank: 1}),
            seconds=100.0 if rank == 3 else 120.0,
            lines={"output.log": steps(0, *([] if rank == 3 else [PEER_GONE]), late=2)},
            incidents={"incidents.jsonl": late},
            ranks=str(rank),
        )
    found = diagnose(folder.path)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank, found.primary.host) == (
        "process-killed-from-outside",
        3,
        "n2",
    )
    assert [(host.host, host.ranks) for host in found.hosts] == [
        ("n1", [0, 1]),
        ("n2", [2, 3]),
        ("n3", [4, 5]),
    ]
    words = [*map(render, found.notes), *map(render, found.digest)]
    assert not any("stall" in line or "train.py:14" in line for line in words)  # n1 waited for the dead rank


def asked(rank: int, function: str) -> RankAnswer:
    frames = [Frame("/w/train.py", 20, "main"), Frame("/w/train.py", 14, function)]
    waiting: tuple[Waiting, ...] = ()
    if function == "step":
        frames.append(Frame("/x/torch/distributed/distributed_c10d.py", 1, "all_reduce", "torch.distributed"))
        waiting = (Waiting(0, "default_pg", 60, "all_reduce"),)
    recorded = Recorded(world_size=6, waiting=waiting)
    return RankAnswer(
        rank, 100 + rank, "probe", threads=(ThreadStack(tuple(frames), main=True),), recorded=recorded
    )


def look(number: int, odd: int | None = 3) -> StallStacks:
    ranks = (2 * number - 2, 2 * number - 1)
    return fold([asked(rank, "score" if rank == odd else "step") for rank in ranks], time=START + 90.0)


def stall(host: str, stacks: StallStacks | None, **facts: Any) -> Incident:
    about = {
        "kind": "stall",
        "rule": "silent-hang-no-error",
        "status": "resolved",
        "resolution": "run-failed",
        "stalled_seconds": 42.0,
        "threshold_seconds": 10.0,
        "opened_at": START + 70.0,
    }
    return Incident(
        **{**about, **facts},
        id="sft-8123.0/stall/silent-hang-no-error/1",
        run="sft-8123.0",
        severity="critical",
        episode=1,
        updated_at=START + 95.0,
        host=host,
        stacks=stacks,
    )


@pytest.mark.parametrize("merged", [False, True], ids=["each alone", "merged live"])
def test_stacks_of_all_hosts_reveal_the_blamed_rank(keep: Keep, diagnose: Diagnose, *, merged: bool) -> None:
    for number in (1, 2, 3):
        host, own = f"n{number}", look(number)
        kept = {"incidents.jsonl": [stall(host, None if merged and number == 2 else own)]}
        # the record of this coordinator covers all hosts, even without their own records
        if merged and number == 1:
            every = over_hosts({f"n{item}": look(item) for item in (1, 2, 3)}, world=6)
            kept["run-incidents.jsonl"] = [stall(host, every, kind="ended", hosts=["n1", "n2", "n3"])]
        folder = keep(number, STOPPED, lines=both(), incidents=kept)
    found = diagnose(folder.path)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank, found.primary.host) == ("silent-hang-no-error", 3, "n2")
    assert render(found.digest[0]).startswith("Rank 3 on n2 is at train.py:14 in score")
    assert found.primary.file == ""  # the last line is from a rank of another host
    # all hosts were stopped together
    assert not any("first host to fail" in render(note) for note in found.notes)


def test_hosts_without_a_folder_are_named(keep: Keep, diagnose: Diagnose) -> None:
    hosts = {"n1": look(1), "n2": look(2), "n3": look(3)}
    run = {"run-incidents.jsonl": [stall("n1", over_hosts(hosts, world=6), hosts=["n1", "n2"])]}
    keep(1, STOPPED, lines=both(), incidents=run)
    words = [render(note) for note in diagnose(keep(2, STOPPED, lines=both()).path).notes]
    assert "This folder contains no records of n3." in words


def test_cause_on_a_host_without_a_record_comes_from_other_hosts(
    keep: Keep, diagnose: Diagnose, catalogue: Catalogue
) -> None:
    page = catalogue.pages["process-killed-from-outside"]
    cause = Primary(
        page.id, page.title, "cause", "fatal", 0.85, 3, "stderr", 16, None, 59, ["exitcode: -9"], {}, "", []
    )
    killed = msgspec.structs.replace(stall("n2", None, kind="ended", rule=page.id), primary=cause)
    ended = Ending("failed", 1, detail="It exited with 1.")
    keep(1, ended, lines=both(PEER_GONE), incidents={"run-incidents.jsonl": [killed]})
    found = diagnose(keep(3, ended, lines=both(PEER_GONE)).path)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank, found.primary.host) == (page.id, 3, "n2")
    assert found.primary.file == ""
    words = [*map(render, found.notes)]
    assert "The agent on n2 reported this cause to the other hosts." in words
    assert not any("first host to fail" in line for line in words)  # a missing host may have failed first
    raised = {
        "ranks/rank0.log": steps(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    }
    keep(3, ended, lines=raised, identity=OTHER)
    keep(1, ended, lines=both(PEER_GONE), incidents={"run-incidents.jsonl": [killed]}, identity=OTHER)
    found = diagnose(keep(4, ended, lines=both(PEER_GONE), identity=OTHER).path)
    assert found.primary is not None and found.primary.rule == "cuda-oom"  # the logs show a cause


def test_slowdown_on_a_host_without_a_record_is_not_the_cause(
    keep: Keep, diagnose: Diagnose, catalogue: Catalogue
) -> None:
    page = catalogue.pages["straggler-slow-node"]
    slows = Primary(page.id, page.title, "cause", "degrading", 0.7, 3, "stdout", 16, None, 59, [], {}, "", [])
    found = msgspec.structs.replace(
        stall("n2", None, kind="finding", rule=page.id), primary=slows, harm="degrading"
    )
    ended = Ending("failed", 1, detail="It exited with 1.")
    keep(1, ended, lines=both(PEER_GONE), incidents={"run-incidents.jsonl": [found]})
    primary = diagnose(keep(3, ended, lines=both(PEER_GONE)).path).primary
    assert primary is not None and primary.rule == "gloo-connection-closed"


def test_folder_of_one_host_shows_facts_about_the_others(
    keep: Keep, diagnose: Diagnose, catalogue: Catalogue
) -> None:
    """Only one host's folder is present, copied from a host with a separate state folder."""
    page = catalogue.pages["process-killed-from-outside"]
    cause = Primary(
        page.id, page.title, "cause", "fatal", 0.85, 3, "stderr", 16, None, 59, ["exitcode: -9"], {}, "", []
    )
    killed = msgspec.structs.replace(
        stall("n2", None, kind="ended", rule=page.id), primary=cause, hosts=["n1", "n2"]
    )
    ended = Ending("failed", 1, detail="It exited with 1.")
    own = keep(1, ended, lines=both(PEER_GONE), incidents={"run-incidents.jsonl": [killed]})
    found = diagnose(own.path)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank, found.primary.host) == (page.id, 3, "n2")
    assert "This folder contains no records of n2." in map(render, found.notes)
    # The launcher started three hosts, of which perhaps only this one has an agent.
    mine = msgspec.structs.replace(killed, host="n1", hosts=["n1"])
    only = keep(
        1, ended, lines=both(PEER_GONE), incidents={"run-incidents.jsonl": [mine]}, identity=OTHER, home="b"
    )
    assert diagnose(only.path).notes == []


def test_copy_of_a_folder_is_not_another_host(keep: Keep, diagnose: Diagnose) -> None:
    own = keep(1, STOPPED, lines=both(PEER_GONE))
    keep(2, STOPPED, lines=both(PEER_GONE))
    shutil.copytree(own.path, own.path.with_name("backup"))
    found = diagnose(own.path)
    assert found.stats.files == 4
    words = [render(note) for note in found.notes]
    assert "The run had 3 agents, but records of only 2 of them were found." in words


def test_agents_without_a_folder_are_counted(keep: Keep, diagnose: Diagnose) -> None:
    keep(1, STOPPED, lines=both())
    words = [render(note) for note in diagnose(keep(2, STOPPED, lines=both()).path).notes]
    assert "The run had 3 agents, but records of only 2 of them were found." in words


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."


@pytest.mark.parametrize(
    ("failure", "seconds", "rule"),
    [
        (PEER_GONE, 60.0, "host-gone"),
        (OUT_OF_MEMORY, 60.0, "cuda-oom"),  # the log shows the cause
        (PEER_GONE, 99.0, "gloo-connection-closed"),  # the launcher waited for its ranks longer than that
        (PEER_GONE, 160.0, "gloo-connection-closed"),  # n2 was lost after the failure of the other hosts
    ],
)
def test_host_that_was_lost_before_the_others_lost_their_peers_is_the_cause(
    keep: Keep, diagnose: Diagnose, failure: str, seconds: float, rule: str
) -> None:
    failed = Ending("failed", 1, detail="It exited with 1.")
    keep(1, failed, lines=both(failure))
    keep(2, None, lines=both(), seconds=seconds)
    found = diagnose(keep(3, failed).path)
    assert found.verdict == "failed" and found.primary is not None
    assert found.primary.rule == rule
    unheard = [note for note in map(render, found.notes) if "is not known" in note]
    if rule == "host-gone":
        assert (render(found.primary.title), found.primary.host) == ("Host n2 stopped answering", "n2")
        assert "from n2 since 2026-11-27 03:27:40 UTC" in render(found.primary.why)
        assert unheard == []
    else:
        known = "It is not known what happened to n2: no agent on n2 reported anything after 2026-11-27T"
        assert unheard[0].startswith(known)


@pytest.mark.parametrize(("failure", "rule"), [(PEER_GONE, "host-missing"), (OUT_OF_MEMORY, "cuda-oom")])
def test_absence_that_the_agents_found_is_the_cause_of_lost_peers(
    keep: Keep, diagnose: Diagnose, failure: str, rule: str
) -> None:
    cause = host_missing(Absence({}, 1, ["n1", "n2"], 3))
    ended = msgspec.structs.replace(
        stall("n1", None, kind="ended", rule="host-missing"), primary=cause, hosts=["n1", "n2"]
    )
    failed = Ending("failed", 1, detail="It exited with 1.")
    keep(1, failed, lines=both(failure), incidents={"run-incidents.jsonl": [ended]})
    found = diagnose(keep(2, failed, lines=both(failure)).path)
    assert found.primary is not None and found.primary.rule == rule
    assert not any("reported this cause" in render(note) for note in found.notes)


def test_absence_in_an_earlier_start_of_a_run_folder_is_over(keep: Keep, diagnose: Diagnose) -> None:
    ended = msgspec.structs.replace(
        stall("n1", None, kind="ended", rule="host-missing"), primary=host_missing(Absence({}, 1, ["n1"], 2))
    )
    done = Ending("finished", 0)
    found = diagnose(keep(1, done, lines=both(), incidents={"run-incidents.jsonl": [ended]}).path)
    assert found.primary is None and found.verdict == "finished"


def test_first_failed_host_is_found_with_corrected_clocks(keep: Keep, diagnose: Diagnose) -> None:
    keep(1, Ending("failed", 3, detail="It exited with 3."), lines=both(), seconds=100.0)
    late = {
        name: text.replace("T03:54", "T03:58").replace("T03:55", "T03:59") for name, text in both().items()
    }
    keep(2, Ending("failed", 4, detail="It exited with 4."), lines=late, seconds=220.0)
    found = diagnose(
        keep(3, Ending("failed", 3, detail="It exited with 3."), lines=both(), seconds=100.0).path
    )
    assert found.ending == "It exited with 4."  # 240 s ahead by the steps, so it ended 20 s before


def test_merged_findings_are_noted(keep: Keep, diagnose: Diagnose) -> None:
    slow = stall("n2", None, kind="finding", rule="straggler-slow-node", resolution="run-failed")
    slow = msgspec.structs.replace(slow, harm="degrading", note="Host n2 takes 12% longer.")
    keep(1, STOPPED, lines=both(), incidents={"run-incidents.jsonl": [slow]})
    found = diagnose(keep(2, STOPPED, lines=both()).path)
    assert any(render(note).endswith("Host n2 takes 12% longer.") for note in found.notes)


def test_other_starts_and_runs_stay_separate(keep: Keep, diagnose: Diagnose, catalogue: Catalogue) -> None:
    first = keep(1, Ending("failed", 1, detail="It exited with 1."), lines=both())
    second = keep(2, Ending("finished", 0, detail="It exited with 0."), lines=both(), identity=OTHER)
    assert diagnose(first.path).ending == "It exited with 1."
    assert diagnose(second.path).ending == "It exited with 0."
    found = diagnose_jobs([first.path.parent], Options(catalogue))
    assert sorted(job.name for job in found.jobs) == [first.path.name, second.path.name]


def test_empty_neighbouring_runs_do_not_hide_the_ending(
    keep: Keep, diagnose: Diagnose, catalogue: Catalogue
) -> None:
    own = keep(1, Ending("failed", 1, detail="It exited with 1."), lines=both())
    keep(2, Ending("failed", 1, detail="It exited with 1."))
    keep(2, Ending("finished", 0, detail="It exited with 0."), identity=OTHER)
    RunFolder.create("alone", ["x"], home=own.path.parent.parent, now=START)
    assert diagnose(own.path.parent).ending == "It exited with 1."
    assert diagnose_jobs([own.path.parent], Options(catalogue)).diagnosis.ending == "It exited with 1."


def test_folders_without_a_shared_home_are_joined_by_key(
    keep: Keep, diagnose: Diagnose, tmp_path: Path
) -> None:
    raised = "RuntimeError: CUDA error: an illegal memory access was encountered"
    for number in (1, 2, 3):
        last = [raised] if number == 2 else [PEER_GONE]
        keep(number, Ending("failed", 1), lines=both(*last), home=f"all/n{number}")
    found = diagnose(tmp_path / "all")
    assert [(host.host, host.ranks) for host in found.hosts] == [
        ("n1", [0, 1]),
        ("n2", [2, 3]),
        ("n3", [4, 5]),
    ]


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a\\..\\..\\evil", "..", "", "x/\n" + "e" * 300])
def test_record_in_an_archive_is_copied_temporarily(
    tmp_path: Path, keep: Keep, catalogue: Catalogue, name: str
) -> None:
    """Whoever made an upload chose its names and numbers."""
    info = keep(2, STOPPED).info
    info.first_rank = -(10**15)
    prefix = f"{name}/" if name else ""
    with zipfile.ZipFile(tmp_path / "upload.zip", "w") as archive:
        archive.writestr(f"{prefix}agent.json", msgspec.json.encode(info))
        archive.writestr(f"{prefix}ranks/rank0.log", steps(0))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = sorted(tmp_path.rglob("*"))
    options = Options(catalogue, scratch=str(scratch))
    with options.expanded([tmp_path / "upload.zip"]) as given:
        (folder,) = given.run_folders
        assert Path(folder).resolve().is_relative_to(scratch.resolve())
        assert [path.name for path in scratch.rglob("*") if path.is_file()] == ["agent.json"]
        assert [file.folder for file in given.files] == [folder]
    found, problems = diagnose_paths([tmp_path / "upload.zip"], options)
    assert (problems, found.verdict) == ([], "interrupted")
    assert sorted(tmp_path.rglob("*")) == before


def test_size_of_records_in_an_archive_is_bounded(
    tmp_path: Path, keep: Keep, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = keep(2, STOPPED, lines=both(), incidents={"incidents.jsonl": [stall("n2", look(2))] * 500})
    monkeypatch.setattr(packed_records, "_MOST_BYTES", 10_000)
    with Options(catalogue, scratch=str(tmp_path)).expanded([packed(folder.path, "zip")]) as given:
        copied = [path.stat().st_size for path in Path(given.run_folders[0]).iterdir()]
        assert sum(copied) <= 10_000 < (folder.path / "incidents.jsonl").stat().st_size


def test_other_files_in_an_archive_do_not_belong_to_the_run(
    tmp_path: Path, keep: Keep, catalogue: Catalogue
) -> None:
    folder = keep(2, STOPPED, lines=both()).path
    (folder.parent / "other.log").write_text("step 1/2 loss 0.5\n")
    for path in (folder.parent, packed(folder.parent, "tar")):
        found, _ = diagnose_paths([path], Options(catalogue))
        assert found.verdict != "interrupted", "the record is not that of both"


def test_quiet_time_comes_only_from_watched_hosts() -> None:
    gone = recorded_facts.Recorded(unheard=1.0, threshold=30.0)
    watched = recorded_facts.Recorded(watched=True, quiet=(2.0, 1800.0))
    slower = recorded_facts.Recorded(watched=True, quiet=(9.0, 1800.0))
    found = recorded_facts._of_run([], [gone, slower, watched], {})
    assert found.watched and found.quiet == (2.0, 1800.0) and not found.stall_continues


@pytest.mark.parametrize(
    ("step", "last"), [(2000, 2000), (1990, 1990), (59, 59), (None, 59), (8000, 59)], ids=str
)
def test_run_that_outlived_the_agent_with_its_log_reached_the_steps_of_the_other_hosts(
    keep: Keep, diagnose: Diagnose, step: int | None, last: int
) -> None:
    where = [(Frame("train.py", 41, "main"),)]
    look = fold([RankAnswer(0, 1, "probe", threads=(ThreadStack(where[0], main=True),))], time=START)
    stall = Incident(
        id="sft/stall/silent-hang-no-error/1",
        run="sft",
        kind="stall",
        rule="silent-hang-no-error",
        severity="critical",
        status="open",
        episode=1,
        opened_at=START + 70,
        updated_at=START + 70,
        stacks=look,
    )
    killed = keep(1, None, lines=both(), seconds=80, incidents={"incidents.jsonl": [stall]})
    ended = keep(2, Ending("finished", 0, seconds=200), seconds=200)
    ended.write_info(step=step)
    killed.write_info(pid=2**22 + 1)  # the agent was killed
    found = diagnose(killed.path)
    assert (found.verdict, found.progress.last_step) == ("finished", last)
    words = " ".join(map(render, [*found.notes, *found.digest]))
    assert "at step" not in words and "train.py:41" not in words
