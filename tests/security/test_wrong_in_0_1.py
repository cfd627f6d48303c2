"""What release 0.1 did wrong, as issue 22 lists it: each test here fails at its commit, e508561.

They use only what both releases have: the commands, files and HTTP. `TESTED_CHECKOUT` names a checkout whose
commands all tests run in place of these, so that anybody can see them fail:

    git worktree add --detach /tmp/0.1 e508561
    export TESTED_CHECKOUT=/tmp/0.1
    python -m pytest -n 0 tests/security/test_wrong_in_0_1.py
    python -m pytest -n 0 tests/exporter/test_wall_clock.py -k 'tail and 7200'

The last one is about the clock. A setting that 0.1 does not know is given as a variable, which it ignores.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import free_port
from processes import STALLWATCH
from rawhttp import request, websocket

sys.path.insert(0, str(Path(__file__).parent))
from secrets_made import leaked, made

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="one system is enough to prove it")

Attacked = Callable[..., subprocess.CompletedProcess[str]]

HOOK = Path(__file__).parents[2] / "bench" / "fault_programs" / "hook"
MIB = 1024 * 1024
STEPS = "".join(f"step {step}/900 loss {2 / step:.4f}\n" for step in range(1, 60))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
QUICK = {"STALLWATCH_STALL_FLOOR_SECONDS": "0.5", "STALLWATCH_STALL_START_SECONDS": "0.5"}
#: Trains, hangs until a file exists, for this many seconds at most, and runs out of memory.
TRAINING = f"""
import sys, time
from pathlib import Path
for step in range(1, 40):
    print(f"step {{step}}/900 loss 1.5", flush=True)
    time.sleep(0.02)
file, seconds = sys.argv[1:] or (".", "0")
end = time.monotonic() + float(seconds)
while not Path(file).exists() and time.monotonic() < end:
    time.sleep(0.1)
sys.exit({OOM.strip()!r})
"""
#: Prints at the end of a training which addresses its watcher listens at.
LISTENING = """
import atexit, contextlib, os, psutil
def show():
    watcher = psutil.Process(os.getppid())
    sockets = []
    for process in (watcher, *watcher.children()):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            sockets += process.net_connections()
    print("listening at", *(one.laddr.ip for one in sockets if one.status == "LISTEN"))
