"""/metrics over TLS, and never without encryption if TLS was requested."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Gauge("answer", "One number.", registry=made).set(42)
    return made


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed"
    folder = tmp_path_factory.mktemp("tls")
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    both.write_text(certificate.read_text() + key.read_text())
    return both


def test_pem_file_can_contain_certificate_and_key(pem: Path) -> None:
    server = serve(registry(), ExporterSettings(port=0, tls_certificate=pem), pytest.fail)
    assert server is not None and server.url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(pem))
    with urllib.request.urlopen(server.url, timeout=120, context=trusting) as answer:
        assert b"answer 42.0" in answer.read()
    server.close()


def test_clients_without_a_valid_certificate_are_refused(pem: Path) -> None:
    settings = ExporterSettings(port=0, tls_certificate=pem, tls_client_ca=pem)
    server = serve(registry(), settings, pytest.fail)
    assert server is not None and server.url.startswith("https://")
    stranger = ssl.create_default_context(cafile=str(pem))
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=120, context=stranger).read()
    known = ssl.create_default_context(cafile=str(pem))
    known.load_cert_chain(pem)
    with urllib.request.urlopen(server.url, timeout=120, context=known) as answer:
        assert answer.status == 200
    server.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["tls_key"], "tls_certificate is not set; set it, or remove tls_key"),
        (["tls_client_ca"], "tls_certificate is not set; set it, or remove tls_client_ca"),
        (
            ["tls_key", "tls_client_ca"],
            "tls_certificate is not set; set it, or remove tls_key and tls_client_ca",
        ),
    ],
)
def test_incomplete_tls_settings_do_not_fall_back_to_http(pem: Path, given: list[str], words: str) -> None:
    messages: list[str] = []
    settings = ExporterSettings(port=0, **dict.fromkeys(given, pem))  # type: ignore[arg-type]
    assert serve(registry(), settings, messages.append) is None
    assert len(messages) == 1 and words in messages[0]


def test_certificate_without_a_key_does_not_fall_back_to_http(pem: Path) -> None:
    messages: list[str] = []
    alone = pem.with_name("cert.pem")
    settings = ExporterSettings(port=0, tls_certificate=alone, tls_client_ca=alone)
    assert serve(registry(), settings, messages.append) is None
    assert len(messages) == 1 and "cert.pem" in messages[0]
