"""Use launchers' prefixes, numeric labels, or filenames to find the rank that printed a line.

``srun --label`` puts only the task number in front of each line. Intel MPI with ``-prepend-rank`` uses a
number in brackets. The DeepSpeed launcher uses pdsh to start several nodes, and pdsh puts the hostname in
front of each line. Other text often looks like these labels, so the labels of a source are learned from its
first lines. For a file, they are learned before its lines are read. For a stream, the first few lines keep
their labels. A task is a rank, unless each task is a launcher that starts the ranks of a node. In this case,
the label is the number of the node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

from stallwatch_rules.text.lazy import lazy

# The first trailing space belongs to the prefix. Further spaces are the indentation of the line itself, as in
# tracebacks.
_BRACKETED = lazy(
    r"\[(?:[Rr]ank[ _]?|default|trainer|worker)(\d{1,6})\]: ?"  # prefixes of torch, and of torchrun --tee
    # Prefixes of mpirun and Horovod.
    r"|\[(?:[\w.-]+@)?(?:\d+,)?(\d{1,6})\](?:\[[\w.:-]+\])?<std(?:out|err)>: ?"
    r"|\[std(?:out|err)\] ?"  # prefix of Azure ML, and of Horovod on Spark
    r"|\[pod/[\w.-]+/[\w.-]+\] "  # prefix of kubectl logs --prefix
)
_BARE = lazy(r"(?:global[ _])?[Rr](?:ank|ANK)[ _]?(\d{1,6}): ?")
# Prefixes of Ray workers "(WorkerDict pid=7, ip=10.0.0.2)", of SkyPilot tasks, and of vLLM workers
# "(VllmWorker rank=3 pid=7)".
_RAY = lazy(r"\([\w.:\[\]=/-]+(?:,? \w+=[\w.-]+)*?,? pid=\d+(?:, ?\w+=[\w.:-]+)*\) ?")
# The number after ", rank=" in a SkyPilot prefix is the number of a node.
_RAY_RANK = lazy(r"(?<!,)[ \[]rank=(\d{1,6})(?!\d)")
_REPEATED = lazy(r" ?\[repeated \d+x across cluster\](?: \(Ray deduplicates logs by default\..*)?\s*\Z")
_JOURNALD = lazy(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: ")
_JOURNALD_ISO = lazy(
    r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d) [\w.-]+ [\w./@-]+\[\d+\]: "
)
_KAGGLE = lazy(r"\d+\.\d+s[ \t]+\d+[ \t]")
_COMPOSE = lazy(r"(?!(?:global_?)?(?:step|iter|epoch|batch|loss))[\w.-]+[-_]\d+ +\| ", re.IGNORECASE)
# The prefix of pdsh, if a rank's prefix follows it.
_HOST = lazy(r"[A-Za-z0-9][\w.-]*: ?(?=\[(?:rank|default)\d)")
# Ranks in messages from log_dist in DeepSpeed and from the NCCL watchdog. Only the numbers in process group 0
# are global ranks.
_NAMED_INSIDE = lazy(
    r"\[(?:PG (?:ID )?0\b[^\]]{0,60} )?(?:[Rr]ank|RANK)(?:: | |=)?(\d{1,6})\]"
    r"|: rank(\d{1,6})\[\d+\]\[MainThread\]:"  # prefix of MosaicML Composer
)
# Messages such as "rank 3 step 17 …" and "12.5s rank 3 …".
_NAMED_FIRST = lazy(r"[ \d.]{0,12}s? {0,2}[Rr]ank (\d{1,6}) ")


def take_rank(text: str) -> tuple[int | None, str, str]:
    """Return three values: the rank in a line, its process, and the line without launchers' prefixes.

    If several prefixes contain a rank, the innermost rank is returned: ``[default3]:[rank11]: …`` is a line
    of rank 11. If no prefix contains a rank, the rank in the message (``[Rank 3] Watchdog caught …``) is
    returned and remains in the text.

    The process is Ray's prefix, which names the process that wrote the line, if the line begins with it.
    Otherwise, it is an empty string.
    """
    rank: int | None = None
    whole, process = text, ""
    for _ in range(4):  # several nested launchers can each add a prefix
        found = _prefix_of(text)
        if found is None:
            break
        if found.lastindex:
            rank = int(found[found.lastindex])
        elif text[0] == "(":
            worker = _RAY_RANK.search(found[0]) if "rank=" in found[0] else None
            rank = int(worker[1]) if worker else rank
            process = found[0].rstrip() if text is whole else process
            if "x across cluster]" in text:
                text = _REPEATED.sub("", text)
        text = text[found.end() :]
    if rank is None and ("rank" in text or "Rank" in text or "RANK" in text):
        found = _NAMED_INSIDE.search(text, 0, 300) or _NAMED_FIRST.match(text)
        if found:
            rank = int(found[found.lastindex or 1])
    return rank, process, text


def _prefix_of(text: str) -> re.Match[str] | None:
    """Match the prefix of a launcher.

    If the prefix contains a rank, exactly one group matches. This group contains the rank.
    """
    first = text[:1]
    found = None
    if first == "[":
        if not (text[5:6] == "-" and text[8:9] == "-" and text[1:3] == "20"):  # not a date
            found = _BRACKETED.match(text)
    elif first == "(":
        found = _RAY.match(text)
    elif first in "rRg":
        found = _BARE.match(text) or _HOST.match(text) or _COMPOSE.match(text)
    elif first.isdigit():
        if text[4:5] != "-":  # not a date
            found = _KAGGLE.match(text) or _HOST.match(text)
        elif "[rank" in text or "[default" in text:
            found = _HOST.match(text)
        if found is None and "]: " in text:
            found = _JOURNALD_ISO.match(text)
    elif first.isalpha():
        if "]:" in text or text[9:10] == ":":
            found = _JOURNALD.match(text) or _HOST.match(text)
        if found is None and " | " in text:
            found = _COMPOSE.match(text)
    return found


_NUMBER = lazy(r" {0,5}(\d{1,5}):(?: |$)|\[(\d{1,5})\] (?!NCCL|include/|/)")
_SURE_NUMBERS = 12  # minimum number of labeled lines (2 or more for each task) that cannot be a numbered list
# If the lines of tasks that are numbered from 0 alternate, minimum number of lines after which labels count
# as task numbers.
_SURE_TASKS = 4
_LABEL = lazy(r" {0,5}(\d{1,5}): ")
# The start of a line with the label of a task or host. Quote marks or other marks of pasted text can
# precede the label. The pattern also matches the start of a container's record, which is a time with a "T".
_MAY_LABEL = lazy(rb"\n(?:[^\w\[\n]{0,40}(?:\d{1,5}:|\[\d{1,5}\] |[A-Za-z0-9][\w.-]{0,63}:\s)|.{10}T)")
_ODD_TEXTS = (b"srun", b"{", b"\x1b", b"\r")  # text in a launcher's command, JSON, and terminal codes
_OF_TRACEBACK = lazy(r'Traceback \(most recent call last\):|  File "[^"]+", line \d')
# A line with metrics: a step or an iteration follows the label.
_METRIC = lazy(r"[^:]{0,40}\b(?:step|iter(?:ation)?)s?\W{0,4}\d", re.IGNORECASE)
_HOST_LABEL = lazy(r"([A-Za-z0-9](?=[\w.-]{0,62}\d|[\w-]{1,62}\.)[\w.-]{1,62}):(?: |$)")
_NO_HOST = lazy(
    r".*\.(?:py|c|cc|cpp|cu|h|sh|json|yaml|log)|(?:step|iter|epoch|rank|layer|loss)\w*|[\d.]+"
    r"|E[A-Z0-9]\d{4}"  # error code of Ascend; a time follows it
)
_ADDRESS = lazy(r"\d{1,3}(?:\.\d{1,3}){3}")
# Starts of lines that follow a word and a colon only if the word and the colon are a label.
_LINE_STARTS = lazy(
    r'  File "|    \S|Traceback \(most recent|\[20\d\d-|\[rank\d|\[default\d|20\d\d-\d\d-\d\d|\{\'loss\''
    r"|\[?[IWE]\d{3,4} \d\d:|\s{0,3}\d{1,3}%\||\[(?:INFO|WARNING|ERROR)[\]|]"
)
# Evidence that a task is not a rank: its lines have prefixes with other ranks, torchrun printed its lines, or
# several processes wrote its lines.
_OWN_RANK = lazy(r"\[(?:rank|default)(\d{1,6})\]:")
_ELASTIC = lazy(
    r"\[?[IWE]\d{3,4} \d\d:\d\d:\d\d\S* \d+ torch/distributed/"
    r"(?:run\.py|elastic/(?:agent/|multiprocessing/api\.py))"
)
_NCCL = lazy(r"[\w.-]+:(\d+):\d+ \[\d+\] ")  # host, process, thread, and device
# The parts of a command in which srun labels lines: srun itself, its option for labels, and the last launcher
# with the text after it.
_SRUN = lazy(r"\bsrun\b")
_LABELS = lazy(r"\s(?:-\w*l|--label)\b")
_LAUNCHER = lazy(
    r".*\s(?:\S*torchrun|\S*accelerate launch|-m torch\.distributed\.(?:run|launch))\s(?P<after>.*)"
)
_ONE_RANK = lazy(r"--nproc[-_]per[-_]node[= ]1\b")
_LONGEST_COMMAND = 4000  # maximum number of characters of a command to search
# Minimum number of consecutive lines that must contain the names of a few hosts before these names are
# accepted as labels.
_SURE_HOSTS = 20
_BEGINNING = 64 * 1024  # number of bytes that are searched for the first label
# Maximum number of lines to search, because a launcher labels either all lines or no lines.
_FIRST_LINES = 1000


def may_have_labels(head: bytes) -> bool:
    """Return whether the lines of a log can have labels, based on the beginning of the log.

    Most logs have no labels.
    """
    head = b"\n" + head[:_BEGINNING] + b"\n"
    return any(text in head for text in _ODD_TEXTS) or _MAY_LABEL.search(head) is not None


class Labelled(NamedTuple):
    """The labels of a line, and the text of the line without them."""

    rank: int | None  #: rank in the label, or ``None`` if there is no label or if it is the number of a node
    host: str  #: host in the label, or an empty string
    text: str


class TaskLabels:
    """The task or host labels in front of the lines of a source, learned from the first lines."""

    def __init__(self) -> None:
        self.found = False  #: True if at least one label is known
        self.searching = True
        self._lines = 0
        self._numbered = False
        self._of_nodes = False  # True if the labels belong to tasks that are not ranks
        self._processes: dict[int, str] = {}  # process ID in each task's first line from NCCL
        self._numbers: list[int] = []
        self._message = False  # True if one of the labeled lines in ``_numbers`` does not contain metrics
        self._hosts: set[str] = set()
        self._hosts_row: list[str] = []

    def learn(self, texts: Iterable[str], *, alike: bool = False) -> None:
        """Learn the labels of a source from its first lines.

        `alike` is True if all lines of the source have the same format. In this case, no later line is
        searched for labels if the first lines are sufficient evidence.
        """
        ahead = TaskLabels()
        for text in texts:
            ahead.take(text)
        self.found, self._hosts = ahead.found, ahead._hosts
        if ahead._numbered:
            self._numbered, self._of_nodes, self._processes = True, ahead._of_nodes, ahead._processes
            self.searching = False
        elif alike:
            self.searching = ahead.searching

    def take(self, text: str) -> Labelled:
        """Return the rank and the host in a line's labels, and the line without its labels."""
        if self.searching:
            self._search(text)
        if not self.found:
            return Labelled(None, "", text)
        host = ""
        if self._hosts and (label := _HOST_LABEL.match(text)) and label[1] in self._hosts:
            host, text = label[1], text[label.end() :]
        number = _NUMBER.match(text) if self._numbered else None
        if number is None:
            return Labelled(None, host, text)
        task, text = int(number[1] or number[2]), text[number.end() :]
        self._of_nodes = self._of_nodes or self._is_node(task, text)
        return Labelled(None if self._of_nodes else task, host, text)

    def _is_node(self, task: int, text: str) -> bool:
        """Return whether a line shows that its task is a node with several ranks."""
        prefixed = _OWN_RANK.match(text)
        if prefixed is not None:
            return int(prefixed[1]) != task
        process = _NCCL.match(text) if ":" in text[:80] and "NCCL" in text else None
        if process is not None:
            return self._processes.setdefault(task, process[1]) != process[1]
        return "torch/distributed/" in text and _ELASTIC.match(text) is not None

    def _search(self, text: str) -> None:
        self._lines += 1
        if "srun" in text and _starts_nodes(text[:_LONGEST_COMMAND]):
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
        """Return whether the numbers in front of the latest lines are certainly task numbers.

        `text` is the latest of these lines.
        """
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
            return len(row) < 3 or len(tasks) < len(row)  # numbers that do not repeat can be line numbers
        take_turns = any(later < earlier for earlier, later in pairwise(row))
        return len(row) >= _SURE_TASKS and repeated and take_turns and tasks == set(range(len(tasks)))

    def _search_host(self, text: str) -> None:
        host = _HOST_LABEL.match(text)
        if host is None or (_NO_HOST.fullmatch(host[1]) and not _ADDRESS.fullmatch(host[1])):
            self._hosts_row.clear()
            return
        self._hosts_row.append(host[1])
        if _LINE_STARTS.match(text, host.end()):
            self._hosts.add(host[1])
        elif len(self._hosts_row) >= _SURE_HOSTS and 4 * len(set(self._hosts_row)) <= len(self._hosts_row):
            self._hosts.update(self._hosts_row)
            self._hosts_row.clear()


