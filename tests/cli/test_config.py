"""Defaults, file, environment and flags: the later source wins, and an error names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stallwatch.config.handover import alert_settings, dashboard_settings, exporter_settings
from stallwatch.config.keys import KEYS, Key
from stallwatch.config.loading import Config, Setting, load
from stallwatch.config.values import from_text, from_toml


def load_text(tmp_path: Path, toml: str, environ: dict[str, str] | None = None, **flags: Any) -> Config:
    (tmp_path / "stallwatch.toml").write_text(toml, encoding="utf-8")
    given = {name.replace("__", "."): Setting(value, "--flag") for name, value in flags.items()}
    return load(flags=given, environ=environ or {}, cwd=tmp_path)


def test_metrics_never_use_the_ports_of_other_servers(tmp_path: Path) -> None:
    config = load_text(tmp_path, "[join]\naddress = 'n1:19402'\nport = 19500\n")
    assert exporter_settings(config).reserved_ports == (19401, 19500, 19402)


def test_defaults_apply_without_configuration(tmp_path: Path) -> None:
    config = load(environ={}, cwd=tmp_path)
    assert config.problems == []
    assert config.file is None
    assert {setting.source for setting in config.settings.values()} == {"default"}
    assert exporter_settings(config).port == 19400
    assert exporter_settings(config).reserved_ports == (19401,)  # the relay's port
    assert alert_settings(config).urls == ()
    assert dashboard_settings(config, insecure=False).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "value", "source"),
    [
        ("", {}, {}, 19400, "default"),
        ("[exporter]\nport = 1", {}, {}, 1, "stallwatch.toml:2"),
        ("[exporter]\nport = 1", {"STALLWATCH_EXPORTER_PORT": "2"}, {}, 2, "STALLWATCH_EXPORTER_PORT"),
        ("[exporter]\nport = 1", {"STALLWATCH_EXPORTER_PORT": "2"}, {"exporter__port": 3}, 3, "--flag"),
        ("", {"STALLWATCH_EXPORTER_PORT": "2"}, {}, 2, "STALLWATCH_EXPORTER_PORT"),
        ("[exporter]\nport = 1", {}, {"exporter__port": 3}, 3, "--flag"),
    ],
)
def test_later_source_has_precedence(
    tmp_path: Path, toml: str, environ: dict[str, str], flags: dict[str, Any], value: int, source: str
) -> None:
    setting = load_text(tmp_path, toml, environ, **flags).settings["exporter.port"]
    assert setting.value == value
    assert setting.source.endswith(source)


# Tables can only come from the file: test_routes_config.py.
@pytest.mark.parametrize("key", [key for key in KEYS if key.kind != "routes"], ids=lambda key: key.full_name)
def test_every_key_can_come_from_a_file_and_from_a_variable(tmp_path: Path, key: Any) -> None:
    choice = key.choices[-1:] and key.choices[-1]
    text = {"int": "7", "number": "7.5", "choice": choice, "reaction": "abort", "web": "http://b"}.get(
        key.kind, str(not key.default).lower() if key.kind == "bool" else "a://b"
    )
    value: Any = {"int": 7, "number": 7.5, "bool": not key.default}.get(key.kind, text)
    as_list = key.kind in ("texts", "paths", "urls", "patterns")
    spelt = f'["{text}"]' if as_list else str(text) if key.kind in ("int", "number", "bool") else f'"{text}"'
    expected = from_toml(key, [value] if as_list else value, tmp_path)
    from_file = load_text(tmp_path, f"[{key.section}]\n{key.name} = {spelt}\n")
    assert from_file.problems == []
    assert from_file[key.full_name] == expected != key.default
    from_variable = load(environ={key.variable: text}, cwd=tmp_path / "..")
    assert from_variable.problems == []
    assert from_variable.settings[key.full_name].source == key.variable
    assert from_text(key, text, tmp_path) == expected


def test_configuration_files_have_an_order_of_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name for name in ("flag.toml", "env.toml", "stallwatch.toml")}
    of_user = tmp_path / "config-home" / "stallwatch" / "stallwatch.toml"
    of_user.parent.mkdir(parents=True)
    for number, path in enumerate([*files.values(), of_user], 1):
        path.write_text(f"[exporter]\nport = {number}\n")
    environ = {"STALLWATCH_CONFIG": "env.toml"}
    assert load(files["flag.toml"], environ=environ, cwd=tmp_path)["exporter.port"] == 1
    assert load(environ=environ, cwd=tmp_path)["exporter.port"] == 2
    assert load(environ={}, cwd=tmp_path)["exporter.port"] == 3
    files["stallwatch.toml"].unlink()
    assert load(environ={}, cwd=tmp_path)["exporter.port"] == 4


def test_home_is_set_by_the_short_or_the_long_variable(tmp_path: Path) -> None:
    toml = '[run]\nhome = "in-file"\n'
    assert load_text(tmp_path, toml)["run.home"] == tmp_path / "in-file"
    short = {"STALLWATCH_HOME": "/short"}
    assert load_text(tmp_path, toml, short)["run.home"] == Path("/short")
    long = {**short, "STALLWATCH_RUN_HOME": "/long"}
    assert load_text(tmp_path, toml, long)["run.home"] == Path("/long")


def test_lists_in_variables_keep_commas_inside_urls(tmp_path: Path) -> None:
    urls = "slack://a/b/c/#x, mailto://u:p@host?to=a@x.org,b@x.org,json://h:1/p"
    environ = {"STALLWATCH_ALERTS_URLS": urls, "STALLWATCH_DASHBOARD_TARGETS": "n1:19400, n2:19400,"}
    config = load(environ=environ, cwd=tmp_path)
    assert config["alerts.urls"] == (
        "slack://a/b/c/#x",
        "mailto://u:p@host?to=a@x.org,b@x.org",
        "json://h:1/p",
    )
    assert config["dashboard.targets"] == ("n1:19400", "n2:19400")
    untidy = load(
        environ={"STALLWATCH_ALERTS_URLS": " slack://a/b/c ,\n json://h:1/p lark://t , "}, cwd=tmp_path
    )
    assert untidy["alerts.urls"] == ("slack://a/b/c", "json://h:1/p", "lark://t")


@pytest.mark.parametrize(
    ("toml", "line", "said"),
    [
        ("[alerts]\nurls = [\n", 2, ("not valid TOML",)),
        ("[alerts\nurls = []\n", 1, ("not valid TOML",)),
        ("x = 1\n[ui]\nlanguage = 'en'\n", 1, ("unknown section [x]", "exporter")),
        ("\n[alert]\n", 2, ("unknown section [alert]", "did you mean alerts?")),
        ("exporter = 5\n", 1, ("must be a section", "[exporter]")),
        (
            "url = ['x']\n",
            1,
            ("unknown key url outside of any section", "urls (not url) under [alerts]"),
        ),
        ("port = 1\n", 1, ("under [exporter] or [join] or [relay] or [dashboard]",)),
        ("[alerts]\nurl = ['json://h']\n", 2, ("unknown key url in [alerts]; did you mean urls?",)),
        ("[[routes]]\nruns = ['a']\n", 1, ("unknown key routes", "write [[alerts.routes]]")),
        (
            "[ui]\nlanguage = 'en'\n[stall]\nflor_seconds = 3\n",
            4,
            ("unknown key flor_seconds", "floor_seconds?"),
        ),
        (
            "[exporter]\nport = 'x'\n",
            2,
            ("exporter.port must be a whole number, not a string", "port = 19400"),
        ),
        ("[exporter]\nport = true\n", 2, ("not true or false",)),
        ("[exporter]\nport = 99999\n", 2, ("between 0 and 65535",)),
        ("[stall]\n\n# c\nfactor = 0.5\n", 4, ("at least 1",)),
        ("[stall]\nfactor = nan\n", 2, ("stall.factor must be",)),
        ("[alerts]\nurls = 'slack://s3cr3t'\n", 2, ("must be a list of strings, not a string", 'urls = ["')),
        ("[alerts]\nurls = ['slack://s3cr3t', 3]\n", 2, ("must be a list of strings",)),
        ("[ui]\nlanguage = 'fr'\n", 2, ("one of en, zh, not 'fr'",)),
        ("ui.language = 'fr'\n", 1, ("one of en, zh",)),
        (
            "[dashboard]\nurl = 'javascript:alert(1)'\n",
            2,
            ("dashboard.url must be an address that begins with http:// or https://", 'url = "https://'),
        ),
        ("[alerts]\ndeadman_url = 'file:///s3cr3t'\n", 2, ("alerts.deadman_url must be", "http://")),
        ("[alerts]\ndeadman_url = 'hc-ping.com/s3cr3t'\n", 2, ("alerts.deadman_url must be", "https://")),
        ("[alerts]\ndeadman_url = 'https:///s3cr3t'\n", 2, ("alerts.deadman_url must be",)),
    ],
)
def test_problems_are_reported_with_file_line_and_remedy(
    tmp_path: Path, toml: str, line: int, said: tuple[str, ...]
) -> None:
    config = load_text(tmp_path, toml)
    problem = config.problems[0]
    assert (problem.file, problem.line) == (str(tmp_path / "stallwatch.toml"), line)
    assert problem.remedy
    for words in said:
        assert words in str(problem)
    assert "s3cr3t" not in str(problem)


@pytest.mark.parametrize("key", [key for key in KEYS if key.kind == "web"], ids=lambda key: key.full_name)
def test_invalid_web_address_gets_an_example_for_its_own_key(tmp_path: Path, key: Key) -> None:
    (problem,) = load_text(tmp_path, f"[{key.section}]\n{key.name} = 'no-address'\n").problems
    assert problem.remedy == f'in stallwatch.toml, write, for example, {key.name} = "https://…"'


def test_invalid_entry_does_not_disable_valid_chats(tmp_path: Path) -> None:
    config = load_text(tmp_path, "[alerts]\nurls = ['json://sound/s3cr3t', 5, ['x']]\n")
    assert config["alerts.urls"] == ("json://sound/s3cr3t",)
    messages = [(problem.line, problem.message) for problem in config.problems]
    assert messages == [
        (2, "alerts.urls must be a list of strings: entry 2 is a number, and is ignored"),
        (2, "alerts.urls must be a list of strings: entry 3 is a list, and is ignored"),
    ]


@pytest.mark.parametrize("urls", ["[5]", "'json://one'", "{team = 'json://one'}"])
def test_configuration_without_a_valid_chat_is_reported_prominently(tmp_path: Path, urls: str) -> None:
    config = load_text(tmp_path, f"[alerts]\nurls = {urls}\n")
    assert config["alerts.urls"] == ()
    assert len(config.problems) == 2 and "NOBODY WILL BE NOTIFIED" in str(config.problems[1])
    routed = load_text(tmp_path, f"[alerts]\nurls = {urls}\n[[alerts.routes]]\nurls = ['json://two']\n")
    assert "NOBODY" not in " ".join(map(str, routed.problems))


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            "urls = ['json://s3cr3t']\n",
            "unknown key urls outside of any section; write urls under [alerts]",
        ),
        ("[alert]\nurls = ['json://s3cr3t']\n", "unknown section [alert]; did you mean alerts?"),
        ("[[routes]]\nurls = ['json://s3cr3t']\n", "write [[alerts.routes]]"),
        ("[stall]\nurls = ['json://s3cr3t']\n", "unknown key urls in [stall]; write it under [alerts]"),
        ("[chat]\nurl = 'json://s3cr3t'\n", "unknown section [chat]"),
    ],
)
def test_chats_in_a_wrong_section_are_reported_prominently(tmp_path: Path, toml: str, expected: str) -> None:
    problem, loud = load_text(tmp_path, toml).problems
    assert expected in str(problem) and "NOBODY WILL BE NOTIFIED" in str(loud) and loud.line in (1, 2)
    assert "s3cr3t" not in f"{problem}{loud}"
    assert len(load_text(tmp_path, f"{toml}[alerts]\nurls = ['json://one']\n").problems) == 1
    assert len(load_text(tmp_path, "[alert]\nlanguage = 'en'\n").problems) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[alerts]\nurls = ['json://one'\n[stall]\n", 3),
        (b"[stall]\nfactor = = 3\n\n[[ alerts.routes ]]\nurls = ['json://one']\n", 2),
        (b"# \xff\n[alerts]\nurls = ['json://one']\n", None),
    ],
)
def test_unreadable_file_is_reported_with_a_warning_about_its_chats(
    tmp_path: Path, text: bytes, line: int | None
) -> None:
    file = tmp_path / "stallwatch.toml"
    file.write_bytes(text)
    first, loud = load(file, environ={}).problems
    assert (first.line, loud.line) == (line, line) and "json" not in str(first)
    assert "NOBODY WILL BE NOTIFIED" in str(loud) and "stallwatch alerts test" in str(loud)
    given = load(file, environ={"STALLWATCH_ALERTS_URLS": "json://two"})
    assert "CHATS THAT ONLY THIS FILE CONFIGURES WILL NOT BE NOTIFIED" in str(given.problems[1])
    assert len(given.problems) == 2 and given["alerts.urls"] == ("json://two",)
    file.write_bytes(text.replace(b"alerts", b"relay"))
    assert len(load(file, environ={}).problems) == 1


def test_invalid_key_does_not_hide_the_other_keys(tmp_path: Path) -> None:
    config = load_text(tmp_path, "[exporter]\nport = 'x'\nhost = '::1'\n[stall]\nfactor = 4\nwhat = 1\n")
    assert [problem.line for problem in config.problems] == [2, 6]
    assert (config["exporter.port"], config["exporter.host"], config["stall.factor"]) == (19400, "::1", 4.0)


def test_invalid_variables_are_reported(tmp_path: Path) -> None:
    environ = {
        "STALLWATCH_EXPORTER_PORT": "many",
        "STALLWATCH_ALERT_URLS": "slack://s3cr3t",
        "STALLWATCH_MATCHER": "re2",
        "STALLWATCH_SOMETHING_ELSE": "1",
    }
    wrong, misspelt, loud = load(environ=environ, cwd=tmp_path).problems
    assert "STALLWATCH_EXPORTER_PORT: must be a whole number, not 'many'" in str(wrong)
    assert "did you mean STALLWATCH_ALERTS_URLS?" in str(misspelt)
    assert "NOBODY WILL BE NOTIFIED" in str(loud)
    assert "s3cr3t" not in f"{misspelt} {loud}"


def test_missing_or_binary_configuration_file_is_reported(tmp_path: Path) -> None:
    missing, loud = load(tmp_path / "none.toml", environ={}, cwd=tmp_path).problems
    assert "none.toml: cannot be read: No such file" in str(missing)
    assert "none.toml: no setting in this file has any effect: NOBODY WILL BE NOTIFIED" in str(loud)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (binary,) = load(tmp_path / "binary.toml", environ={}, cwd=tmp_path).problems
    assert "UTF-8" in str(binary)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.toml").write_text("[rules]\ndirs = ['mine', '/abs', '~/r']\n")
    config = load(tmp_path / "sub" / "c.toml", environ={}, cwd=tmp_path)
    assert config["rules.dirs"] == (tmp_path / "sub" / "mine", Path("/abs"), Path("~/r").expanduser())


def test_each_package_gets_its_settings(tmp_path: Path) -> None:
    toml = """
