"""The compose file: pinned, confined, monitored, without secrets, and with mounts that its servers can read.

Each server's own tool checks its configuration, in the mounted form.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from stallwatch.cli import cli
from stallwatch.config.keys import KEYS
from stallwatch_exporter.serving.hosts import is_allowed_host, normalised, own_names

SERVICES = ("prometheus", "alertmanager", "relay", "dashboard", "grafana", "demo", "demo-chat")
VERSION = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+(-[\w.-]+)?")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
FOLDER = "docs/compose"


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "docker-compose.yml").read_text())


def default(text: str) -> str:
    """Return a value with the defaults of its variables."""
    return VARIABLE.sub(lambda found: found[2], text)


def test_images_have_pinned_versions(root: Path, compose: dict[str, Any]) -> None:
    images = [value["image"] for value in compose["services"].values() if "image" in value]
    for dockerfile in {
        value["build"]["dockerfile"] for value in compose["services"].values() if "build" in value
    }:
        images += re.findall(r"^FROM (\S+)", (root / dockerfile).read_text(), flags=re.MULTILINE)
    assert len(images) >= 5
    assert [image for image in images if not VERSION.fullmatch(image)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_confined_and_has_a_health_check(root: Path, compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    user = service["user"].partition(":")[0]
    assert user.isdigit() and int(user) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    assert {"test", "interval", "timeout", "retries"} <= service["healthcheck"].keys()
    assert service["healthcheck"]["test"][0] == "CMD"
    assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []
    if "build" in service:  # the number is the user id that the image creates
        dockerfile = (root / service["build"]["dockerfile"]).read_text()
        assert f"--uid {user} stallwatch" in dockerfile and "\nUSER stallwatch\n" in dockerfile


def test_services_are_complete(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == set(SERVICES)


def test_mounts_exist_and_are_read_only(root: Path, compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in map(default, service.get("volumes", [])):
            source, *rest = mount.split(":")
            if source.startswith("./"):
                assert (root / source).exists() and rest[-1] == "ro", mount
            else:
                assert source in compose["volumes"], mount


def test_secrets_come_from_files(root: Path, compose: dict[str, Any]) -> None:
    """`docker inspect` shows the environment, so it has no secret; all variables are Stallwatch's."""
    secret = {key.variable for key in KEYS if key.secret}
    known = {key.variable for key in KEYS} | {f"{name}_FILE" for name in secret}
    known |= {"STALLWATCH_HOME", "STALLWATCH_CACHE"}
    for name, service in compose["services"].items():
        found = {k: str(v) for k, v in service.get("environment", {}).items() if k.startswith("STALLWATCH_")}
        assert found.keys() <= known, name
        for variable in found.keys() & secret:  # addresses within this file are not secret
            assert found[variable].partition("://")[2].partition(":")[0] in compose["services"], variable
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], variable
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
    files = {name: default(item["file"]) for name, item in compose["secrets"].items()}
    kept = subprocess.run(
        ["git", "check-ignore", "--no-index", *(path for path in files.values() if "/secrets/" in path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    # The reader writes the missing files, which git ignores.
    assert sorted(kept) == sorted(path for path in files.values() if not (root / path).exists())


def test_commands_of_our_services_parse(compose: dict[str, Any]) -> None:
    for name in ("relay", "demo"):
        words = list(compose["services"][name]["command"])
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None
        command.make_context(words[0], words[1:]).close()


def test_demo_is_complete(root: Path, compose: dict[str, Any]) -> None:
    """Its recording is in the image, its target is scraped, and its chat gets the message."""
    demo, chat = compose["services"]["demo"], compose["services"]["demo-chat"]
    assert demo["profiles"] == chat["profiles"] == ["demo"]
    copied = re.findall(r"^COPY (\S+) (\S+)$", (root / "exporter/Dockerfile").read_text(), flags=re.MULTILINE)
    recording = demo["command"][-1].removeprefix("/src/")
    assert (recording, recording) in copied and (root / recording / "ranks").is_dir()
    variables = dict(
        line.split("=", 1)
        for line in (root / FOLDER / "demo.env").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    for variable, path in variables.items():
        assert f"${{{variable}:-" in (root / "docker-compose.yml").read_text()
        assert (root / path).is_file()
    assert yaml.safe_load((root / variables["STALLWATCH_TARGETS"]).read_text()) == [
        {"targets": ["demo:19400"]}
    ]
    output = (root / variables["STALLWATCH_ALERTS_URLS_FILE"]).read_text().strip()
    assert output == f"json://demo-chat:{chat['command'][-1]}/"


def test_services_accept_the_host_names_of_their_clients(root: Path, compose: dict[str, Any]) -> None:
    """Clients send the service's name as ``Host``, although the container has another name."""
    text = "".join(path.read_text() for path in sorted((root / FOLDER).glob("*.yml")))
    called = set(re.findall(r"([a-z][\w.-]+):(?:19400|19401)\b", text))
    assert called == {"relay", "demo", "host.docker.internal"}
    for name in called:
        environ = compose["services"].get(name, {}).get("environment", {})
        names = {*normalised(environ.get("STALLWATCH_SERVER_ALLOWED_HOSTS", "").split(",")), *own_names()}
        assert is_allowed_host(f"{name}:19400", names), name


@pytest.mark.server
def test_prometheus_and_alertmanager_accept_their_configuration(root: Path, tmp_path: Path) -> None:
    """The check includes every mounted file and the demo's targets, at the container's paths."""
    if not (shutil.which("promtool") and shutil.which("amtool")):
        pytest.skip("promtool and amtool are not installed (Debian: prometheus, prometheus-alertmanager)")
    for targets in ("targets.yml", "targets-demo.yml"):
        text = (root / FOLDER / "prometheus.yml").read_text()
        text = text.replace("/etc/prometheus/rules", str(root / "rules/prometheus"))
        text = text.replace("/etc/prometheus/targets.yml", str(root / FOLDER / targets))
        text = text.replace("/etc/prometheus/targets.d", str(root / FOLDER / "targets.d"))
        assert "/etc/prometheus" not in text
        (tmp_path / "prometheus.yml").write_text(text)
        _passes("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    _passes("amtool", "check-config", str(root / FOLDER / "alertmanager.yml"))


@pytest.mark.server
def test_guide_shows_the_routes_and_the_inhibition_of_the_compose_file(root: Path, tmp_path: Path) -> None:
    guide = (root / "docs/howto/prometheus.md").read_text()
    (shown,) = [
        text for text in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "inhibit_rules" in text
    ]
    found, given = yaml.safe_load(shown), yaml.safe_load((root / FOLDER / "alertmanager.yml").read_text())
    assert found["inhibit_rules"] == given["inhibit_rules"]
    (watchdog, alerts), (own,) = found["route"]["routes"], given["route"].pop("routes")
    assert watchdog == own
    assert {**alerts, "matchers": []} == {**given["route"], "matchers": []}
    if shutil.which("amtool"):
        (tmp_path / "alertmanager.yml").write_text(shown)
        _passes("amtool", "check-config", str(tmp_path / "alertmanager.yml"))


def test_grafana_provisioning_uses_known_keys(root: Path, compose: dict[str, Any]) -> None:
    """The keys are those of pkg/services/provisioning/{datasources,dashboards}/types.go in Grafana."""
    folder = root / FOLDER / "grafana"
    sources = yaml.safe_load((folder / "datasources.yml").read_text())
    boards = yaml.safe_load((folder / "dashboards.yml").read_text())
    assert sources["apiVersion"] == boards["apiVersion"] == 1
    assert sources.keys() <= {"apiVersion", "datasources", "deleteDatasources"}
    assert boards.keys() <= {"apiVersion", "providers"}
    (source,) = sources["datasources"]
    assert source.keys() <= {
        *("name", "type", "access", "orgId", "uid", "url", "user", "database", "basicAuth", "basicAuthUser"),
        *(
            "withCredentials",
            "isDefault",
            "correlations",
            "jsonData",
            "secureJsonData",
            "editable",
            "version",
        ),
    }
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    assert source["url"].removeprefix("http://").partition(":")[0] in compose["services"]
    (provider,) = boards["providers"]
    assert provider.keys() <= {
        *("name", "orgId", "folder", "folderUid", "type", "disableDeletion", "editable", "options"),
        *("updateIntervalSeconds", "allowUiUpdates"),
    }
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    assert provider["type"] == "file"
    assert [source for source, place, *_ in mounts if place == provider["options"]["path"]] == [
        f"./{FOLDER}/grafana/boards"
    ]


def test_docker_compose_accepts_the_file(root: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker with its compose plugin is not installed")
    for options in ((), ("--profile", "grafana"), ("--env-file", f"{FOLDER}/demo.env", "--profile", "demo")):
        _passes(docker, "compose", *options, "config", "--quiet", cwd=root)


def _passes(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
