"""Names in Host and Origin headers; tests/security tries them on servers."""

from __future__ import annotations

import pytest

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
            for text in ("[1:2]", "[::1]x", "::1", "\u212a.example", "a:123456", "[fe80::1%25eth0]")
        ),
    ],
)
def test_the_name_of_an_authority(authority: str, name: str | None) -> None:
    assert host_name(authority) == name


def test_configured_names_are_compared_as_browsers_send_them() -> None:
    names = normalised([" Node7.Example.org:19400 ", "*.Bücher.example.", "x" * 64, "[fd00::7]"])
    assert names == {"node7.example.org", "*.xn--bcher-kva.example", "fd00::7"}
    assert is_allowed_host("a.xn--bcher-kva.example:1", names)
    assert not is_allowed_host("xn--bcher-kva.example", names)
    assert is_allowed_host("whatever.example", normalised(["*"]))
    assert not is_allowed_host("bad name", normalised(["*"]))
    assert normalised(["", "http://node7", "a/b", "*.", "*.*", "n*", "**"]) == frozenset()


def test_an_origin_is_the_same_with_host_and_port_only() -> None:
    assert is_same_origin("https://Node7:8501", "node7:8501")
    for origin in ("https://node7", "https://node7:8502", "ftp://node7:8501", "node7:8501", "null", ""):
        assert not is_same_origin(origin, "node7:8501")


def test_each_refusal_names_the_setting() -> None:
    for hosts, origins in ((["evil.example"], []), ([], []), (["localhost"], ["null"]), (["a", "a"], [])):
        refusal = refusal_of(hosts, origins, ())
        assert refusal is not None and "allowed_hosts under [server]" in refusal.reason
    assert refusal_of(["evil.example"], [], (), known_caller=True) is None


def test_the_name_in_an_address() -> None:
    assert name_in("https://Watch.example.org:8443/x") == ["watch.example.org"]
    assert name_in("") == name_in("http://[bad") == []
