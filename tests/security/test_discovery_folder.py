"""Attacks on the folder that announces endpoints, which accounts of a host may share."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from stallwatch_exporter.rings.presence import process_namespace
from stallwatch_exporter.serving import discovery
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings


def announce_and_close(folder: Path) -> list[str]:
    """What a server that starts and ends reports."""
    said: list[str] = []
    server = serve(CollectorRegistry(), ExporterSettings(port=0, sd_dir=folder), said.append)
    assert server is not None
    server.close()
    return said


def test_symlink_in_place_of_the_announcement_is_not_followed(tmp_path: Path) -> None:
    """Another account plants a link at the name that an agent will write, to have a file overwritten."""
    folder, victim = tmp_path / "sd", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    host = socket.gethostname()
    (folder / f"stallwatch-{host}-{os.getpid()}-19999.json").symlink_to(victim)
    path = discovery.announce(folder, "127.0.0.1:19999", "run")
    assert victim.read_text() == "precious" and not path.is_symlink()
    assert json.loads(path.read_text())[0]["targets"] == ["127.0.0.1:19999"]


def test_pipe_among_the_announcements_does_not_block_the_agent(tmp_path: Path) -> None:
    """Opening a pipe without a writer would block the start of the watcher indefinitely."""
    os.mkfifo(tmp_path / "stallwatch-pipe.json")
    assert announce_and_close(tmp_path) == []
    assert (tmp_path / "stallwatch-pipe.json").exists()


def test_symlink_among_the_announcements_is_not_removed(tmp_path: Path) -> None:
    """A link to a stale announcement elsewhere must not make us read or remove what it points to."""
    folder, elsewhere = tmp_path / "sd", tmp_path / "elsewhere.json"
    folder.mkdir()
    labels = {"pid": str(2**22 + 1), "host": socket.gethostname(), "namespace": process_namespace()}
    shown = {f"__meta_stallwatch_{name}": text for name, text in labels.items()}
    elsewhere.write_text(json.dumps([{"labels": shown}]))
    (folder / "stallwatch-link.json").symlink_to(elsewhere)
    announce_and_close(folder)
    assert elsewhere.exists() and (folder / "stallwatch-link.json").is_symlink()


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, '[{"labels": {"__meta_stallwatch_host": HOST, PID: Infinity}}]'],
    ids=["nested", "infinite"],
)
def test_unreadable_announcement_does_not_affect_others(tmp_path: Path, text: str) -> None:
    """It is nested too deeply, or its process has no number; the endpoint is announced anyway."""
    namespace = f'"__meta_stallwatch_namespace": "{process_namespace()}", "__meta_stallwatch_pid"'
    strange = tmp_path / "stallwatch-strange.json"
    strange.write_text(text.replace("HOST", json.dumps(socket.gethostname())).replace("PID", namespace))
    assert announce_and_close(tmp_path) == []
    assert strange.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_announcements_of_other_accounts_are_not_removed(tmp_path: Path) -> None:
    """An agent of root must not clean up among the files of others, whose processes it cannot judge."""
    path = tmp_path / "stallwatch-other.json"
    labels = {"pid": str(2**22 + 1), "host": socket.gethostname(), "namespace": process_namespace()}
    shown = {f"__meta_stallwatch_{name}": text for name, text in labels.items()}
    path.write_text(json.dumps([{"labels": shown}]))
    os.chown(path, 65534, 65534)
    announce_and_close(tmp_path)
    assert path.exists()
    os.chown(path, 0, 0)
    announce_and_close(tmp_path)
    assert not path.exists()