def local_ranks(ranks: Collection[int], first: int | None = None) -> tuple[int, ...]:
    """Return the ranks of a host in the order of their local ranks.

    The position of a rank in the result is its local rank. The result is used for lines and files that
    contain only local ranks. Launchers number the ranks host by host (torch 2.13,
    elastic/agent/server/api.py, ``_assign_worker_ranks``), so local ranks and ranks have the same order.
    `ranks` can be incomplete if `first`, the rank with local rank 0, is known. The result is empty if a
    number can be both a rank and a local rank of this host.
    """
    known = ranks if first is None or not ranks else range(first, max(ranks) + 1)
    return tuple(sorted(known)) if known and min(known) >= len(known) else ()


_RANK_WORD = lazy(r"(?<![a-z])([a-z]*)[._-]?rank[._-]?(\d{1,6})(?![\d])", re.IGNORECASE)
_NOT_A_RANK = ("lora", "low", "node", "machine", "adapter", "matrix", "f", "c", "p")
_NUMBERED_FILE = lazy(
    r"worker_(\d{1,5})\.(?:log|out|err|txt)"  # log files of msrun in MindSpore
    r"|workerlog\.(?:n0\.c)?(\d{1,5})"  # log files of paddle.distributed.launch, on the first node
    r"|std_log_process_(\d{1,5})\.txt"  # log files of Azure ML
    # Names in which the Slurm placeholder %t follows a word.
    r"|.{0,200}?[._-](?:task|proc|procid)[_-]?(\d{1,5})\.(?:log|out|err|txt)",
    re.IGNORECASE,
)
_RANK_FOLDER = lazy(
    # Names of folders from torch, Open MPI, MindSpore, and Ascend.
    r"(?:(?:global[_-]?|local[_-]?)?rank[._-]?|device[_-]?)(\d{1,6})",
    re.IGNORECASE,
)


