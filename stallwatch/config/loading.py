"""Load the configuration from defaults, ``stallwatch.toml``, the environment, and flags.

Later sources take precedence. If a value is unusable, a ``ConfigError`` is added to ``Config.problems``,
and the previous value remains effective. Commands can therefore continue if their work matters more than
the configuration.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from stallwatch.config.keys import BY_NAME, KEYS, SECTIONS, Key
from stallwatch.config.trust import Untrusted, distrust_pages, read_if_trusted
from stallwatch.config.values import (
    BadValue,
    did_you_mean,
    example,
    from_text,
    from_toml,
    nearest,
    sound_entries,
)
from stallwatch_exporter.settings import current_folder, state_home, user_path
from stallwatch_rules.text.foreign_json import require_bounded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "stallwatch.toml"
# Other modules read these variables, so do not report them as misspelled keys.
_OTHER_VARIABLES = {
    "STALLWATCH_HOME",
    "STALLWATCH_CONFIG",
    "STALLWATCH_MATCHER",
    "STALLWATCH_DASHBOARD_SETTINGS",
    "STALLWATCH_PROBE",
    "STALLWATCH_PROBE_CLOCK",
    "STALLWATCH_PROBE_DIR",
    # The agent sets the following variables for an on_stall command (stallwatch_exporter/stacks/reaction.py).
    "STALLWATCH_RUN",
    "STALLWATCH_RUN_FOLDER",
}
_IN_FILE = "_FILE"
NO_NOTIFICATION = "NOBODY WILL BE NOTIFIED"
UNREAD = "a file that may name chats"  #: key of a problem with a file that can configure chats
_CHATS = re.compile(r"^[\s\[\"']*alerts\b", re.MULTILINE)
_CHAT_KEYS = ("urls", "escalate_urls")
_LIST_KINDS = ("urls", "texts", "paths", "patterns", "routes")
_NEARLY_ROUTES = ("route", "rout", "router", "routs", "routing")


class ConfigError(ValueError):
    """A problem with the configuration, with its location, its reason, and its fix."""

    def __init__(
        self, file: str, line: int | None, message: str, remedy: str, *, key: str = "", chats: bool = False
    ) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {message}; {remedy}")
        self.file = file
        self.line = line
        self.message = message
        self.remedy = remedy
        self.key = key  #: a key such as "alerts.routes", or "" if commands do not check it
        #: True if configured chats might be missing because of the problem.
        self.loses_chats = chats or key in ("alerts.urls", UNREAD)


@dataclass(frozen=True)
class Setting:
    """A value and its source: ``default``, a file with its line, a variable, or a flag."""

    value: Any
    source: str


@dataclass
class Config:
    """The effective value of every key, and all problems."""

    settings: dict[str, Setting]
    file: Path | None = None
    #: Files and folders that are ignored because other accounts can write them.
    ignored: list[ConfigError] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)
    lines: Sequence[str] = field(default=(), repr=False)  #: lines of the configuration file

    def __getitem__(self, name: str) -> Any:
        """Return the value of a key such as ``alerts.urls``."""
        return self.settings[name].value

    def report(
        self, file: str, line: int | None, message: str, remedy: str, key: str = "", chats: bool = False
    ) -> None:
        """Add a problem with the configuration to ``problems``."""
        self.problems.append(ConfigError(file, line, message, remedy, key=key, chats=chats))


def load(
    explicit: Path | None = None,
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Load the configuration from all sources. Mistakes are stored in ``problems``, not raised."""
    environ = os.environ if environ is None else environ
    cwd = current_folder() if cwd is None else cwd
    config = Config({key.full_name: Setting(key.default, "default") for key in KEYS})
    try:
        named = explicit
        if explicit is None and environ.get("STALLWATCH_CONFIG"):
            named = user_path(environ["STALLWATCH_CONFIG"], cwd)
    except ValueError as error:
        config.report("STALLWATCH_CONFIG", None, str(error), "set it to the path of a file")
    else:
        if named is not None:  # a file that the user named must exist
            config.file = named
            _read_file(config, named)
        else:
            config.file = next((path for path in _usual_files(cwd) if _read_if_trusted(config, path)), None)
    _read_environment(config, environ, cwd)
    _report_no_chats(config)
    config.settings.update(flags or {})
    _leave_out_foreign_rules(config)
    if config["run.home"] is None:
        config.settings["run.home"] = Setting(state_home({}), "default")
    _check_home(config)
    return config


