"""What is in force: the defaults, ``stallwatch.toml``, the environment and flags; later wins.

A value that cannot be used becomes a ``ConfigError`` in ``Config.problems`` and the one before it stays in
force, so that a command for which the configuration matters less than its work can go on.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stallwatch.config.keys import BY_NAME, KEYS, SECTIONS, Key
from stallwatch.config.routes import BadRoute, line_in_route, routes_from
from stallwatch.config.trust import Untrusted, read_if_trusted
from stallwatch.config.values import BadValue, from_text, from_toml, sound_entries

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "stallwatch.toml"
# Understood elsewhere, so no misspelt key.
_OTHER_VARIABLES = {
    "STALLWATCH_HOME",
    "STALLWATCH_CONFIG",
    "STALLWATCH_MATCHER",
    "STALLWATCH_DASHBOARD_SETTINGS",
    "STALLWATCH_PROBE",
    "STALLWATCH_PROBE_CLOCK",
    "STALLWATCH_PROBE_DIR",
    # What an on_stall command is told (stallwatch_exporter/stacks/reaction.py).
    "STALLWATCH_RUN",
    "STALLWATCH_RUN_FOLDER",
}
_LIKENESS = 0.85
_IN_FILE = "_FILE"
NOBODY = "NOBODY WILL BE TOLD"
UNREAD = "a file that may name chats"  #: as the key of a problem
_CHATS = re.compile(r"^[\s\[\"']*alerts\b", re.MULTILINE)
_CHAT_KEYS = ("urls", "escalate_urls")
_LIST_KINDS = ("urls", "texts", "paths", "routes")
_NAME_LIKENESS = 0.6
_NEARLY_ROUTES = ("route", "rout", "router", "routs", "routing")


class ConfigError(ValueError):
    """What is wrong with the configuration, where, and what to do about it."""

    def __init__(
        self, file: str, line: int | None, message: str, remedy: str, *, key: str = "", chats: bool = False
    ) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {message}; {remedy}")
        self.file = file
        self.line = line
        self.message = message
        self.remedy = remedy
        self.key = key  #: such as "alerts.routes", where it matters to whom
        self.loses_chats = chats or key in ("alerts.urls", UNREAD)  #: that may have been written there


@dataclass(frozen=True)
class Setting:
    """A value and where it comes from: ``default``, a file with its line, a variable or a flag."""

    value: Any
    source: str


@dataclass
class Config:
    """Every key's value in force, and what was wrong."""

    settings: dict[str, Setting]
    file: Path | None = None
    ignored: list[ConfigError] = field(default_factory=list)  #: files that others can write, and why
    problems: list[ConfigError] = field(default_factory=list)
    lines: tuple[str, ...] = field(default=(), repr=False)  #: of the file

    def __getitem__(self, name: str) -> Any:
        """The value of a key such as ``alerts.urls``."""
        return self.settings[name].value