atexit.register(show)
"""


class Chat:
    """A chat that takes messages, or refuses them with a status of HTTP."""

    def __init__(self) -> None:
        self.status = 200
        self.taken: list[dict[str, Any]] = []
        self.refused = 0
        self._came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._came:
                    status = outer.status
                    if status == 200:
                        outer.taken.append(body)
                    else:
                        outer.refused += 1
                    outer._came.notify_all()
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"json://127.0.0.1:{self._server.server_port}/"

    def wait_for(self, answer: Callable[[], Any]) -> None:
        with self._came:
            assert self._came.wait_for(answer, timeout=120)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chat() -> Iterator[Chat]:
    made = Chat()
    yield made
    made.close()


@contextlib.contextmanager
def started(folder: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a folder of its own, with the usual umask, until the test has seen enough."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "STALLWATCH_HOME": str(folder / "home"), **environ}
    command = [*STALLWATCH, *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        umask=0o022,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        family = [process]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(process.pid).children(recursive=True)
        for item in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.send_signal(signal.SIGKILL)
        process.communicate()


def wait_until(answer: Callable[[], Any]) -> Any:
    """What is found once something is; a minute at most."""
    end = time.monotonic() + 60
    while not (found := answer()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


# ---- 1: the configuration of another account


def test_configuration_of_other_accounts_is_ignored(tmp_path: Path, chat: Chat) -> None:
    """It named a command, an address, a state folder and a chat, but not the file that was read."""
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "stallwatch.toml"
    file.write_text(
        f'[run]\nhome = "moved"\n[exporter]\nhost = "0.0.0.0"\n[alerts]\nurls = ["{chat.url}"]\n'
        '[stall]\non_stall = "command touch gotcha"\n'
    )
    file.chmod(0o666)
    environ = {**os.environ, **QUICK, "XDG_STATE_HOME": str(tmp_path / "state")}
    del environ["STALLWATCH_HOME"]
    training = [sys.executable, "-c", LISTENING + TRAINING, "gotcha", "5"]
    done = subprocess.run(
        [*STALLWATCH, "run", "--port", "0", "--", *training],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "listening at" in done.stdout and len([*tmp_path.rglob("diagnosis.json")]) == 1
    obeyed = {
        "command": (folder / "gotcha").exists(),
        "address": "0.0.0.0" in done.stdout,
        "state folder": (folder / "moved").exists(),
        "chat": bool(chat.taken),
    }
    assert [name for name, is_obeyed in obeyed.items() if is_obeyed] == []
    assert f"{file}: ignored, because every account can write to it" in done.stderr


# ---- 2 and 5: secrets

SECRETS = {item.kind: item for item in made(20261126)}
#: 0.1 masked these, except in the template of the line.
IN_TEMPLATES = [
    *("huggingface", "openai", "openai-project", "anthropic", "nvidia", "groq", "aws-session", "google-api"),
    *("google-client", "tencent", "github-classic", "github-app", "github-fine", "gitlab", "npm", "pypi"),
    *("vault", "slack-bot", "slack-app", "sendgrid", "stripe", "json", "telegram"),
]
#: 0.1 did not know these.
UNKNOWN = [
    *("netrc", "netrc-login", "env-key", "env-token", "env-pass", "chinese-password", "prompt", "pem-3"),
    *("ssh-3", "aws-secret", "wandb-bare", "gcp-key-id", "twilio"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The JSON report of a failed run for each kind of secret that it printed."""
    folder = tmp_path_factory.mktemp("secrets")
    for kind in (*IN_TEMPLATES, *UNKNOWN):
        raised = (
            'Traceback (most recent call last):\n  File "train.py", line 9, in f\nCustomFailure: it broke\n'
        )
        warning = f"WARNING the loader said: {SECRETS[kind].text}\n"
        (folder / f"{kind}.log").write_text(f"{STEPS}{warning}{raised}", encoding="utf-8")
    done = subprocess.run(
        [*STALLWATCH, "diagnose", "--json", "--each", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return {Path(load["file"]).stem: load["diagnosis"] for load in json.loads(done.stdout)}


@pytest.mark.parametrize("kind", IN_TEMPLATES)
def test_template_of_a_new_line_contains_no_secret(reports: dict[str, dict[str, Any]], kind: str) -> None:
    """The line itself was masked beside it."""
    (line,) = reports[kind]["new_lines"]
    assert leaked(SECRETS[kind].secret, line["template"]) == ""


@pytest.mark.parametrize("kind", UNKNOWN)
def test_report_masks_secrets_that_0_1_did_not_know(reports: dict[str, dict[str, Any]], kind: str) -> None:
    assert reports[kind]["new_lines"]
    assert leaked(SECRETS[kind].secret, json.dumps(reports[kind], ensure_ascii=False)) == ""


def test_html_report_masks_secrets_that_0_1_did_not_know(attacked: Attacked, tmp_path: Path) -> None:
    kinds = ["netrc-login", "env-key", "chinese-password", "prompt", "wandb-bare", "gcp-key-id", "twilio"]
    warnings = "".join(f"WARNING {kind} said: {SECRETS[kind].text}\n" for kind in kinds)
    (tmp_path / "train.log").write_text(f"{STEPS}{warnings}{OOM}", encoding="utf-8")
    attacked(tmp_path, "diagnose", "--html", "report.html", "train.log")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(f"{kind} said" in page for kind in kinds)
    assert [kind for kind in kinds if leaked(SECRETS[kind].secret, page)] == []


# ---- 3 and 8: who may use the servers, and the modes of what they keep


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str]]]:
    """Port and path of each server without a login; that of /metrics also with a token."""
    pytest.importorskip("streamlit")
    folder = tmp_path_factory.mktemp("servers")
    log, token = folder / "train.log", folder / "token"
    log.write_text(STEPS)
    token.write_text("a token\n")
    token.chmod(0o600)
    paths = {
        "metrics": "/metrics",
        "guarded": "/metrics",
        "relay": "/api/messages?run=x",
        "dashboard": "/_stcore/health",
    }
    found = {name: (free_port(), path) for name, path in paths.items()}
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str, **environ: str) -> None:
            port = str(found[name][0])
            stack.enter_context(started(folder / name, *arguments, "--port", port, **environ))

        start("metrics", "tail", str(log))
        start("guarded", "tail", str(log), STALLWATCH_SERVER_TOKEN_FILE=str(token))
        start("relay", "relay", STALLWATCH_ALERTS_URLS="json://127.0.0.1:9/")
        start("dashboard", "dashboard")
        for port, path in found.values():

            def is_up(port: int = port, path: str = path) -> bool:
                with contextlib.suppress(OSError):
                    return bool(request(port, path, "Host: 127.0.0.1", "Connection: close").status)
                return False

            assert wait_until(is_up), path
        found["folder"] = (0, str(folder))
        yield found