def _check_home(config: Config) -> None:
    """Report a problem if the state folder is a file. Otherwise, the file would look like an empty folder."""
    home = config.settings["run.home"]
    try:
        there = next((path for path in (home.value, *home.value.parents) if path.exists()), None)
    except OSError:  # for example, access is denied; the code that uses the folder reports the reason
        return
    if there is not None and not there.is_dir():
        message = f"{there} is a file, not a folder, so Stallwatch cannot store its state there"
        config.report(home.source, None, message, "specify the path of a folder", "run.home")


def _usual_files(cwd: Path) -> Iterator[Path]:
    """Yield the paths of the files that exist: the current folder's configuration, then the user's."""
    import platformdirs

    for folder in (cwd, platformdirs.user_config_path("stallwatch")):
        try:
            if (folder / FILE_NAME).is_file():
                yield folder / FILE_NAME
        except OSError:  # for example, a folder without access
            continue


# ---------------------------------------------------------------- the file


def _read_if_trusted(config: Config, path: Path) -> bool:
    """Read the file at `path`, unless other accounts can write to it. Return whether the file was read."""
    try:
        _read_file(config, path, read_if_trusted)
    except Untrusted as reason:
        remedy = (
            "its settings and chats have no effect: make it and its folder writable only by you (chown,"
            f" chmod go-w), or check it and run stallwatch config trust {quote(str(path))}, or use --config"
        )
        config.ignored.append(ConfigError(str(path), None, f"ignored, because {reason}", remedy, chats=True))
        return False
    return True


def _leave_out_foreign_rules(config: Config) -> None:
    """Ignore rule folders that only the configuration file names and whose pages other accounts can write."""
    dirs = config.settings["rules.dirs"]
    if config.file is None or not dirs.source.startswith(str(config.file)):
        return
    kept = []
    for folder in dirs.value:
        # The code that reads the folder reports a missing folder.
        reason = distrust_pages(folder) if os.path.lexists(folder) else None
        if reason is None:
            kept.append(folder)
            continue
        remedy = (
            "its rules have no effect: make its pages and folders writable only by you (chown, chmod -R"
            f" go-w), or use --rules {quote(str(folder))}"
        )
        why = f"ignored, because {reason}"
        config.ignored.append(ConfigError(str(folder), None, why, remedy, key="rules.dirs"))
    config.settings["rules.dirs"] = Setting(tuple(kept), dirs.source)


def _read_file(config: Config, path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> None:
    file = str(path)
    try:
        data = read(path)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        return config.report(file, None, message, "specify the path of a readable file", UNREAD)
    # If the file configures chats, a syntax error means that these chats get no messages.
    unread = UNREAD if _CHATS.search(data.decode("utf-8-sig", "replace")) else ""
    try:
        text = data.decode("utf-8-sig")
        tables = require_bounded(tomllib.loads(text))
    except UnicodeDecodeError:
        return config.report(file, None, "is not UTF-8 text", "save the file as UTF-8", unread)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)|\(at end of document\)", str(error))
        line = int(place[1]) if place and place[1] else max(1, len(text.splitlines()))
        message = str(error)[: place.start()].strip() if place else str(error)
        remedy = "correct this line"
        if "routes" in message:  # two route tables with single brackets
            remedy = "write [[alerts.routes]], with two brackets, for each route"
        return config.report(file, line, f"is not valid TOML: {message}", remedy, unread)
    # Reached if the text contains a number with thousands of digits, or deeply nested brackets.
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        return config.report(file, None, f"cannot be read: {reason}", "simplify the file", unread)
    config.lines = text.splitlines()
    for section, table in tables.items():
        if section not in SECTIONS:
            _report_misplaced(config, file, section, table)
        elif not isinstance(table, dict):
            line_, remedy = line_of(config, section), f"write [{section}] on a separate line"
            config.report(file, line_, f"{section} must be a section", remedy, section)
        else:
            for name, value in table.items():
                _take_from_file(config, path, section, name, value)
    return None


