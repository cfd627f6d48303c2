"""Names in Host and Origin headers; tests/security tries them on servers."""

from __future__ import annotations

import threading

import pytest

from stallwatch_exporter.serving import hosts
from stallwatch_exporter.serving.hosts import (
    host_name,
    is_allowed_host,
    is_same_origin,
    name_in,
    normalised,
    refusal_of,
)


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("Node7.Example.ORG.:19400", "node7.example.org"),
        ("node_7", "node_7"),
        ("127.0.0.1", "127.0.0.1"),
        ("[FD00::7]:80", "fd00::7"),
        ("localhost:", "localhost"),
        *(
            (text, None)
            for text in ("", ".", "a..b", ".a", "a b", "a/b", "a:b:c", "a@b", "a,b", "a\n", "[::1", "[a]")
        ),
        *(
            (text, None)
            for text in (
                "a" * 300,
                "[1:2]",
                "[::1]x",
                "::1",
                "\u212a.example",
                "a:123456",
                "[fe80::1%25eth0]",
            )
        ),
    ],
)
def test_host_name_is_extracted_from_an_authority(authority: str, name: str | None) -> None:
    assert host_name(authority) == name


def test_configured_names_are_normalized() -> None:
    names = normalised([" Node7.Example.org:19400 ", "*.Bücher.example.", "x" * 64, "[fd00::7]"])
    assert names == {"node7.example.org", "*.xn--bcher-kva.example", "fd00::7"}
    assert is_allowed_host("a.xn--bcher-kva.example:1", names)
    assert not is_allowed_host("xn--bcher-kva.example", names)
    assert is_allowed_host("whatever.example", normalised(["*"]))
    assert not is_allowed_host("bad name", normalised(["*"]))
    assert normalised(["", "http://node7", "a/b", "*.", "*.*", "n*", "**"]) == frozenset()


def test_origin_is_compared_by_host_and_port() -> None:
    assert is_same_origin("https://Node7:8501", "node7:8501")
    for origin in ("https://node7", "https://node7:8502", "ftp://node7:8501", "node7:8501", "null", ""):
        assert not is_same_origin(origin, "node7:8501")


def test_default_port_is_optional() -> None:
    for scheme, port in (("https", 443), ("http", 80)):
        assert is_same_origin(f"{scheme}://node7", f"node7:{port}")
        assert is_same_origin(f"{scheme}://[fd00::7]:{port}", "[fd00::7]")
        assert not is_same_origin(f"{scheme}://node7", f"node7:{80 + 443 - port}")
        assert not is_same_origin(f"{scheme}://node7", f"node7:1{port}")


def test_configured_url_is_accepted_behind_a_proxy() -> None:
    url = "https://Dash.example.org/"
    assert refusal_of(["127.0.0.1:8501"], ["https://dash.example.org"], (), url=url) is None
    assert (
        refusal_of(["127.0.0.1:8501"], ["https://dash.example.org:8443"], (), url=url[:-1] + ":8443") is None
    )
    for origin in ("http://dash.example.org", "https://dash.example.org:8443", "https://example.org", "null"):
        assert refusal_of(["127.0.0.1:8501"], [origin], ("dash.example.org",), url=url) is not None
    assert refusal_of(["127.0.0.1:8501"], ["https://"], (), url="") is not None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the cache of name servers."""
    monkeypatch.setattr(hosts, "_full_name", hosts._FullName())


def test_name_server_is_queried_again_after_a_failure(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    now, answer = [100.0], ["node7"]
    monkeypatch.setattr(hosts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(hosts.socket, "getfqdn", lambda: answer[0])
    assert refusal_of(["node7.example.org"], [], ()) is not None
    answer[0] = "node7.example.org"
    now[0] += 59.0
    # the name server is not queried at each request
    assert refusal_of(["node7.example.org"], [], ()) is not None
    now[0] += 2.0
    assert refusal_of(["node7.example.org"], [], ()) is None
    answer[0] = "node7"
    now[0] += 61.0
    # the name server does not answer, so its last answer holds
    assert refusal_of(["node7.example.org"], [], ()) is None


def test_slow_name_server_blocks_only_one_request(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    asked, answered, calls = threading.Event(), threading.Event(), []

    def slow() -> str:
        calls.append(1)
        asked.set()
        answered.wait(60)
        return "node7.example.org"

    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(hosts.socket, "getfqdn", slow)
    first = threading.Thread(target=hosts.own_names, daemon=True)
    first.start()
    assert asked.wait(60)
    assert refusal_of(["evil.example"], [], ()) is not None and refusal_of(["node7"], [], ()) is None
    answered.set()
    first.join(60)
    assert refusal_of(["node7.example.org"], [], ()) is None and len(calls) == 1


def test_mdns_name_of_this_machine_is_accepted(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(hosts.socket, "getfqdn", lambda: "node7")
    assert refusal_of(["NODE7.local:8501"], ["http://node7.local:8501"], ()) is None
    assert refusal_of(["node8.local"], [], ()) is not None
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "node7.evil.example")
    assert refusal_of(["node7.evil.example.local"], [], ()) is not None


def test_refusals_name_the_setting() -> None:
    for names, origins in ((["evil.example"], []), ([], []), (["localhost"], ["null"]), (["a", "a"], [])):
        refusal = refusal_of(names, origins, ())
        assert refusal is not None and "allowed_hosts under [server]" in refusal.reason
    assert refusal_of(["evil.example"], [], (), known_caller=True) is None


def test_host_name_is_extracted_from_a_url() -> None:
    assert name_in("https://Watch.example.org:8443/x") == ["watch.example.org"]
    assert name_in("") == name_in("http://[bad") == []
