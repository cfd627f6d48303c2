"""Define the command line ``stallwatch COMMAND``. Each module contains the commands for one subject."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from stallwatch.cli.context import CONTEXT, App, Group, print_notice
from stallwatch_exporter.settings import current_folder

# Commands in the order in which a new user needs them, each with the module that defines it.
_COMMANDS = {
    "run": "run",
    "tail": "run",
    "diagnose": "diagnose",
    "stacks": "stacks",
    "check": "check",
    "samples": "rows",
    "matches": "rows",
    "redact": "redact",
    "dashboard": "dashboard",
    "runs": "runs",
    "rules": "rules",
    "alerts": "alerts",
    "relay": "relay",
    "coordinator": "coordinator",
    "grafana": "dashboard",
    "config": "config",
    "replay": "runs",
    "demo": "runs",
}
_INTERNAL_ERROR = 70  # EX_SOFTWARE in sysexits.h
_EXIT_SECONDS = 10.0  # maximum number of seconds for the interpreter to exit
_UNWRITTEN = 2
_OBJECTS = 100_000  #: objects created between two garbage collections
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  #: errors that only a write raises


class StallwatchGroup(Group):
    """A group that imports a command only when the command is called.

    The group prints each error as one message on stderr.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of `_COMMANDS`, not alphabetically."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command's module and return the command, or `None` if the command does not exist."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"stallwatch.cli.{_COMMANDS[cmd_name]}"), cmd_name)
        return command

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a command and exit with the command's exit code."""
        kwargs["standalone_mode"] = False
        try:
            result = super().main(*args, **kwargs)
            if sys.stdout is not None:  # None if stdout was closed before the start
                sys.stdout.flush()
        except click.ClickException as error:
            message = error.format_message()
            if isinstance(error, click.UsageError) and error.ctx is not None:
                usage = error.ctx.get_usage()
                # For a group called without a command, the message is the group's help.
                helps = message.startswith(usage)
                with contextlib.suppress(OSError):  # stderr might be closed
                    click.echo(message if helps else usage, err=True)
                if helps:
                    sys.exit(error.exit_code)
            print_notice(message)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            # The reading process closed the output (`| head`). Python must not print an error at exit.
            _write_no_more()
            sys.exit(141)
        except Exception as error:
            if App.debug:
                raise
            if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
                # The disk that receives the output (usually standard output) is full. This is not an
                # internal error.
                print_notice(f"the output cannot be written: {error.strerror}")
                _write_no_more()
                sys.exit(_UNWRITTEN)
            print_notice(
                f"internal error: {type(error).__name__}: {error}; to see the traceback, run"
                " stallwatch --debug …"
            )
            sys.exit(_INTERNAL_ERROR)
        sys.exit(result if isinstance(result, int) else 0)


def _write_no_more() -> None:
    """Redirect standard output to the null device, so that flushing it at exit cannot fail."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # standard output is closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=StallwatchGroup, context_settings=CONTEXT, invoke_without_command=True)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read this configuration file instead of ./stallwatch.toml or the user's configuration file.",
)
@click.option("--debug", is_flag=True, help="Show a traceback for internal errors.")
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None, debug: bool, version: bool) -> None:
    """Is it still training? If not, why, and what do I change?

    \b
    Watch a run:         stallwatch run -- torchrun --nproc-per-node 8 train.py
    Diagnose a run:      stallwatch diagnose logs/
    Check a setup:       stallwatch check ds_config.json train.py
    See all runs:        stallwatch dashboard
    See a demo:          stallwatch demo
    """
    App.debug = debug
    ctx.obj = App(config_file)
    if version:
        from stallwatch import __version__

        click.echo(f"stallwatch {__version__}")
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line. This function is the entry point of the console script."""
    sys.path[:] = _user_modules_last(sys.path, os.environ.get("PYTHONPATH", ""))
    # Modules loaded at startup are not garbage. Garbage collections that scan them would take a sixth of
    # the startup time.
    gc.set_threshold(_OBJECTS)
    try:
        cli(prog_name="stallwatch")
    except SystemExit as end:
        _limit_exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    finally:
        gc.freeze()  # otherwise, the interpreter scans the remaining objects twice at exit


def _user_modules_last(path: Sequence[str], variable: str) -> list[str]:
    """Return the module search path, with the user's folders after the installed packages.

    The user's folders are the entries of the `variable` ``PYTHONPATH`` and the current folder, which
    ``python -m`` adds. The training program needs them, but a module such as ``h11.py`` in them would replace
    a package that Stallwatch imports, perhaps only when Stallwatch sends a message. Folders that contain a
    package of Stallwatch keep their position.
    """
    here = current_folder()
    users = {here, *(here / entry for entry in variable.split(os.pathsep))}

    def is_users(entry: str) -> bool:
        folder = here / entry
        return folder in users and not any(folder.glob("stallwatch*/__init__.py"))

    return sorted(path, key=is_users)


def _limit_exit(code: int) -> None:
    """Exit with `code` after a time limit, even if threads of libraries are still running.

    The interpreter would wait for these threads at exit. A thread that could not start because of a lack of
    memory never ends. The exit code can be the exit code of a training run, on which scripts depend.
    """
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
        signal.setitimer(signal.ITIMER_REAL, _EXIT_SECONDS)