Servers = dict[str, tuple[int, str]]


@pytest.mark.parametrize("name", ["metrics", "relay", "dashboard"])
def test_rebound_name_of_this_machine_is_refused(servers: Servers, name: str) -> None:
    """A page of evil.example read all three through the browser of its visitor."""
    assert request(*servers[name], "Host: evil.example", "Connection: close").status == 421
    assert request(*servers[name], "Host: 127.0.0.1", "Connection: close").status == 200


def test_websocket_under_a_rebound_name_is_refused(servers: Servers) -> None:
    """Its name and its origin were the same, so it was opened: 101."""
    port, _ = servers["dashboard"]
    assert websocket(port, "Host: evil.example", "Origin: http://evil.example").status == 421
    assert websocket(port, f"Host: 127.0.0.1:{port}", f"Origin: http://127.0.0.1:{port}").status == 101


def test_metrics_can_be_protected_by_a_token(servers: Servers) -> None:
    """Except for certificates of clients, everybody could read them."""
    headers = ("Host: 127.0.0.1", "Connection: close")
    assert request(*servers["guarded"], *headers).status == 401
    assert request(*servers["guarded"], *headers, "Authorization: Bearer a token").status == 200


def test_dashboard_numbers_are_private_to_its_user(servers: Servers) -> None:
    home = Path(servers["folder"][1]) / "dashboard" / "home"
    (kept, *_) = wait_until(lambda: [*home.glob("metrics.duckdb*")])
    assert oct(stat.S_IMODE(kept.stat().st_mode)) == oct(0o600)


def test_prometheus_finds_a_run_whose_port_was_taken(tmp_path: Path) -> None:
    """The second run of a host took the next port, of which no scraper knew."""
    port = free_port()
    (tmp_path / "train.log").write_text(STEPS)
    tail = ("tail", "--port", str(port), str(tmp_path / "train.log"))
    environ = {"STALLWATCH_EXPORTER_SD_DIR": str(tmp_path / "sd")}
    served = []
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            stack.enter_context(started(tmp_path / name, *tail, **environ))
            (record,) = wait_until(lambda name=name: [*(tmp_path / name).rglob("agent.json")])
            url = wait_until(lambda record=record: json.loads(record.read_bytes()).get("endpoint"))
            served.append(url.split("/")[2])
        files = (tmp_path / "sd").glob("*.json")
        found = sorted(
            target for file in files for load in json.loads(file.read_text()) for target in load["targets"]
        )
        assert len(set(served)) == 2 and found == sorted(served)


# ---- 6: a state folder that cannot be written


@pytest.mark.parametrize(
    ("fault", "was"),
    [
        ("1:EROFS:on", "no such file or folder"),
        ("12:ENOSPC:on", "agent gone"),
        ("16:ENOSPC:on", "record ends"),
    ],
    ids=["read-only", "full from the start", "full later"],
)
def test_failed_run_stays_failed_although_others_can_write_files(
    attacked: Attacked, tmp_path: Path, fault: str, was: str
) -> None:
    """0.1 had only the words of the parameter for a run that it had seen fail."""
    home = tmp_path / "home"
    (tmp_path / "tmp").mkdir(mode=0o700)
    environ = {"STALLWATCH_HOME": str(home), "TMPDIR": str(tmp_path / "tmp")}
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
    faults = {**environ, "PYTHONPATH": path, "FAULTS_FAIL": f"{fault}:{home}"}
    run = ("run", "--no-metrics", "--name", "sft", "--", sys.executable, "-c", TRAINING)
    assert attacked(tmp_path, *run, env=faults).returncode == 1
    found = attacked(tmp_path, "diagnose", "--brief", str(home / "runs" / "sft"), env=environ)
    shown = attacked(tmp_path, "runs", env=environ).stdout
    assert (found.returncode, found.stdout.split(":")[0]) == (1, "FAILED"), found.stdout
    assert "failed (exit code 1)" in shown and was not in shown


