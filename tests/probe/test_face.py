"""Code that reports its own values: with an agent through its probe, otherwise by its own metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import Record, RingReader
from stallwatch_exporter.serving.standalone import Standalone
from stallwatch_exporter.settings import ExporterSettings


def run(code: str, **variables: str) -> str:
    environ = {**os.environ, "STALLWATCH_EXPORTER_PORT": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def rings(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a rank that an agent watches."""
    (tmp_path / "rings").mkdir()
    return with_probe({"RANK": "2"}, tmp_path / "rings")


def records(tmp_path: Path) -> list[Record]:
    (path,) = (tmp_path / "rings").glob("*.ring")
    reader = RingReader(path)
    found = reader.read().records
    assert reader.faults == 0
    return found


LOOP = (
    "import stallwatch\n"
    "with stallwatch.training_run('mine', total_steps=9) as run:\n"
    "    run.step(loss=2.0)\n"
    "    with run.phase('eval'): pass\n"
    "    run.value('grad_norm', 0.5)\n"
    "    run.step(loss=1.5)\n"
)


def test_plain_loop_reports_to_the_agent(tmp_path: Path) -> None:
    run(LOOP, **rings(tmp_path))
    steps = [each.values for each in records(tmp_path) if "step" in each.values]
    assert [(each["step"], each["loss"], each["target_steps"]) for each in steps] == [(1, 2, 9), (2, 1.5, 9)]
    assert steps[1]["grad_norm"] == 0.5
    assert [each.values["phase"] for each in records(tmp_path)] == [1, 2, 1, 1]


def test_plain_loop_without_an_agent_serves_its_own_metrics() -> None:
    code = LOOP + (
        "    import urllib.request\n"
        "    from stallwatch.integrations import loop\n"
        "    loop._served.look()\n"
        "    print(urllib.request.urlopen(loop.endpoint()).read().decode())\n"
    )
    page = run(code, LOCAL_RANK="1", RANK="5").splitlines()
    assert 'stallwatch_step{run="mine"} 2.0' in page
    assert 'stallwatch_target_steps{run="mine"} 9.0' in page
    assert 'stallwatch_loss{rank="5",run="mine"} 1.5' in page


def test_unknown_names_are_reported_once(tmp_path: Path) -> None:
    code = (
        "import stallwatch\n"
        "with stallwatch.training_run() as run:\n"
        "    for _ in range(2): run.step(losss=1.0, loss=2.0)\n"
        "    for _ in range(2):\n"
        "        with run.phase('bogus'): pass\n"
        "    run.value('lr', 0.1)\n"
        "print('on')\n"
    )
    environ = {**os.environ, **rings(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "on\n")
    losss, bogus, lr = done.stderr.splitlines()
    assert "unknown number 'losss'" in losss and losss.endswith("did you mean loss?")
    assert "unknown phase 'bogus'" in bogus and "weight-sync" in bogus
    assert "unknown number 'lr'" in lr and "learning_rate" in lr
    reader = RingReader(next((tmp_path / "rings").glob("*.ring")))
    found = [each.values for each in reader.read().records if "step" in each.values]
    assert [each["loss"] for each in found] == [2.0, 2.0]


def test_disabled_probe_does_nothing(tmp_path: Path) -> None:
    run(LOOP, STALLWATCH_PROBE="0", STALLWATCH_HOME=str(tmp_path / "home"))
    assert not (tmp_path / "home").exists()


def test_missing_state_folder_or_port_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {
        **os.environ,
        "STALLWATCH_HOME": str(tmp_path / "file"),
        "STALLWATCH_EXPORTER_HOST": "192.0.2.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOP + "print('on')"], env=environ, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_each_local_rank_has_its_own_port(tmp_path: Path) -> None:
    settings = ExporterSettings(home=tmp_path, port=0)
    one, other = Standalone("r", settings, 0), Standalone("r", settings, 1)
    Probe(one.folder, {"RANK": "0"}).step(loss=1.0)
    one.look()
    assert one.server is not None and other.server is not None
    pages = [urllib.request.urlopen(each.server.url).read().decode() for each in (one, other)]
    assert ["stallwatch_rank_step{" in page for page in pages] == [True, False]
    for each in (one, other):
        each.close()
        assert not each.folder.exists()


def test_existing_engine_is_watched() -> None:
    code = (
        "import sys, types, urllib.request\n"
        "class DeepSpeedEngine:\n"
        "    def __init__(self): self.global_steps, self.micro_steps = 3, 0\n"
        "    def gradient_accumulation_steps(self): return 1\n"
        "    def backward(self, loss): self.gradient_accumulation_steps()\n"
        "    def step(self):\n"
        "        self.micro_steps += 1\n"
        "        self.global_steps += 1\n"
        "sys.modules['deepspeed.runtime.engine'] = module = types.ModuleType('deepspeed.runtime.engine')\n"
        "module.DeepSpeedEngine = DeepSpeedEngine\n"
        "import stallwatch\n"
        "from stallwatch.integrations import loop\n"
        "engine = stallwatch.watch(DeepSpeedEngine())\n"
        "for loss in (2.0, 1.5): engine.backward(loss); engine.step()\n"
        "loop._served.look()\n"
        "print(urllib.request.urlopen(loop.endpoint()).read().decode())\n"
    )
    page = run(code, RANK="1").splitlines()
    assert any(line.startswith('stallwatch_rank_step{rank="1"') and line.endswith(" 5.0") for line in page)
    assert any(line.startswith('stallwatch_loss{rank="1"') and line.endswith(" 1.5") for line in page)
    assert any(line.startswith('stallwatch_rank_resident_bytes{rank="1"') for line in page)


def test_unsupported_object_is_reported_and_returned() -> None:
    code = "import stallwatch\nassert stallwatch.watch(5) == 5\nprint('on')\n"
    environ = {**os.environ, "STALLWATCH_EXPORTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert "the engine is not watched" in done.stderr
