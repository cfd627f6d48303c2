"""Whose end a shell, a container or systemd tells of: they say the same of a helper as of the training.

A script that watches the GPUs, shows curves or serves a model beside the training ends by a signal or with an
exit status whenever it likes; the line mostly names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.diagnosis.findings import Found

#: Bash and zsh (which say the signal and the command), make (the target), compose (the container), systemd.
_NAMED = lazy(
    r"(?:[:：] ?(?:line \d+: +|(?:第 ?\d+ ?行|行 ?\d+)[：:] *)\d+ +|^zsh: )"
    r"(?:[A-Z][a-z]+(?:/[a-z]+)?|Real-time|[a-z-]+|[^\x00-\x7f]+)(?: ?(?:defined|time|size|limit|exceeded"
    r"|expired|timer|signal|system|call|clock|fault|trap|error|exception|point|instruction|hardware"
    r"|\d{1,2}))* *"
    r"(?:\((?:core dumped|核心已转储|吐核)\) *)?(?P<command>\S.*)"
    r"|^g?make(?:\[\d+\])?: \*\*\* \[[^\]:]{1,160}:\d+: (?P<target>[^\]]+)\]"
    r"|^(?:container )?(?P<container>[\w.-]{1,80})(?: +\|)? exited with code \d+\W*$"
    r"|(?P<unit>[\w.@:-]{1,80})\.service: Main process exited, code="
)
#: Programs that stand beside a training, and never are one.
_HELPER = lazy(
    r"(?i)^(?:\S*/)?(?:nvidia-\w+|dcgm\w*|dcgmi|nvtop|nvitop|gpustat|h?top|iostat|vmstat|sar|tail|sleep|watch|tee"
    r"|(?:auto)?sshd?|tensorboard|mlflow|jupyter\w*|redis(?:-server)?|minio|prometheus|grafana|telegraf|cron|dbus"
    r"|(?:[\w-]+[-_])?(?:exporter|sidecar|proxy|monitor)|docker|containerd|rsyslog|apt|snapd|systemd-\w+|user)"
    r"(?![a-zA-Z_])"
    r"|^(?:\S*/)?python[\d.]* (?:-[mu] ?)*(?:\S*[/_-])?(?:tensorboard|monitor|exporter|http\.server|jupyter)"
)
#: What starts a training; and what such a program serves beside it.
_TRAINS = lazy(
    r"(?i)python|torchrun|accelerate|deepspeed|srun|mpirun|horovodrun|swift|llamafactory|tun(?:e|ing)|train|sft|dpo|ppo"
)
_SERVES = lazy(r"(?i)vllm|sglang|serve|server|api|tensorboard|monitor|exporter|proxy")
#: What a program prints of one that it ran, without a name: a reward's sandbox does so again and again.
_NAMELESS = lazy(r"(?i:\bcode)[:= ]+\d+|^[A-Z][a-z][\w /-]{2,40}(?: ?\(core dumped\))?\s*$")
MOST_RESTARTS = 5  #: a run that ended more often did not: something that it calls did


def leave_out_helpers(found: list[Found]) -> None:
    """Leave out what only says that a helper ended."""
    found[:] = [one for one in found if not one.hits or not all(map(_is_helper, texts_of(one)))]


def of_another(one: Found) -> bool:
    """Whether all its lines name a program that does not look like the training."""
    return bool(one.hits) and all(map(_is_another, texts_of(one)))


def told_in_passing(one: Found) -> bool:
    """Whether its lines name no program, and come in so many steps that they do not tell of the end."""
    if not one.tagged("any-process") or one.count <= MOST_RESTARTS:
        return False
    for hits in one.hits.values():
        spread = hits.last_index - hits.first_index >= 2 * (hits.count - 1)  # other lines came in between
        if not (spread and 4 * hits.count >= hits.mark > MOST_RESTARTS):
            return False
    return all(_NAMELESS.search(text) and not _named(text) for text in texts_of(one))


def texts_of(one: Found) -> Iterator[str]:
    """The lines that are known of a finding."""
    for hits in one.hits.values():
        yield from hits.exemplars
        yield hits.first.line.text
        yield hits.last.line.text


def _is_helper(text: str) -> bool:
    name = _named(text)
    return bool(name) and bool(_HELPER.search(name))


def _is_another(text: str) -> bool:
    name = _named(text)
    return bool(name) and (not _TRAINS.search(name) or bool(_SERVES.search(name)))


def _named(text: str) -> str:
    """The program that a line says to have ended; empty where it names none."""
    told = _NAMED.search(text)
    return next(filter(None, told.groups()), "") if told else ""
