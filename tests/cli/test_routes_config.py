from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch.config import routes
from stallwatch.config.loading import load
from stallwatch_alerts.routing import Route, routed_chats

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


def test_routes_are_shown_without_secrets(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(GOOD.replace("tgram://s3cr3t/1", "json://host/s3cr3t"))
    result = stallwatch("config", "show")
    assert result.exit_code == 0
    assert "Route(prod-*, critical); Route(memory)" in result.stdout
    assert "s3cr3t" not in result.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run = ['a']", "did you mean runs?"),
        ("runs = 3", "must be a list of strings"),
        ("severities = ['fatal']", "must be one of info, warning, critical"),
        ("quiet = '22-7'\ntimezone = 'Asia/Shanghai'", "two times of the day"),
        ("quiet = '25:00-07:00'\ntimezone = 'Asia/Shanghai'", "two times of the day"),
        ("quiet = '22:00-07:00'", 'timezone = "Asia/Shanghai"'),
        ("timezone = 'Mars/Base'\nquiet = '22:00-07:00'", "IANA"),
        ("timezone = '/etc/passwd'\nquiet = '22:00-07:00'", "IANA"),
        ("severities = ['criticl']", "not 'criticl' (did you mean critical?)"),
        ("quiet = '25:00-07:00'\ntimezone = 'Asia/Shanghai'", "not '25:00-07:00'"),
        ("timezone = 'Europe/Berln'\nquiet = '22:00-07:00'", "'Europe/Berln' (did you mean Europe/Berlin?)"),
        ("escalate_minutes = 'soon'", "not 'soon'"),
        ("runs = ['a', 5]", "entry 2 is a number"),
        ("runs = ['a', '']", "entry 2 is empty"),
        ("urls = ['json://s3cr3t', 5]", "entry 2 is a number, and is ignored"),
        ("escalate_minutes = 5", "must be set together with escalate_urls"),
        ("escalate_urls = ['slack://s3cr3t']", "must be set together with escalate_urls"),
        ("escalate_minutes = true", "a number of minutes"),
        ("continue = 'yes'", "true or false"),
    ],
)
def test_problems_are_reported_with_their_lines(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "stallwatch.toml").write_text(
        f"[alerts]\n[[alerts.routes]]\nruns = ['ok']\n\n[[alerts.routes]]\n{line}\n"
    )
    (problem,) = load(cwd=tmp_path, environ={}).problems
    assert said in str(problem) and "alerts.routes[2]" in str(problem)
    assert problem.line in (5, 6, 7)
    assert "s3cr3t" not in str(problem)


def test_mistakes_of_a_route_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(
        "[[alerts.routes]]\nquiet = '25:00-07:00'\ntimezone = 'Mars/Base'\n"
        "severities = ['criticl']\nseverity = 'x'\n"
    )
    assert [problem.line for problem in load(cwd=tmp_path, environ={}).problems] == [2, 3, 4, 5]