def _starts_nodes(command: str) -> bool:
    """Return whether the tasks of an srun command are launchers and srun labels their output.

    Each launcher can start several ranks. In this case, a label is the number of a node. The search begins at
    the first ``srun`` in the command and covers all later text, which can contain other ``srun`` commands.
    """
    srun = _SRUN.search(command)
    if srun is None or _LABELS.search(command, srun.end()) is None:
        return False
    launcher = _LAUNCHER.match(command, srun.end())
    return launcher is not None and _ONE_RANK.search(launcher["after"]) is None


def rank_of_path(path: str) -> int | None:
    """Return the rank whose output a file contains, according to the name of the file or its folder.

    Return ``None`` if the names do not contain a rank. Examples of names with a rank are ``rank_3.log``,
    ``attempt_0/3/stderr.log`` (torchrun), ``rank0/stdout.log``, and ``workerlog.3``.
    """
    parts = [part for part in path.replace("!", "/").replace(os.sep, "/").split("/") if part not in ("", ".")]
    if not parts:
        return None
    for before, digits in _RANK_WORD.findall(parts[-1]):
        if not before.lower().endswith(_NOT_A_RANK):
            return int(digits)
    numbered = _NUMBERED_FILE.fullmatch(parts[-1])
    if numbered:
        return int(next(digits for digits in numbered.groups() if digits))
    for index in range(len(parts) - 2, -1, -1):
        found = _RANK_FOLDER.fullmatch(parts[index])
        if found:
            return int(found[1])
        if parts[index].isdigit() and index and parts[index - 1].startswith("attempt_"):
            return int(parts[index])
    return None


