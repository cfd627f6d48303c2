"""Labels that a launcher puts before every line and that only their number makes sure.

``srun --label`` writes the bare task number, Intel MPI's ``-prepend-rank`` a number in brackets, pdsh (and so
DeepSpeed's launcher over several nodes) the host's name. Much else looks like each of them, so they are
learnt from the first lines of a source: of a file from its beginning, before any of it is read; else the few
lines before that keep theirs.

A task is a rank, unless each task is a launcher that starts a node's ranks: then its number is the node's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from stallwatch_rules.text.lazy import lazy

_NUMBER = lazy(r" {0,5}(\d{1,5}): ?|\[(\d{1,5})\] (?!NCCL|include/|/)")
_SURE_NUMBERS = 12  # so many labelled lines in a row, by far fewer tasks, are no numbered list
_SURE_TASKS = 4  # so many are enough where the tasks are counted from 0 and take turns
_LABEL = lazy(r" {0,5}(\d{1,5}): ")  # as srun writes it; what ``grep -n`` writes has no blank
_OF_TRACEBACK = lazy(r'Traceback \(most recent call last\):|  File "[^"]+", line \d')
# A metrics line, and nothing that an epoch's number stands before: other lines have the label, too.
_METRIC = lazy(r"[^:]{0,40}\b(?:step|iter(?:ation)?)s?\W{0,4}\d", re.IGNORECASE)
_HOST = lazy(r"([A-Za-z0-9](?=[\w.-]{0,62}\d|[\w-]{1,62}\.)[\w.-]{1,62}):(?: |$)")
_NO_HOST = lazy(
    r".*\.(?:py|c|cc|cpp|cu|h|sh|json|yaml|log)|(?:step|iter|epoch|rank|layer|loss)\w*|[\d.]+"
    r"|E[A-Z0-9]\d{4}"  # an error code of Ascend's, with a time behind it
)
_ADDRESS = lazy(r"\d{1,3}(?:\.\d{1,3}){3}")
# What begins a line and never follows a word and a colon by itself.
_LINE_STARTS = lazy(
    r'  File "|    \S|Traceback \(most recent|\[20\d\d-|\[rank\d|\[default\d|20\d\d-\d\d-\d\d|\{\'loss\''
    r"|\[?[IWE]\d{3,4} \d\d:|\s{0,3}\d{1,3}%\||\[(?:INFO|WARNING|ERROR)[\]|]"
)
# What shows that a task is no rank: its processes are, with numbers of their own; it is torchrun; the command
# with which it all began.
_OWN_RANK = lazy(r"\[(?:rank|default)(\d{1,6})\]:")
_ELASTIC = lazy(
    r"\[?[IWE]\d{3,4} \d\d:\d\d:\d\d\S* \d+ torch/distributed/"
    r"(?:run\.py|elastic/(?:agent/|multiprocessing/api\.py))"
)
_NCCL = lazy(r"[\w.-]+:(\d+):\d+ \[\d+\] ")  # host, process, thread, device
_STARTED = lazy(
    r"\bsrun\b(?=.*?\s(?:-\w*l|--label)\b).*?\s(?:\S*torchrun|\S*accelerate launch"
    r"|-m torch\.distributed\.(?:run|launch))\s(?!.*--nproc[-_]per[-_]node[= ]1\b)"
)
_SURE_HOSTS = 20  # so many lines in a row, all labelled by a few hosts, are a launcher's too
_FIRST_LINES = 1000  # a launcher labels all lines or none


class TaskLabels:
    """Learns a source's labels and takes them off."""

    def __init__(self) -> None:
        self.found = False  #: some labels are known
        self.searching = True
        self._lines = 0
        self._numbered = False
        self._of_nodes = False  # the numbers are those of tasks that are no ranks
        self._processes: dict[int, str] = {}  # task → the process that NCCL named first
        self._numbers: list[int] = []
        self._message = False  # a line of the row is no metrics line
        self._hosts: set[str] = set()
        self._hosts_row: list[str] = []

    def learn(self, texts: Iterable[str]) -> None:
        """Look at a source's first lines before any of them is read."""
        ahead = TaskLabels()
        for text in texts:
            ahead.take(text)
        self.found, self._hosts = ahead.found, ahead._hosts
        if ahead._numbered:
            self._numbered, self._of_nodes, self._processes = True, ahead._of_nodes, ahead._processes
            self.searching = False

    def take(self, text: str) -> tuple[int | None, str]:
        """The rank that a label names, and the line without it; no rank where the labels are of nodes."""
        if self.searching:
            self._search(text)
        if not self.found:
            return None, text
        if self._hosts:
            host = _HOST.match(text)
            if host and host[1] in self._hosts:
                text = text[host.end() :]
        number = _NUMBER.match(text) if self._numbered else None
        if number is None:
            return None, text
        task, text = int(number[1] or number[2]), text[number.end() :]
        self._of_nodes = self._of_nodes or self._is_node(task, text)
        return None if self._of_nodes else task, text

    def _is_node(self, task: int, text: str) -> bool:
        """Whether the line shows that its task has several ranks."""
        own = _OWN_RANK.match(text)
        if own is not None:
            return int(own[1]) != task
        process = _NCCL.match(text) if ":" in text[:80] and "NCCL" in text else None
        if process is not None:
            return self._processes.setdefault(task, process[1]) != process[1]
        return "torch/distributed/" in text and _ELASTIC.match(text) is not None

    def _search(self, text: str) -> None:
        self._lines += 1
        if "srun" in text and _STARTED.search(text):
            self._of_nodes = True
        number = _NUMBER.match(text)
        if number is None:
            self._numbers.clear()
            self._message = False
        else:
            task = int(number[1] or number[2])
            self._numbers.append(task)
            self._of_nodes = self._of_nodes or self._is_node(task, text[number.end() :])
            self._numbered = self._numbered or self._sure(text)
        self._search_host(text)
        self.found = self._numbered or bool(self._hosts)
        self.searching = self._lines < _FIRST_LINES and not self._numbered

    def _sure(self, text: str) -> bool:
        """Whether the numbers before the last lines are tasks; ``text`` is the latest of these lines."""
        row, tasks = self._numbers, set(self._numbers)
        repeated = 2 * len(tasks) <= len(row)
        if len(row) >= _SURE_NUMBERS and repeated:
            return True
        label = _LABEL.match(text)
        if label is None:
            return False
        if not _METRIC.match(text, label.end()):
            self._message = True
        elif self._message and len(tasks) < len(row) and tasks == set(range(len(tasks))):
            return True
        if _OF_TRACEBACK.match(text, label.end()):
            return len(row) < 3 or len(tasks) < len(row)  # each number once: a listing of some file's lines
        take_turns = any(later < earlier for earlier, later in pairwise(row))
        return len(row) >= _SURE_TASKS and repeated and take_turns and tasks == set(range(len(tasks)))

    def _search_host(self, text: str) -> None:
        host = _HOST.match(text)
        if host is None or (_NO_HOST.fullmatch(host[1]) and not _ADDRESS.fullmatch(host[1])):
            self._hosts_row.clear()
            return
        self._hosts_row.append(host[1])
        if _LINE_STARTS.match(text, host.end()):
            self._hosts.add(host[1])
        elif len(self._hosts_row) >= _SURE_HOSTS and 4 * len(set(self._hosts_row)) <= len(self._hosts_row):
            self._hosts.update(self._hosts_row)
            self._hosts_row.clear()