def _take_from_file(config: Config, path: Path, section: str, name: str, value: Any) -> None:
    if section == "alerts" and _are_routes(name, value):
        _take_routes(config, path, name, value)
        return
    line = line_of(config, section, name)
    key = BY_NAME.get(f"{section}.{name}")
    if key is None:
        names = [known.name for known in KEYS if known.section == section]
        near = nearest(name, names)
        remedy = f"{did_you_mean(near)}known keys are {', '.join(names)}"
        meant = f"{section}.{near or name}"
        others = _sections_with(name)
        if others and not near:
            remedy = f"write it under [{'] or ['.join(others)}]"
            meant = f"{others[0]}.{name}" if len(others) == 1 else meant
        config.report(str(path), line, f"unknown key {name} in [{section}]", remedy, meant)
        return
    value, wrong = sound_entries(key, value)
    try:
        good = from_toml(key, value, path.absolute().parent)
        config.settings[key.full_name] = Setting(good, f"{path}:{line}" if line else str(path))
    except BadValue as error:
        wrong.append(error)
    for bad in wrong:
        config.report(str(path), line, f"{key.full_name} {bad}", _remedy(key), key.full_name)


def _are_routes(name: str, value: Any) -> bool:
    """Return whether the value contains routes, even under a misspelled name, so that no route is lost."""
    return name == "routes" or (name in _NEARLY_ROUTES and isinstance(value, list | dict))


def _take_routes(config: Config, path: Path, name: str, value: Any) -> None:
    """Store all readable routes of the file in the configuration and report all mistakes."""
    from stallwatch.config.routes import BadRoute, routes_from

    file, at, key = str(path), line_of(config, "alerts", name), BY_NAME["alerts.routes"]
    if name != "routes":
        remedy = "write [[alerts.routes]]; the table is used as a route"
        config.report(file, at, f"unknown table [[alerts.{name}]]", remedy, key.full_name)
    routes, wrong = routes_from(value)
    placed = [
        (line_of_route(config, error.number, error.key) if isinstance(error, BadRoute) else None, error)
        for error in wrong
    ]
    for line, error in sorted(placed, key=lambda found: found[0] or 0):
        if isinstance(error, BadRoute):
            remedy = _remedy(key)
            if routes:
                remedy = (
                    f"until the route is corrected, all chats get the messages that it can match; {remedy}"
                )
            config.report(file, line or at, f"alerts.routes{error}", remedy, key.full_name)
        else:
            config.report(file, at, f"alerts.{name} {error}", _remedy(key), key.full_name)
    before = config["alerts.routes"]
    config.settings["alerts.routes"] = Setting((*before, *routes), f"{path}:{at}" if at else file)


# ---------------------------------------------------------------- line numbers, which TOML readers omit

_HEADER = re.compile(r"\s*\[+([\w.\-\"'\s]+?)\]")
_KEY = re.compile(r"\s*([\w\-\"'][\w.\-\"'\s]*?)\s*=")
_QUOTES = re.compile(r"[\"'\s]")


def _places(lines: Sequence[str]) -> Iterator[tuple[int, bool, list[str]]]:
    """Yield the location of each table and key in the lines of a TOML file.

    A location consists of the line number, a flag that is True for a table's header, and the parts of the
    full name.
    """
    table: list[str] = []
    for number, line in enumerate(lines, 1):
        if header := _HEADER.match(line):
            table = _QUOTES.sub("", header[1]).split(".")
            yield number, True, table
        elif key := _KEY.match(line):
            yield number, False, [*table, *_QUOTES.sub("", key[1]).split(".")]


def line_of(config: Config, *names: str) -> int | None:
    """Return the number of the line on which a section or a key starts."""
    places = _places(config.lines)
    return next((number for number, _, name in places if tuple(name[: len(names)]) == names), None)


def line_of_route(config: Config, number: int, key: str) -> int | None:
    """Return the line of a key in the route with index `number`, or the line of the route's table."""
    table = None
    for line, is_header, name in _places(config.lines):
        if is_header:
            if table is not None:
                return table
            if name[0] == "alerts" and len(name) == 2 and name[1].startswith("rout"):
                table, number = (line, number) if number == 0 else (None, number - 1)
        elif table is not None and name[2:] == [key]:
            return line
    return table


# ---------------------------------------------------------------- the environment


