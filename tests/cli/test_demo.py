"""The demo shows the stall in terminal, chat and dashboard, and leaves nothing behind at any end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import runs

from stallwatch.config.loading import load
from stallwatch.demo import Children, _environment
from stallwatch.demo_chat import chat_endpoint, render
from stallwatch_alerts.notice import incident_notice
from stallwatch_exporter.incident import Incident, Resolution
from stallwatch_rules.endings import Ending

DEMO = [sys.executable, "-c", "from stallwatch.cli import main; main()", "demo", "--port", "0"]


class Watched:
    """A running demo: its output so far, and every descendant process that was ever seen."""

    def __init__(self, *options: str, tmp: Path) -> None:
        env = {**os.environ, "TMPDIR": str(tmp)}
        self.child = subprocess.Popen(
            [*DEMO, *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self.family: set[psutil.Process] = set()
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()
        with self._came:
            self._came.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float) -> None:
        with self._came:
            assert self._came.wait_for(lambda: any(text in line for line in self.lines), seconds), self.text
        self.look()

    def look(self) -> None:
        """Record the current descendants; those that die later must be gone, not merely detached."""
        self.family |= set(psutil.Process(self.child.pid).children(recursive=True))

    def own(self) -> list[psutil.Process]:
        return [psutil.Process(self.child.pid)] if self.child.poll() is None else []

    def end(self, seconds: float) -> int:
        code = self.child.wait(seconds)
        self._reader.join(60)
        return code

    def survivors(self) -> list[psutil.Process]:
        return running(self.family)


def running(family: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run."""
    return [process for process in family if runs(process)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[list[Watched]]:
    started: list[Watched] = []
    yield started
    for demo in started:  # nothing may remain after a failure either
        if demo.child.poll() is None:
            demo.look()
            demo.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                demo.end(20)
        for process in running({*demo.family, *demo.own()}):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_stall_is_shown_in_the_terminal_and_in_the_chat(watched: list[Watched], tmp_path: Path) -> None:
    demo = Watched("--speed", "15", "--exit-when-done", tmp=tmp_path)
    watched.append(demo)
    demo.wait_for("[default1]:rank 1 step 1/", 120)
    assert demo.end(120) == 0, demo.text
    chat = [line for line in demo.lines if line.startswith("chat │")]
    heads = [line for line in chat if "demo-zero3-stall · " in line]
    assert [head.split("│ ")[1] for head in heads] == [
        "🔴 open · critical · demo-zero3-stall · silent-hang-no-error",
        "🔴 crashed · critical · demo-zero3-stall · gloo-collective-timeout",
    ], chat
    titles = [line for line in chat if "[demo-zero3-stall]" in line]
    assert len(titles) == 2
    assert all("rank 1 holds up the run at zero3_stall.py:124 in Feeder.next" in title for title in titles)
    terminal = [line for line in demo.lines if line.startswith("stallwatch: ")]
    assert any("stall" in line.lower() for line in terminal), demo.text
    # The message came during the silence, not after the run's own timeout.
    at = {
        mark: next(i for i, line in enumerate(demo.lines) if mark in line)
        for mark in ("open · critical", "Timed out")
    }
    assert at["open · critical"] < at["Timed out"]
    assert demo.survivors() == []
    assert list(tmp_path.glob("stallwatch-demo-*")) == []
    shown = re.sub(r"\ndemo │ +\d+ s │", "", demo.text)  # without line breaks
    assert re.search(r"Deleting the folder \S*/stallwatch-demo-\w+ of this demo", shown)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_no_process(
    watched: list[Watched], tmp_path: Path, sign: signal.Signals
) -> None:
    demo = Watched("--speed", "8", tmp=tmp_path)
    watched.append(demo)
    demo.wait_for("[default0]:rank 0 step 3/", 120)
    assert len(demo.family) >= 3  # the dashboard, `stallwatch run` and its command
    demo.child.send_signal(sign)
    assert demo.end(120) == (0 if sign == signal.SIGINT else 128 + sign)
    assert demo.survivors() == []
    assert list(tmp_path.glob("stallwatch-demo-*")) == []


def test_demo_sends_nothing_to_configured_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", "slack://a/b/c")
    monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", "postgresql://team/incidents")
    monkeypatch.setenv("STALLWATCH_ALERTS_LANGUAGE", "zh")
    (tmp_path / "stallwatch.toml").write_text(
        '[alerts]\nurls = ["slack://a/b/c"]\nmin_severity = "critical"\n'
    )
    config = load(environ=_environment(tmp_path / "home", "json://127.0.0.1:1/", 7.5), cwd=tmp_path)
    assert config.problems == []
    assert config["alerts.urls"] == ("json://127.0.0.1:1/",)
    assert config["alerts.incidents_url"] == ""
    assert config["alerts.min_severity"] == "warning"
    assert config["alerts.language"] == "zh"
    assert config["stall.floor_seconds"] == 7.5
    assert config["run.home"] == tmp_path / "home"


def test_folder_without_a_recording_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "stallwatch run" in done.stderr


STUBBORN = """
import os, signal, subprocess, sys, time
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
code = "import time; print('there', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid
if sys.argv[1] == "stay":
    time.sleep(60)
"""


@pytest.mark.parametrize("parent", ["stay", "leave"])
def test_stubborn_and_orphaned_children_are_ended(parent: str) -> None:
    with Children(patience=0.4) as children:
        child = children.start(
            [sys.executable, "-c", STUBBORN, parent], os.environ, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        family = children._family()
        assert family
        began = time.monotonic()
    assert running(family) == []
    assert time.monotonic() - began < 40  # no wait for a process that does not end by itself


def test_chat_shows_the_content_of_a_real_notification() -> None:
    apprise = pytest.importorskip("apprise")
    shown: list[str] = []
    with chat_endpoint(shown.append) as url:
        sender = apprise.Apprise()
        sender.add(url)
        assert sender.notify(title="Run x has stalled", body="No step for 40 s.")
    assert len(shown) == 1
    assert "chat │ Run x has stalled\nchat │ No step for 40 s." in shown[0]


def test_message_is_one_block_with_its_facts_first() -> None:
    message = {
        "run": "r",
        "rule": "cuda-oom",
        "severity": "critical",
        "status": "open",
        "type": "failure",
        "title": "T",
        "text": "a\n\nb",
    }
    assert render(message).splitlines() == [
        "chat │",
        "chat │ 🔴 open · critical · r · cuda-oom",
        "chat │ T",
        "chat │ a",
        "chat │",
        "chat │ b",
        "chat │",
    ]


@pytest.mark.parametrize(
    ("resolution", "ending", "head"),
    [
        ("recovered", None, "🟢 recovered"),
        ("run-stopped", Ending("interrupted", 130), "🔵 ended"),
        ("run-failed", Ending("failed", 1), "🔴 crashed"),
        ("unknown", None, "🟠 resolved"),
    ],
)
def test_message_about_an_end_has_the_symbol_of_real_chats(
    resolution: Resolution, ending: Ending | None, head: str
) -> None:
    over = Incident(
        id="r/stall/x/1", run="r", kind="stall", rule="x", severity="critical", status="resolved", episode=1,
        opened_at=0.0, updated_at=60.0, resolved_at=60.0, resolution=resolution, ending=ending,
    )  # fmt: skip
    apprise_channel = pytest.importorskip("stallwatch_alerts.channels.apprise_channel")
    shown: list[str] = []
    with chat_endpoint(shown.append) as url:
        apprise_channel.AppriseChannel(url).send(incident_notice(over, "en", None))
    (text,) = shown
    assert text.splitlines()[1] == f"chat │ {head} · critical · r · x"
