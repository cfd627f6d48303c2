"""Whether numbers in names of files are those of jobs, or may be something else's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping

from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.text.lazy import lazy

_FEW_DIGITS, _MOST_DIGITS = 4, 10
# Behind these words a number counts, names a process or an address, or says how large something is.
_NO_JOB = lazy(
    r"""rank | node | nodes | host | hosts | machine | worker | workers | proc | process | procs | procid |
    pid | ppid | tid | port | gpu | gpus | device | dev | npu | cpu | core | local | global | localrank
    | globalrank | task | tasks | thread | part | parts | shard | chunk | split | piece | seed | step |
    steps | iter | iters | iteration | epoch | epochs | ckpt | checkpoint | batch | bs | mbs | gbs | seq
    | seqlen | len | length | ctx | lr | nccl | hccl | plog | agent | replica | pod | stage | pp | tp |
    dp | cp | ep | mp | sp | group | attempt | restart | retry | try | fold | layer | layers | size |
    dim | hidden | vocab | tokens | samples | max | min | num | n | t | r | v | year | date | day | time
    | ip | dgx | nid | cn | compute | server | python | ray | raylet | actor | member | peer | slice |
    zone | rack | hgx | vm | instance | inst | vllm | sglang | api | endpoint | tpu | chip | blade | i | s
    | hostname | master | chief | ps | head | launcher | rdzv | elastic | xid | expert | experts | sub
    | subprocess | child | dataloader | loader | jupyter | stack | stacks | pystack | spy | trace | dump
    | recorder | prof | profile | memory""",
    re.VERBOSE,
)
_LAST_WORD = lazy(r"([a-z]+)[-_.]?\d*[-_.]*$")
# Machines are called after the chips in them, and by their addresses.
_MACHINE = lazy(
    r"""(?<![a-z0-9]) (?: (?:gb|gh|[abhlpv])\d{1,3}0s? | [lt]4 | mi\d{3}x? | v\d{1,2}[ep] | 910[a-d] | k8s
                        | ip(?:[-_.]\d{1,3}){2,3} ) [-_.]$""",
    re.VERBOSE,
)
# Wherever they stand: Ray's workers, NCCL's and CANN's own logs put the process behind more than that.
_PROCESSES = lazy(r"(?<![a-z])(?:rank|nccl|hccl|pid|plog|worker|raylet|driver)(?![a-z])", re.IGNORECASE)
_DATE = lazy(r"(?<!\d)(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?!\d)")
_EPOCHS = range(1_400_000_000, 2_200_000_000)  # Unix seconds, from 2014 on
_YEARS = range(2015, 2040)
_ROUND = 100
_PORTS = (range(6000, 6064), range(8000, 8100), range(12300, 12400), range(29400, 29600))  # usual ones
_CLOSE = 300  # numbers from one process of a launch to the next, whose threads are numbered, too
_MOST_PROCESSES = 2**22  # Linux numbers no process higher


def names_a_job(numbers: Collection[str]) -> bool:
    """Whether numbers have the form of jobs', and are no dates or times."""
    if not all(_FEW_DIGITS <= len(number) <= _MOST_DIGITS and number[0] != "0" for number in numbers):
        return False
    return not all(map(_is_moment, numbers))


def counts_other(text: str) -> bool:
    """Whether what a text ends with, but for a number, is a rank, a node or whatever else is no job."""
    word = _LAST_WORD.search(text.lower())
    return word is not None and _NO_JOB.fullmatch(word[1]) is not None


def numbers_jobs(text: str, numbers: Mapping[str, Collection[str]]) -> bool:
    """Whether the numbers behind a text, each with the endings of its files, can only be jobs'."""
    if (
        counts_other(text)
        or _MACHINE.search(text.lower())
        or _PROCESSES.search(text)
        or _DATE.search(text)
        or rank_of_path(text) is not None
    ):
        return False
    if not names_a_job(numbers) or len({len(number) for number in numbers}) > 2:
        return False
    counts = sorted(map(int, numbers))
    if counts[-1] > 10 * counts[0] or all(count % _ROUND == 0 for count in counts):
        return False  # steps, sizes
    dense = counts[-1] - counts[0] == len(counts) - 1
    if dense and len(counts) > 1 and (counts[0] % _ROUND == 0 or any(counts[0] in one for one in _PORTS)):
        return False  # counted on from a round number: ports, ranks
    return not _may_be_processes(text, numbers, counts)


def _may_be_processes(text: str, numbers: Mapping[str, Collection[str]], counts: list[int]) -> bool:
    """Whether each may be a process's own log, `train_45012.log`: loggers put that number there, too."""
    if any(end != "log" for ends in numbers.values() for end in ends):
        return False
    if counts[-1] > _MOST_PROCESSES:
        return False
    if not text.endswith("_"):
        return True
    # A node starts several, soon after each other: where a number is alone, they are of no launch.
    gaps = [float("inf"), *(after - before for before, after in itertools.pairwise(counts)), float("inf")]
    return all(min(around) <= _CLOSE for around in itertools.pairwise(gaps))


def _is_moment(number: str) -> bool:
    """Whether a number may be a date or a time."""
    if len(number) == 4:
        return int(number) in _YEARS
    if len(number) == 6:  # yymmdd
        return 15 <= int(number[:2]) < 40 and _is_day(number[2:])
    if len(number) == 8:  # yyyymmdd, mmddHHMM
        return (int(number[:4]) in _YEARS and _is_day(number[4:])) or (
            _is_day(number[:4]) and int(number[4:6]) < 24 and int(number[6:]) < 60
        )
    if len(number) == 10:  # Unix seconds, yymmddHHMM, mmddHHMMSS
        return int(number) in _EPOCHS or _is_day(number[2:6]) or _is_day(number[:4])
    return False


def _is_day(number: str) -> bool:
    return 1 <= int(number[:2]) <= 12 and 1 <= int(number[2:]) <= 31