[run]
home = "state"
keep_days = 3
[exporter]
tls_certificate = "c.pem"
[stall]
floor_seconds = 5
[alerts]
urls = ["slack://a"]
min_severity = "critical"
incidents_url = "postgresql://h/db"
[dashboard]
targets = ["n1:1"]
[rules]
dirs = ["mine"]
[ui]
language = "zh"
"""
    config = load_text(tmp_path, toml)
    exporter = exporter_settings(config)
    assert (exporter.home, exporter.keep_days, exporter.stall_floor_seconds) == (tmp_path / "state", 3, 5.0)
    assert (exporter.tls_certificate, exporter.language) == (tmp_path / "c.pem", "zh")
    alerts = alert_settings(config)
    assert (alerts.urls, alerts.language, alerts.min_severity) == (("slack://a",), "en", "critical")
    dashboard = dashboard_settings(config, insecure=True)
    assert (dashboard.targets, dashboard.language, dashboard.insecure) == (("n1:1",), "zh", True)
    assert (dashboard.rules, dashboard.incidents_url) == ((str(tmp_path / "mine"),), "postgresql://h/db")


def test_home_folder_of_an_unknown_user_is_reported_and_not_fatal(tmp_path: Path) -> None:
    environ = {
        "STALLWATCH_HOME": "~no-such-user/x",
        "STALLWATCH_CONFIG": "~no-such-user/y.toml",
        "STALLWATCH_RULES_DIRS": "good,~no-such-user/z",
        "STALLWATCH_EXPORTER_TLS_KEY": "~no-such-user/k.pem",
    }
    config = load(environ=environ, cwd=tmp_path)
    assert sorted(problem.file for problem in config.problems) == sorted(environ)
    assert all("no-such-user" in str(problem) for problem in config.problems)
    assert config["run.home"].name == "stallwatch" and config["rules.dirs"] == ()
    config = load_text(
        tmp_path,
        "[run]\nhome = '~no-such-user/x'\n[rules]\ndirs = ['a\\u0000b']\n".replace("'a", '"a').replace(
            "b'", 'b"'
        ),
    )
    assert [problem.line for problem in config.problems] == [2, 4]


def test_short_home_variable_has_the_same_meaning_in_all_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from stallwatch_exporter.settings import state_home

    monkeypatch.chdir(tmp_path)
    for found, incidents_named in (
        ("here", tmp_path / "here"),
        ("/there", Path("/there")),
        ("~/x", Path.home() / "x"),
    ):
        monkeypatch.setenv("STALLWATCH_HOME", found)
        assert state_home() == load()["run.home"] == incidents_named
    monkeypatch.delenv("STALLWATCH_HOME")
    assert state_home() == load()["run.home"]


def test_deleted_or_inaccessible_working_directory_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert load(environ={}).problems == []

    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    assert load(environ={}, cwd=tmp_path).problems == []


@pytest.mark.parametrize("value", ["report", "abort", "command scontrol requeue $SLURM_JOB_ID"])
def test_valid_reactions_to_a_stall_are_accepted(tmp_path: Path, value: str) -> None:
    assert load_text(tmp_path, f"[stall]\non_stall = {value!r}\n")["stall.on_stall"] == value
    assert load(environ={"STALLWATCH_STALL_ON_STALL": f" {value} "}, cwd=tmp_path)["stall.on_stall"] == value


@pytest.mark.parametrize("value", ["", "abort now", "command", "command  ", "restart"])
def test_invalid_reaction_to_a_stall_is_reported(tmp_path: Path, value: str) -> None:
    config = load_text(tmp_path, f"[stall]\non_stall = {value!r}\n")
    assert config["stall.on_stall"] == "report"
    assert "must be report, abort, or command followed by" in str(config.problems[0])