def load(
    explicit: Path | None = None,
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Put the configuration together; what is wrong is in ``problems``."""
    from stallwatch_exporter.settings import current_folder, state_home

    environ = os.environ if environ is None else environ
    cwd = current_folder() if cwd is None else cwd
    config = Config({key.full_name: Setting(key.default, "default") for key in KEYS})
    try:
        named = _named_file(explicit, environ, cwd)
    except ValueError as error:
        config.problems.append(ConfigError("STALLWATCH_CONFIG", None, str(error), "name a file"))
    else:
        if named is not None:
            config.file = named
            _read_file(config, named)
        else:
            config.file = next((path for path in _usual_files(cwd) if _read_if_trusted(config, path)), None)
    _read_environment(config, environ, cwd)
    _tell_if_nobody_hears(config)
    config.settings.update(flags or {})
    if config["run.home"] is None:
        config.settings["run.home"] = Setting(state_home({}), "default")
    _check_home(config.settings["run.home"], config.problems)
    return config


def _check_home(home: Setting, problems: list[ConfigError]) -> None:
    """Tell of a state folder that can be none: reading it, it looks like one in which nothing ran yet."""
    try:
        there = next((path for path in (home.value, *home.value.parents) if path.exists()), None)
    except OSError:  # such as a folder that may not be entered; who uses it tells why
        return
    if there is not None and not there.is_dir():
        message, remedy = f"{there} is a file, and the state needs a folder", "name a folder"
        problems.append(ConfigError(home.source, None, message, remedy, key="run.home"))


def _named_file(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that was named, even if it is missing: that is an error."""
    if explicit is not None or not environ.get("STALLWATCH_CONFIG"):
        return explicit
    from stallwatch_exporter.settings import user_path

    return user_path(environ["STALLWATCH_CONFIG"], cwd)


def _usual_files(cwd: Path) -> Iterator[Path]:
    """The current folder's and the user's, those that exist."""
    if _is_file(cwd / FILE_NAME):
        yield cwd / FILE_NAME
    import platformdirs

    of_user = platformdirs.user_config_path("stallwatch") / FILE_NAME
    if _is_file(of_user):
        yield of_user


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a folder that may not be entered
        return False


# ---------------------------------------------------------------- the file


def _read_if_trusted(config: Config, path: Path) -> bool:
    """Put a file that nobody named in force, unless others can write it: then false."""
    try:
        _read_file(config, path, read_if_trusted)
    except Untrusted as reason:
        message = f"ignored, because {reason}"
        remedy = f"let no other account write it (chown, chmod go-w), or trust it with --config {path}"
        config.ignored.append(ConfigError(str(path), None, message, remedy))
        return False
    return True


def _read_file(config: Config, path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> None:
    def problem(line: int | None, message: str, remedy: str, key: str = "") -> None:
        config.problems.append(ConfigError(str(path), line, message, remedy, key=key))

    try:
        data = read(path)
        text = data.decode("utf-8-sig")
        tables = tomllib.loads(text)
    except OSError as error:
        return problem(None, f"cannot be read: {error.strerror}", "name a file that can be read", UNREAD)
    except UnicodeDecodeError:
        unread = UNREAD if _CHATS.search(data.decode("utf-8", "replace")) else ""
        return problem(None, "is not UTF-8 text", "save it as UTF-8", unread)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)|\(at end of document\)", str(error))
        line = int(place[1]) if place and place[1] else max(1, len(text.splitlines()))
        message = str(error)[: place.start()].strip() if place else str(error)
        remedy = "mend that line"
        if "routes" in message:  # the second of two tables with one bracket
            remedy = "write [[alerts.routes]], with two brackets, for each route"
        return problem(line, f"is not valid TOML: {message}", remedy, UNREAD if _CHATS.search(text) else "")
    lines = text.splitlines()
    config.lines = tuple(lines)
    for section, table in tables.items():
        if section not in SECTIONS:
            found = misplaced(section, table)
            config.problems.append(ConfigError(str(path), _line_of(lines, section), **found._asdict()))
        elif not isinstance(table, dict):
            remedy = f"write [{section}] on a line"
            problem(_line_of(lines, section), f"{section} must be a section", remedy, section)
        else:
            for name, value in table.items():
                _take_from_file(config, path, lines, section, name, value)
    return None


def _take_from_file(
    config: Config, path: Path, lines: list[str], section: str, name: str, value: Any
) -> None:
    line = _line_of(lines, section, name)
    key = BY_NAME.get(f"{section}.{name}")
    if section == "alerts" and _are_routes(name, value):
        _take_routes(config, path, lines, name, value)
        return
    if key is None:
        names = [known.name for known in KEYS if known.section == section]
        remedy = f"{_near(name, names)}known are {', '.join(names)}"
        meant = f"{section}.{(_nearest(name, names) or [name])[0]}"
        if others := elsewhere(name):
            remedy = f"it belongs under [{'] or ['.join(others)}]"
            meant = f"{others[0]}.{name}" if len(others) == 1 else meant
        config.problems.append(
            ConfigError(str(path), line, f"unknown key {name} in [{section}]", remedy, key=meant)
        )
        return

    def problem(error: BadValue) -> None:
        said = f"{key.full_name} {error}"
        config.problems.append(ConfigError(str(path), line, said, _remedy(key), key=key.full_name))

    value, wrong = sound_entries(key, value)
    for error in wrong:
        problem(error)
    try:
        good = from_toml(key, value, path.absolute().parent)
    except BadValue as error:
        problem(error)
        return
    config.settings[key.full_name] = Setting(good, f"{path}:{line}" if line else str(path))


def _are_routes(name: str, value: Any) -> bool:
    """Also under a name that is nearly right: what is meant for people must not be lost to a letter."""
    return name == "routes" or (
        name in _NEARLY_ROUTES and isinstance(value, list | dict) and f"alerts.{name}" not in BY_NAME
    )


def _take_routes(config: Config, path: Path, lines: list[str], name: str, value: Any) -> None:
    """All that can be read; all that is wrong is told."""

    def problem(line: int | None, message: str, remedy: str) -> None:
        config.problems.append(ConfigError(str(path), line, message, remedy, key="alerts.routes"))

    at = _line_of(lines, "alerts", name)
    if name != "routes":
        problem(at, f"unknown table [[alerts.{name}]]", "write [[alerts.routes]]; it is read as one")
    routes, wrong = routes_from(value)
    placed = [(error.line(lines) if isinstance(error, BadRoute) else None, error) for error in wrong]
    for line, error in sorted(placed, key=lambda one: one[0] or 0):
        if isinstance(error, BadRoute):
            told = "until then all chats hear what it may be about; " if routes else ""
            problem(line or at, f"alerts.routes{error}", told + _remedy(BY_NAME["alerts.routes"]))
        else:
            problem(at, f"alerts.{name} {error}", _remedy(BY_NAME["alerts.routes"]))
    before = config["alerts.routes"]
    config.settings["alerts.routes"] = Setting((*before, *routes), f"{path}:{at}" if at else str(path))


def _line_of(lines: list[str], section: str, name: str | None = None) -> int | None:
    """Where a section begins or a key of it stands. TOML readers do not tell, so this looks for the text."""
    header = re.compile(r"\s*\[+([\w.\-\"'\s]+?)\]")
    in_section = re.compile(rf"\s*\"?{re.escape(name or section)}\"?\s*[=.]")
    dotted = re.compile(rf"\s*{re.escape(section)}\s*\.\s*{re.escape(name or '')}")
    current = None
    for number, line in enumerate(lines, 1):
        if found := header.match(line):
            current = re.sub(r"[\"'\s]", "", found[1])
            wanted = section if name is None else f"{section}.{name}"
            if current == wanted or current.startswith(f"{wanted}."):
                return number
            continue
        keyed = current == (section if name else None) and in_section.match(line)
        if keyed or (current is None and dotted.match(line)):
            return number
    return None


# ---------------------------------------------------------------- the environment


def _read_environment(config: Config, environ: Mapping[str, str], cwd: Path) -> None:
    if environ.get("STALLWATCH_HOME"):
        from stallwatch_exporter.settings import state_home

        try:
            config.settings["run.home"] = Setting(state_home(environ, cwd), "STALLWATCH_HOME")
        except ValueError as error:
            config.problems.append(
                ConfigError("STALLWATCH_HOME", None, str(error), _remedy(BY_NAME["run.home"]), key="run.home")
            )
    for key in KEYS:
        text = environ.get(key.variable)
        if text is None and key.secret:
            text = _secret_in_file(config, key, environ)
        if text is None:
            continue
        try:
            value = from_text(key, text, cwd)
        except BadValue as error:
            config.problems.append(
                ConfigError(key.variable, None, str(error), _remedy(key), key=key.full_name)
            )
        else:
            config.settings[key.full_name] = Setting(value, key.variable)
    variables = [key.variable for key in KEYS]
    variables += [key.variable + _IN_FILE for key in KEYS if key.secret]
    for name in sorted(set(environ) - set(variables) - _OTHER_VARIABLES):
        if name.startswith("STALLWATCH_") and (near := _nearest(name, variables)):
            meant = next(key.full_name for key in KEYS if near[0] in (key.variable, key.variable + _IN_FILE))
            remedy = f"did you mean {near[0]}?"
            config.problems.append(ConfigError(name, None, "unknown variable", remedy, key=meant))


def _secret_in_file(config: Config, key: Key, environ: Mapping[str, str]) -> str | None:
    """A secret that ``<variable>_FILE`` says where to find, as container images are told theirs."""
    variable = key.variable + _IN_FILE
    path = environ.get(variable)
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        said, remedy = f"{path} cannot be read: {reason}", "name a file that can be read"
        config.problems.append(ConfigError(variable, None, said, remedy, key=key.full_name))
        return None
    return ",".join(line.strip() for line in lines if line.strip())


def _near(name: str, known: list[str] | tuple[str, ...]) -> str:
    found = _nearest(name, known)
    return f"did you mean {found[0]}? " if found else ""


def _nearest(name: str, known: list[str] | tuple[str, ...]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS if name.isupper() else 0.6)


def _remedy(key: Key) -> str:
    if key.kind == "routes":
        return "docs/alerts.md describes [[alerts.routes]]"
    example = {
        "text": '"…"',
        "path": '"folder/file"',
        "int": str(key.default),
        "number": str(key.default),
        "bool": "true or false",
        "choice": " or ".join(f'"{choice}"' for choice in key.choices),
        "texts": '["node7:19400"]',
        "paths": '["my-rules"]',
        "urls": '["slack://…"]',
        "reaction": '"report", "abort" or "command scontrol requeue $SLURM_JOB_ID"',
    }[key.kind]
    return f"in {FILE_NAME} it is {key.name} = {example}"


def _tell_if_nobody_hears(config: Config) -> None:
    """Whoever wrote a chat down counts on it: that it is not told must not look like one small mistake."""
    wrong = next((one for one in config.problems if one.loses_chats), None)
    if wrong is None:
        return
    routed = any(route.urls or route.escalate_urls for route in config["alerts.routes"])
    if not config["alerts.urls"] and not routed:
        who = NOBODY
    elif wrong.key == UNREAD:
        who = "CHATS THAT ONLY IT NAMES WILL NOT BE TOLD"
    else:
        return
    why = "nothing of this file is in force" if wrong.key == UNREAD else "no chat is left in alerts.urls"
    said = f"{why}: {who} of stalls and failures"
    remedy = "mend it, then try stallwatch alerts test"
    config.problems.append(ConfigError(wrong.file, wrong.line, said, remedy, key=wrong.key))


def place_in_route(config: Config, number: int, key: str) -> int | None:
    """The line of the file at which a key of the route `number`, from 0, stands."""
    return line_in_route(config.lines, number, key) or _line_of(list(config.lines), "alerts", "routes")


# ---------------------------------------------------------------- names that are in the wrong place


class Misplaced(NamedTuple):
    """What to say of it."""

    message: str
    remedy: str
    key: str  #: the section or the key that was meant; empty where that is not known
    chats: bool  #: whether chats are written there, which are not told


def misplaced(name: str, value: Any) -> Misplaced:
    """Of a name at the top of the file that no section has."""
    chats = _names_chats({name: value})
    several = isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
    tables = several or isinstance(value, dict)
    if found := _keys_like(name, value, tables):
        key, sections = found
        places = " or ".join(f"[[{one}.{key}]]" if tables else f"[{one}]" for one in sections)
        said = f"unknown key {name} outside of any section"
        meant = f"{sections[0]}.{key}" if len(sections) == 1 else ""
        if tables:
            return Misplaced(said, f"write {places}", meant, chats)
        written = name if name == key else f"{key} (not {name})"
        return Misplaced(said, f"write {written} below a line {places}", meant, chats)
    near = difflib.get_close_matches(name, SECTIONS, n=1, cutoff=_NAME_LIKENESS)
    did_you = f"did you mean {near[0]}? " if near else ""
    return Misplaced(
        f"unknown section [{name}]", f"{did_you}known are {', '.join(SECTIONS)}", (near or [""])[0], chats
    )


def elsewhere(name: str) -> list[str]:
    """The sections that have a key of this very name."""
    return [key.section for key in KEYS if key.name == name]


def _keys_like(name: str, value: Any, tables: bool) -> tuple[str, list[str]] | None:
    """The key of this name, or the one that is nearest, with the sections that have it."""
    kinds = ("routes",) if tables else _LIST_KINDS if isinstance(value, list) else ()
    known = sorted({key.name for key in KEYS if not kinds or key.kind in kinds})
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=_NAME_LIKENESS)
    if not near:
        return None
    if near[0] != name and difflib.get_close_matches(name, [*SECTIONS, near[0]], n=1, cutoff=0)[0] != near[0]:
        return None  # rather a section's name
    return near[0], elsewhere(near[0])


def _names_chats(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_names_chats, value))
    return isinstance(value, dict) and any(
        (bool(inner) and bool(difflib.get_close_matches(name, _CHAT_KEYS, n=1, cutoff=0.8)))
        or _names_chats(inner)
        for name, inner in value.items()
    )
