"""Announce endpoints to Prometheus by writing a file for each endpoint to a folder (``file_sd_configs``).

Several accounts can share the folder. Therefore, the functions write files atomically and remove only files
of this account.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallwatch_exporter.private import make_open
from stallwatch_exporter.rings.presence import is_there, process_namespace
from stallwatch_rules.files import open_private, replace

_META = "__meta_stallwatch_"  # after relabeling, Prometheus drops labels that begin with two underscores
_MOST_BYTES = 64 * 1024


def announce(folder: Path, target: str, run: str, *, tls: bool = False) -> Path:
    """Write the file for an endpoint (``host:port``) of this process. Return its path.

    First, remove the files of this account's ended processes. Raises `OSError` if the folder is not writable.
    """
    make_open(folder)  # Prometheus runs under its own account
    _remove_stale(folder)
    port = target.rpartition(":")[2]
    labels = {
        "run": run,
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "namespace": process_namespace(),
    }
    # Do not use plain labels. If a metric has a label with the same name, such as run, Prometheus would
    # rename the metric's label to exported_run.
    shown = {f"{_META}{name}": text for name, text in labels.items()}
    if tls:
        shown["__scheme__"] = "https"
    path = folder / f"stallwatch-{re.sub('[^A-Za-z0-9.-]', '-', labels['host'])}-{os.getpid()}-{port}.json"
    replace(path, json.dumps([{"targets": [target], "labels": shown}]).encode(), 0o644)
    return path


def _remove_stale(folder: Path) -> None:
    """Remove the files that killed processes of this account left in the folder."""
    unreadable = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
    for path in folder.glob("stallwatch-*.json"):
        # Opening the file of another account raises OSError.
        with contextlib.suppress(*unreadable), open_private(path, others=0) as file:
            labels = json.loads(file.read(_MOST_BYTES))[0]["labels"]
            if _has_ended(labels, os.fstat(file.fileno()).st_mtime):
                path.unlink()


def _has_ended(labels: Mapping[str, Any], written: float) -> bool:
    """Return whether the process that wrote these labels has ended, as far as this host can determine."""
    if labels[f"{_META}host"] != socket.gethostname():
        return False
    theirs, ours = str(labels[f"{_META}namespace"]), process_namespace()
    if theirs == ours:
        return not is_there(int(labels[f"{_META}pid"]), written)
    return theirs.partition("/")[0] != ours.partition("/")[0]  # the file is from an earlier boot