def _read_environment(config: Config, environ: Mapping[str, str], cwd: Path) -> None:
    if environ.get("STALLWATCH_HOME"):
        try:
            config.settings["run.home"] = Setting(state_home(environ, cwd), "STALLWATCH_HOME")
        except ValueError as error:
            remedy = _remedy(BY_NAME["run.home"])
            config.report("STALLWATCH_HOME", None, str(error), remedy, "run.home")
    for key in KEYS:
        text = environ.get(key.variable)
        if text is None and key.secret:
            text = _secret_in_file(config, key, environ)
        if text is None:
            continue
        try:
            config.settings[key.full_name] = Setting(from_text(key, text, cwd), key.variable)
        except BadValue as error:
            config.report(key.variable, None, str(error), _remedy(key), key.full_name)
    known = {key.variable: key for key in KEYS}
    known |= {key.variable + _IN_FILE: key for key in KEYS if key.secret}
    for name in sorted(set(environ) - set(known) - _OTHER_VARIABLES):
        if name.startswith("STALLWATCH_") and (near := nearest(name, known, cutoff=0.85)):
            config.report(name, None, "unknown variable", f"did you mean {near}?", known[near].full_name)


def _secret_in_file(config: Config, key: Key, environ: Mapping[str, str]) -> str | None:
    """Return a secret from the file that ``<variable>_FILE`` names, as is usual for container images."""
    variable = key.variable + _IN_FILE
    path = environ.get(variable)
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        message, remedy = f"{path} cannot be read: {reason}", "specify the path of a readable file"
        config.report(variable, None, message, remedy, key.full_name)
        return None
    return ",".join(line.strip() for line in lines if line.strip())


def _remedy(key: Key) -> str:
    if key.kind == "routes":
        return "see the description of [[alerts.routes]] in docs/alerts.md"
    return f"in {FILE_NAME}, write, for example, {key.name} = {example(key)}"


def _report_no_chats(config: Config) -> None:
    """Report an additional problem if mistakes left no usable chat. Each mistake alone can seem minor."""
    wrong = next((problem for problem in config.problems if problem.loses_chats), None)
    if wrong is None:
        return
    routed = any(route.urls or route.escalate_urls for route in config["alerts.routes"])
    if not config["alerts.urls"] and not routed:
        effect = NO_NOTIFICATION
    elif wrong.key == UNREAD:
        effect = "CHATS THAT ONLY THIS FILE CONFIGURES WILL NOT BE NOTIFIED"
    else:
        return
    why = (
        "no setting in this file has any effect" if wrong.key == UNREAD else "no chat is left in alerts.urls"
    )
    message = f"{why}: {effect} of stalls and failures"
    remedy = "correct the configuration, then run stallwatch alerts test"
    config.report(wrong.file, wrong.line, message, remedy, wrong.key)


# ---------------------------------------------------------------- names in the wrong place


def _report_misplaced(config: Config, file: str, name: str, value: Any) -> None:
    """Report a name that is at the top level of the file but is not the name of a section."""
    line, chats = line_of(config, name), _names_chats({name: value})
    several = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    tables = several or isinstance(value, dict)
    if key := _key_like(name, value, tables):
        sections = _sections_with(key)
        places = " or ".join(f"[[{section}.{key}]]" if tables else f"[{section}]" for section in sections)
        meant = f"{sections[0]}.{key}" if len(sections) == 1 else ""
        written = name if name == key else f"{key} (not {name})"
        remedy = f"write {places}" if tables else f"write {written} under {places}"
        config.report(file, line, f"unknown key {name} outside of any section", remedy, meant, chats)
    else:
        near = nearest(name, SECTIONS)
        remedy = f"{did_you_mean(near)}known sections are {', '.join(SECTIONS)}"
        config.report(file, line, f"unknown section [{name}]", remedy, near, chats)


def _sections_with(name: str) -> list[str]:
    return [key.section for key in KEYS if key.name == name]


def _key_like(name: str, value: Any, tables: bool) -> str:
    """Return the most similar key name, or "" if a section name is more similar."""
    kinds = ("routes",) if tables else _LIST_KINDS if isinstance(value, list) else ()
    known = sorted({key.name for key in KEYS if not kinds or key.kind in kinds})
    near = name if name in known else nearest(name, known)
    return near if near == name or nearest(name, [*SECTIONS, near], cutoff=0) == near else ""


def _names_chats(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_names_chats, value))
    return isinstance(value, dict) and any(
        (bool(inner) and bool(nearest(name, _CHAT_KEYS, cutoff=0.8))) or _names_chats(inner)
        for name, inner in value.items()
    )