# ---- 7: many small files


def peak_memory(path: Path) -> int:
    """Peak of the resident memory of a diagnosis, in bytes."""
    code = (
        "import atexit, pathlib, re, sys\n"
        "def show():\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+)', status)[1], file=sys.stderr)\n"
        f"atexit.register(show)\n{STALLWATCH[-1]}"
    )
    command = [*STALLWATCH[:-1], code, "diagnose", "--brief", "--workers", "1", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cuda-oom" in done.stdout, done.stderr
    return 1024 * int(done.stderr.split()[-1])


def test_many_small_files_need_little_more_memory_than_few(tmp_path: Path) -> None:
    """Each took 30 kB: ten thousand 439 MB. For their time see ``bench/many.py --small``."""
    pytest.importorskip("hyperscan", reason="without it, each file is read")
    some, many = tmp_path / "some", tmp_path / "many"
    for folder, files in ((some, 100), (many, 3000)):
        folder.mkdir()
        for number in range(files):
            (folder / f"rank{number}.log").write_text(STEPS + OOM * (number == 7))
    for folder in (some, many):
        peak_memory(folder)  # compiles the patterns
    assert peak_memory(many) - peak_memory(some) < 2900 * 8192


# ---- 8: archives, tables, chats


def test_expanded_size_of_a_packed_log_is_bounded(attacked: Attacked, tmp_path: Path) -> None:
    """A few megabytes kept it busy for minutes."""
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(os.urandom(2 * MIB).hex().encode()))
    environ = {"STALLWATCH_ARCHIVES_MAX_EXPANDED_MB": "1"}
    done = attacked(tmp_path, "diagnose", "--json", "train.log.gz", env=environ)
    assert json.loads(done.stdout)["stats"]["bytes"] <= MIB
    assert "expands to more than 1 MiB" in done.stderr and "[archives] max_expanded_mb" in done.stderr


def test_nested_archive_is_reported_with_a_remedy(attacked: Attacked, tmp_path: Path) -> None:
    """It reported that there were no log files."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("data.zip", b"PK")
        archive.writestr("more.tar.gz", b"x")
    done = attacked(tmp_path, "diagnose", "all.zip")
    assert done.returncode == 2
    assert "not read: data.zip, more.tar.gz; unpack it and specify the path of the folder" in done.stderr


def test_file_name_is_not_a_formula_in_the_samples_table(attacked: Attacked, tmp_path: Path) -> None:
    (tmp_path / "=cmd()|x.log").write_text(STEPS)
    rows = attacked(tmp_path, "samples", "=cmd()|x.log").stdout.splitlines()
    assert len(rows) > 50
    assert [row for row in rows for cell in row.split(",") if cell.strip('"').startswith("=")] == []


def test_oldest_incident_is_sent_first_after_an_outage(tmp_path: Path, chat: Chat) -> None:
    """What it had refused five times waited on, and what had just come was sent."""
    chat.status = 503
    run = ("run", "--no-metrics", "--", sys.executable, "-c", TRAINING, "up", "60")
    with started(tmp_path, *run, STALLWATCH_ALERTS_URLS=chat.url, **QUICK) as process:
        chat.wait_for(lambda: chat.refused >= 5)
        chat.status = 200
        (tmp_path / "up").touch()
        process.communicate(timeout=120)
    # What the run left behind leaves with the next one.
    with started(tmp_path, *run, STALLWATCH_ALERTS_URLS=chat.url):
        chat.wait_for(lambda: chat.taken)
    assert chat.taken[0]["rule"] == "silent-hang-no-error"
