from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch.config import load
from stallwatch_alerts.routing import Route

Stallwatch = Callable[..., Result]

GOOD = """
[alerts]
urls = ["slack://a/b/c"]

[[alerts.routes]]
runs = ["prod-*"]
severities = "critical"
escalate_minutes = 15
escalate_urls = ["tgram://s3cr3t/1"]

[[alerts.routes]]
families = ["memory"]
quiet = "22:00-07:00"
timezone = "Asia/Shanghai"
continue = true
"""


def test_routes_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(GOOD)
    config = load(cwd=tmp_path, environ={})
    assert config.problems == []
    first, second = config["alerts.routes"]
    assert first == Route(
        runs=("prod-*",),
        severities=("critical",),
        escalate_after=900.0,
        escalate_urls=("tgram://s3cr3t/1",),
    )
    assert second.go_on and second.quiet is not None and str(second.quiet.zone) == "Asia/Shanghai"


def test_they_are_shown_without_their_secrets(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(GOOD)
    result = stallwatch("config", "show")
    assert result.exit_code == 0
    assert "Route(prod-*, critical); Route(memory)" in result.stdout
    assert "s3cr3t" not in result.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run = ['a']", "did you mean runs?"),
        ("runs = 3", "must be a list of strings"),
        ("severities = ['fatal']", "must be of info, warning, critical"),
        ("quiet = '22-7'\ntimezone = 'Asia/Shanghai'", "two times of the day"),
        ("quiet = '25:00-07:00'\ntimezone = 'Asia/Shanghai'", "two times of the day"),
        ("quiet = '22:00-07:00'", 'timezone = "Asia/Shanghai"'),
        ("timezone = 'Mars/Base'\nquiet = '22:00-07:00'", "IANA"),
        ("timezone = '/etc/passwd'\nquiet = '22:00-07:00'", "IANA"),
        ("escalate_minutes = 5", "needs escalate_urls"),
        ("escalate_urls = ['slack://s3cr3t']", "needs escalate_urls, and these need it"),
        ("escalate_minutes = true", "a number of minutes"),
        ("continue = 'yes'", "true or false"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "stallwatch.toml").write_text(
        f"[alerts]\n[[alerts.routes]]\nruns = ['ok']\n\n[[alerts.routes]]\n{line}\n"
    )
    (problem,) = load(cwd=tmp_path, environ={}).problems
    assert said in str(problem) and "alerts.routes[2]" in str(problem)
    assert problem.line in (5, 6, 7)
    assert "s3cr3t" not in str(problem)


def test_a_table_of_another_form(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text("[alerts]\nroutes = 'all'\n")
    (problem,) = load(cwd=tmp_path, environ={}).problems
    assert "[[alerts.routes]]" in str(problem) and problem.line == 2
