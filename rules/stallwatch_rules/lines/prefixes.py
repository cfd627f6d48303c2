"""What launchers put before a line: which rank wrote it.

Every function first looks at the cheapest thing that can say no, because it runs for each line.
"""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

# A trailing blank belongs to the prefix, further ones are the line's own indentation (tracebacks).
_BRACKETED = lazy(
    r"\[(?:[Rr]ank[ _]?|default|trainer|worker)(\d{1,6})\]: ?"  # torch, torchrun --tee
    r"|\[(?:[\w.-]+@)?(?:\d+,)?(\d{1,6})\](?:\[[\w.:-]+\])?<std(?:out|err)>: ?"  # mpirun, horovod
    r"|\[std(?:out|err)\] ?"  # Azure ML, Horovod on Spark
    r"|\[pod/[\w.-]+/[\w.-]+\] "  # kubectl logs --prefix
)
_BARE = lazy(r"(?:global[ _])?[Rr](?:ank|ANK)[ _]?(\d{1,6}): ?")
# Ray's workers "(WorkerDict pid=7, ip=10.0.0.2)", SkyPilot's tasks, vLLM's "(VllmWorker rank=3 pid=7)"
_RAY = lazy(r"\([\w.:\[\]=/-]+(?:,? \w+=[\w.-]+)*?,? pid=\d+(?:, ?\w+=[\w.:-]+)*\) ?")
_RAY_RANK = lazy(r"(?<!,)[ \[]rank=(\d{1,6})(?!\d)")  # SkyPilot's ", rank=" counts nodes
_REPEATED = lazy(r" ?\[repeated \d+x across cluster\](?: \(Ray deduplicates logs by default\..*)?\s*\Z")
_JOURNALD = lazy(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: ")
_JOURNALD_ISO = lazy(
    r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d) [\w.-]+ [\w./@-]+\[\d+\]: "
)
_KAGGLE = lazy(r"\d+\.\d+s[ \t]+\d+[ \t]")
_COMPOSE = lazy(r"(?!(?:global_?)?(?:step|iter|epoch|batch|loss))[\w.-]+[-_]\d+ +\| ", re.IGNORECASE)
_HOST = lazy(r"[A-Za-z0-9][\w.-]*: ?(?=\[(?:rank|default)\d)")  # pdsh, only where a rank follows
# DeepSpeed's log_dist, NCCL's watchdog; a process group other than the first has ranks of its own.
_NAMED_INSIDE = lazy(
    r"\[(?:PG (?:ID )?0\b[^\]]{0,60} )?(?:[Rr]ank|RANK)(?:: | |=)?(\d{1,6})\]"
    r"|: rank(\d{1,6})\[\d+\]\[MainThread\]:"  # MosaicML's Composer
)
_NAMED_FIRST = lazy(r"[ \d.]{0,12}s? {0,2}[Rr]ank (\d{1,6}) ")  # "rank 3 step 17 …", "12.5s rank 3 …"


def take_rank(text: str) -> tuple[int | None, str]:
    """The rank that a prefix of the line names, and the line without its launchers' prefixes.

    The innermost prefix wins: ``[default3]:[rank11]: …`` is rank 11. A rank that is named inside the message
    (``[Rank 3] Watchdog caught …``) counts too, and stays in the text.
    """
    rank: int | None = None
    for _ in range(4):  # launchers nest, but not without end
        first = text[:1]
        if first == "[":
            if text[5:6] == "-" and text[8:9] == "-" and text[1:3] == "20":  # a date
                break
            found = _BRACKETED.match(text)
            if found is None:
                break
            named = found[1] or found[2]
            rank = int(named) if named else rank
        elif first == "(":
            found = _RAY.match(text)
            if found is None:
                break
            worker = _RAY_RANK.search(found[0]) if "rank=" in found[0] else None
            rank = int(worker[1]) if worker else rank
            if "x across cluster]" in text:
                text = _REPEATED.sub("", text)
        elif first in "rRg":
            found = _BARE.match(text)
            if found is None:
                found = _HOST.match(text)
                if found is None:
                    found = _COMPOSE.match(text)
                    if found is None:
                        break
            else:
                rank = int(found[1])
        elif first.isdigit():
            found = None
            if text[4:5] != "-":  # no date
                found = _KAGGLE.match(text) or _HOST.match(text)
            elif "[rank" in text or "[default" in text:
                found = _HOST.match(text)
            if found is None and "]: " in text:
                found = _JOURNALD_ISO.match(text)
            if found is None:
                break
        elif first.isalpha():
            found = None
            if "]:" in text or text[9:10] == ":":
                found = _JOURNALD.match(text) or _HOST.match(text)
            if found is None and " | " in text:
                found = _COMPOSE.match(text)
            if found is None:
                break
        else:
            break
        text = text[found.end() :]
    if rank is None and ("rank" in text or "Rank" in text or "RANK" in text):
        found = _NAMED_INSIDE.search(text, 0, 300) or _NAMED_FIRST.match(text)
        if found:
            rank = int(found[found.lastindex or 1])
    return rank, text
