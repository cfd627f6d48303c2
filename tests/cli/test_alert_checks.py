"""Names and URLs in alert routes that cannot work are reported at the start, with file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch.cli import watching
from stallwatch.config.loading import load
from stallwatch_alerts.settings import AlertSettings
from stallwatch_rules.pages.catalogue import load_catalogue

Stallwatch = Callable[..., Result]
ROUTES = """\
[alerts]

[[alerts.routes]]
families = ["memroy", "data"]
rules = ["cuda-*", "cuda-oon"]
urls = ["json://127.0.0.1:1/s3cr3t"]

[[alerts.routes]]
runs = ["prod-*"]
urls = ["slakc://s3cr3t/b/c"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "stallwatch.toml"
    written.write_text(ROUTES)
    return written


def test_unknown_names_are_reported_with_the_nearest_names(stallwatch: Stallwatch, file: Path) -> None:
    result = stallwatch("config", "show")
    assert result.exit_code == 2 and "s3cr3t" not in result.output
    messages = [line for line in result.stderr.splitlines() if line.startswith("stallwatch: ")]
    assert [line.split(": ", 2)[1] for line in messages] == [f"{file}:{line}" for line in (5, 4, 10)]
    rule, family, url = messages
    assert "alerts.routes[1].rules: unknown rule 'cuda-oon'" in rule and "cuda-oom" in rule
    assert "unknown family 'memroy'; did you mean memory" in family
    assert "alerts.routes[2].urls: slakc://" in url and "did you mean 'slack'?" in url


def test_alerts_test_reports_mistakes_in_routes(stallwatch: Stallwatch, file: Path) -> None:
    result = stallwatch("alerts", "test")
    assert result.exit_code == 1
    assert "cuda-oom" in result.stderr and "2 of 2 chats" in result.stderr
    assert f"→ {file}:6 (alerts.routes[1].urls)" in result.stdout
    assert f"→ {file}:10 (alerts.routes[2].urls)" in result.stdout


def test_mistake_in_a_route_does_not_prevent_other_commands(stallwatch: Stallwatch, file: Path) -> None:
    file.write_text("[[alerts.routes]]\nrun = ['a']\n")
    result = stallwatch("alerts", "list")
    assert result.exit_code == 0 and "did you mean runs?" in result.stderr
    file.write_text("[alerts]\nincidents_url = 5\n")  # the database of the incidents is unknown
    assert stallwatch("alerts", "list").exit_code == 2


def test_unmatched_messages_go_to_every_chat(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    given: list[AlertSettings] = []
    monkeypatch.setattr(watching, "print_notice", said.append)
    monkeypatch.setattr(
        "stallwatch_alerts.sink.ChatSink", lambda settings, *_, **__: given.append(settings) or None
    )
    watching.Destinations(load(file, environ={}), load_catalogue(())).close()
    assert any(f"{file}:4" in line for line in said) and "go to all chats" in said[-1]
    assert given[0].routes[-1].broken


def test_unusable_url_of_a_run_is_reported_with_file_and_line(file: Path) -> None:
    with pytest.raises(Exception, match="did you mean 'slack'") as raised:
        watching.connecting(load(file, environ={}), "slakc://s3cr3t/b/c")
    assert f"{file}:10" in str(raised.value) and "s3cr3t" not in str(raised.value)
    assert "NOBODY" not in str(raised.value)


def test_configuration_without_a_usable_chat_is_reported_prominently(
    stallwatch: Stallwatch, file: Path
) -> None:
    file.write_text("[alerts]\nurls = ['foo://bar', 'slakc://s3cr3t/b/c']\n")
    with pytest.raises(Exception, match="NOBODY WILL BE NOTIFIED"):
        watching.connecting(load(file, environ={}), "foo://bar")
    *wrong, loud = stallwatch("config", "show").stderr.splitlines()
    assert len(wrong) == 2 and "NOBODY WILL BE NOTIFIED" in loud and f"{file}:2" in loud
