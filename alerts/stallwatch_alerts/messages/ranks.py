"""Describe the ranks of a stall for a message: their stack, advice, and commands to run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stallwatch_alerts.neutral import neutralise
from stallwatch_exporter.incident import Incident
from stallwatch_rules.locale import render, say, templates
from stallwatch_rules.messages import Text, message, sentences
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.records import Frame, StallStacks
from stallwatch_rules.stacks.sentences import few_hosts, hosts_of, stacks_file, state_of, suspects
from stallwatch_rules.text.lazy import lazy

# Maximum number of innermost frames, of frames of the user's code, and of characters in a frame.
_INNERMOST, _OWN, _FRAME_LIMIT = 2, 2, 120
_PATH_LIMIT = 200
_MOST_COMMANDS = 2
_GAP = "…"
_TAKE_STACKS = "py-spy dump --pid {}"
_RESUME = "kill -CONT {}"
#: Commands that show more details of a living process, by the ID of the advice that mentions the command.
_LOOKS = {"stall-in-code": _TAKE_STACKS, "stall-locked-out": "py-spy dump --native --pid {}"}
# Values of ``StallStacks.why`` with specific advice for multi-host runs.
_OF_HOSTS = ("unreachable", "outside", "frozen", "unfinished")
_PLAIN = lazy(r"[A-Za-z0-9][\w.-]{0,252}")


def answered(stacks: StallStacks, run_hosts: int, language: str) -> str:
    """Return text that states how many hosts sent stacks, or "" for a run on one host.

    `run_hosts` is the number of hosts in the run, or 0 if it is unknown.
    """
    if not stacks.hosts:
        return ""
    every = {*stacks.hosts, *stacks.silent}
    count, most = len(every - set(stacks.silent)), max(len(every), run_hosts)
    number = say("alerts.hosts-answered", language, count=count, every=most)
    if stacks.groups or not stacks.silent:  # otherwise, the sentence about the ranks lists the silent hosts
        return number
    return f"{number} {say('alerts.hosts-silent', language, hosts=fold_hosts(stacks.silent, language))}"


def fold_hosts(hosts: Sequence[str], language: str) -> str:
    """Return hostnames in short form, such as ``n1–n3, n7``, or their number if the list is too long."""
    return neutralise(render(few_hosts(hosts), language))


def host_of_folder(incident: Incident) -> str:
    """In a multi-host run, return the host of the incident's folder. Otherwise, return an empty string."""
    return (incident.folder_host or incident.host) if incident.hosts else ""


def remedy(stacks: StallStacks, *, host: str = "", is_over: bool = False) -> Text:
    """Return the advice for the blamed ranks, or for all ranks if none are blamed.

    The result is empty if the states of these ranks differ. If the run `is_over`, the advice contains no
    commands for its processes. `host` is the host of the ranks, if only one of several hosts sent stacks.
    """
    if stacks.why == "diverged":
        return message("alerts.stall-diverged")
    if stacks.hosts and stacks.why in _OF_HOSTS:
        return message(f"alerts.stall-{stacks.why}")
    odd = [group for group in stacks.groups if not stacks.odd or set(group.ranks) & set(stacks.odd)]
    if len({(group.kind, group.condition, group.locked_out) for group in odd}) != 1:
        return ""
    group = odd[0]
    key = f"stall-{group.condition}" if group.condition != "alive" else f"stall-in-{group.kind}"
    if state_of(group) == "busy":
        key = "stall-busy"
    if key == "stall-in-code" and group.locked_out:
        key = "stall-locked-out"
    if key not in templates("en", "alerts"):
        return ""
    pid = next((str(stacks.pids[rank]) for rank in group.ranks if rank in stacks.pids), "PID")
    if key == "stall-stopped":
        command = _there(_RESUME.format(pid), _host_of(group.ranks, stacks) or host)
        return "" if is_over else message("alerts.stall-stopped", command=command)
    advice = message(f"alerts.{key}")
    if is_over or key not in _LOOKS:
        return advice
    command = _there(_LOOKS[key].format(pid), _host_of(group.ranks, stacks) or host)
    return sentences(advice, message(f"alerts.look-{key}", command=command))


def stack(stacks: StallStacks, language: str) -> list[str]:
    """Return the last frames of the blamed ranks' stack, outermost frame first.

    If no ranks are blamed, return the stack that all ranks share. If they share none, return an empty list.
    For a rank that waits for its data loader, return the stack of the loader's worker.
    """
    if not stacks.groups or not (stacks.odd or len(stacks.groups) == 1):
        return []
    group = stacks.groups[-1]  # The groups of blamed ranks come last.
    shown = _shown(group.worker_frames or group.frames)
    lines = [f"    {neutralise(frame, _FRAME_LIMIT)}" for frame in shown]
    if not group.worker_frames:
        return lines
    return [say("alerts.loader-worker", language, pid=group.worker or 0), *lines]


def commands(incident: Incident, *, explain: bool = False) -> list[str]:
    """Return commands that collect further stacks, or that show the stored stacks and the diagnosis.

    In a multi-host run, each command begins with ``ssh`` and the host of the process or file.
    """
    stacks = incident.stacks if incident.status == "open" else None
    folder, home = incident.folder, host_of_folder(incident)
    found: list[str] = []
    for group in suspects(stacks) if stacks is not None else ():
        if stacks is None or group.condition == "ended":
            continue
        command = _RESUME if group.condition == "stopped" else _TAKE_STACKS
        if group.worker is not None:
            found.append(_there(command.format(group.worker), _host_of(group.ranks, stacks) or home))
        for rank in [rank for rank in group.ranks if rank in stacks.pids][:_MOST_COMMANDS]:
            found.append(_there(command.format(stacks.pids[rank]), _host_of([rank], stacks) or home))
    found = found[:_MOST_COMMANDS]
    if stacks is not None and stacks.hosts:
        host, path = stacks_file(stacks)
        found += [_there(f"less {_path(path)}", host)] if path else []
    elif stacks is not None and stacks.file and folder:
        found.append(_there(f"less {_path(f'{folder}/{stacks.file}')}", home))
    if folder:
        found.append(_there(f"stallwatch diagnose {'--explain ' * explain}{_path(folder)}", home))
    return found


def _host_of(ranks: Sequence[int], stacks: StallStacks) -> str:
    """If the stacks are from several hosts, return the first rank's host. Otherwise, return ""."""
    return next(iter(hosts_of(stacks, ranks[:1])), "")


def _there(command: str, host: str) -> str:
    """Return the command. If `host` is the name of a host, put ``ssh`` before the command."""
    if not _PLAIN.fullmatch(host):  # ssh must not parse the hostname as an option
        return command
    quoted = shlex.quote(command) if "'" in command else command  # the shell of the host also removes quotes
    return f"ssh {host} {quoted}"


def _path(path: str) -> str:
    return neutralise(shlex.quote(path), _PATH_LIMIT)


def _shown(frames: Sequence[str]) -> list[str]:
    """Return the innermost frames and the user's frames that call them, outermost frame first."""
    innermost = len(frames) - _INNERMOST
    of_user = [at for at, frame in enumerate(frames) if not is_library(_frame(frame))]
    shown = sorted({*of_user[-_OWN:], *range(max(0, innermost), len(frames))})
    lines: list[str] = []
    for before, at in zip([None, *shown], shown, strict=False):
        if before is not None and at > before + 1:
            lines.append(_GAP)
        lines.append(frames[at])
    return lines


def _frame(text: str) -> Frame:
    """Parse a frame such as ``file:line in function``."""
    place, _, function = text.partition(" in ")
    return Frame(place.rpartition(":")[0], 0, function)