# Folders of torchrun (torch 2.13, elastic/multiprocessing/api.py), and names that state the kind of the
# number.
_LOCAL = lazy(r"(?:^|[/\\!])attempt_\d+[/\\]\d+[/\\][^/\\]+$|(?i:local[._-]?rank[._-]?\d)")


def has_local_rank(path: str) -> bool:
    """Return whether the rank in a path is certainly a local rank, as in torchrun folders."""
    return _LOCAL.search(path) is not None


# `%x-%j-%t.out`: the job's name, the job's ID, and the task's number. `slurm-17_4.out` of a job array
# belongs to a separate run, and a date is not a job's ID.
_SLURM_TASK = lazy(r"(.*?(?<!\d)(?!20\d{6}(?!\d))\d{3,10})[.-](\d{1,4})\.(out|err)")


def ranks_of_tasks(paths: Iterable[str]) -> dict[str, int]:
    """Return the ranks of files whose names end with the task numbers of the same Slurm job.

    A single file with such a name is not sufficient evidence. Several files of one job are sufficient if
    their numbers start at 0 and have no gap.
    """
    families: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        found = _SLURM_TASK.fullmatch(path)
        if found and rank_of_path(path) is None:
            families.setdefault((found[1], found[3]), {})[int(found[2])] = path
    return {
        path: task
        for tasks in families.values()
        if len(tasks) > 1 and set(tasks) == set(range(len(tasks)))
        for task, path in tasks.items()
    }