def test_invalid_entry_of_a_route_does_not_affect_its_valid_chats(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text("[[alerts.routes]]\nurls = ['json://one', 5]\n")
    (route,) = load(cwd=tmp_path, environ={})["alerts.routes"]
    assert route.urls == ("json://one",) and route.broken


def test_routes_in_another_form_are_reported(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text("[alerts]\nroutes = 'all'\n")
    (problem,) = load(cwd=tmp_path, environ={}).problems
    assert "[[alerts.routes]]" in str(problem) and problem.line == 2


BROKEN = """
[alerts]
urls = ["slack://team"]

[[alerts.routes]]
runs = ["sweep-*"]
severity = ["critical"]
quiet = "22-7"
timezone = "Mars/Base"
urls = ["discord://sweeps"]

[[alerts.routes]]
families = ["memory"]
escalate_minutes = "soon"

[[alerts.routes]]
runs = ["prod-*"]
urls = ["lark://prod"]
escalate_minutes = 15
escalate_urls = ["tgram://s3cr3t/1"]
"""


def test_all_mistakes_are_reported_together_and_the_rest_is_used(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(BROKEN)
    config = load(cwd=tmp_path, environ={})
    problems = [(problem.line, problem.message) for problem in config.problems]
    assert [(line, said.split()[0]) for line, said in problems] == [
        (7, "alerts.routes[1].severity"),
        (8, "alerts.routes[1].quiet"),
        (9, "alerts.routes[1].timezone"),
        (14, "alerts.routes[2].escalate_minutes"),
    ]
    assert all("until the route is corrected, all chats" in problem.remedy for problem in config.problems)
    assert [route.broken for route in config["alerts.routes"]] == [True, True, False]
    assert config["alerts.routes"][2].escalate_after == 900.0


def test_incidents_that_a_broken_route_can_match_go_to_all_chats(tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(BROKEN)
    config = load(cwd=tmp_path, environ={})

    def chats_of(run: str, family: str) -> dict[str, float]:
        found = routed_chats(
            config["alerts.urls"], config["alerts.routes"], run, "critical", family, "x", 1000.0
        )
        return {stop.url: stop.not_before for stop in found}

    everybody = {"slack://team": 0.0, "discord://sweeps": 0.0, "lark://prod": 0.0}
    assert chats_of("sweep-3", "data") == everybody
    assert chats_of("prod-1", "data") == {"lark://prod": 0.0, "tgram://s3cr3t/1": 1900.0}
    assert chats_of("prod-1", "memory") == everybody | {"tgram://s3cr3t/1": 1900.0}
    assert chats_of("mine", "data") == {"slack://team": 0.0}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[alerts.routes]\nruns = ['a']\nurls = ['slack://a']", 2, "two brackets"),
        ("[[alerts.route]]\nruns = ['a']\nurls = ['slack://a']", 2, "write [[alerts.routes]]"),
        ("[[alerts.'routes']]\nruns = 5\nurls = ['slack://a']", 3, "must be a list of strings"),
        ("[alerts]\nroutes = [\n  {runs = 5, urls = ['slack://a']},\n]", 3, "must be a list of strings"),
        ("[alerts]\nroutes = ['a', {urls = ['slack://a']}]", 3, "must be a table"),
    ],
)
def test_misplaced_routes_are_reported_with_their_line_and_still_used(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    (tmp_path / "stallwatch.toml").write_text(f"\n{text}\n")
    config = load(cwd=tmp_path, environ={})
    (problem,) = config.problems
    assert said in str(problem) and problem.line == line
    (route,) = config["alerts.routes"]
    assert route.urls == ("slack://a",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[alerts]]\nlanguage = 'zh'", "write [alerts] on a separate line"),
        ("[alerts.urls]\nteam = 'slack://a'", "must be a list of strings, not a table"),
        ("[alert.routes]\nruns = ['a']", "did you mean alerts?"),
        ("[alerts.routes]\nruns = ['a']\n[alerts.routes]\nruns = ['b']", "[[alerts.routes]]"),
    ],
)
def test_other_wrong_tables_have_a_line_and_a_remedy(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "stallwatch.toml").write_text(f"\n{text}\n")
    problem = load(cwd=tmp_path, environ={}).problems[0]
    assert problem.line is not None and said in str(problem)


def test_mistake_in_many_tables_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of time zones is a folder, and a search for similar names is slow."""
    calls: list[str] = []
    monkeypatch.setattr(routes, "available_timezones", lambda: calls.append("zones") or {"Europe/Berlin"})
    routes._zones.cache_clear()
    table = {"quiet": "22:00-07:00", "timezone": "Europe/Berlim", "urls": ["slack://a"]}
    try:
        _, problems = routes.routes_from([table] * 100)
    finally:
        routes._zones.cache_clear()
    assert len(problems) == 100 and all("did you mean Europe/Berlin?" in str(problem) for problem in problems)
    assert calls == ["zones"]
