"""Remove matches that concern either the end of other programs or unrelated exceptions with the same text.

A script that watches the GPUs, shows curves, or serves a model alongside the training can end because of a
signal or with an exit status at any time. The shell, container, or systemd unit that reports the end usually
names the program.
"""

from __future__ import annotations

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import is_exception_line
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams
from stallwatch_rules.failures.raised import ExceptionChain, found_in
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.text.lazy import lazy

#: Lines that report the end of a program and name the program by its command (such as bash or zsh), target
#: (make), container (Docker Compose), or unit (systemd).
_PROGRAM = lazy(
    r"(?:[:：] ?(?:line \d+: +|(?:第 ?\d+ ?行|行 ?\d+)[：:] *)\d+ +|^zsh: )"
    r"(?:[A-Z][a-z]+(?:/[a-z]+)?|Real-time|[a-z-]+|[^\x00-\x7f]+)(?: ?(?:defined|time|size|limit|exceeded"
    r"|expired|timer|signal|system|call|clock|fault|trap|error|exception|point|instruction|hardware"
    r"|\d{1,2}))* *"
    r"(?:\((?:core dumped|核心已转储|吐核)\) *)?(?P<command>\S.*)"
    r"|^g?make(?:\[\d+\])?: \*\*\* \[[^\]:]{1,160}:\d+: (?P<target>[^\]]+)\]"
    r"|^(?:container )?(?P<container>[\w.-]{1,80})(?: +\|)? exited with code \d+\W*$"
    r"|(?P<unit>[\w.@:-]{1,80})\.service: Main process exited, code="
)
#: Programs that run alongside the training and are never the training itself.
_HELPER = lazy(
    r"(?i)^(?:\S*/)?(?:nvidia-\w+|dcgm\w*|dcgmi|nvtop|nvitop|gpustat|h?top|iostat|vmstat|sar|tail|sleep|watch|tee"
    r"|(?:auto)?sshd?|tensorboard|mlflow|jupyter\w*|redis(?:-server)?|minio|prometheus|grafana|telegraf|cron|dbus"
    r"|(?:[\w-]+[-_])?(?:exporter|sidecar|proxy|monitor)|docker|containerd|rsyslog|apt|snapd|systemd-\w+|user)"
    r"(?![a-zA-Z_])"
    r"|^(?:\S*/)?python[\d.]* (?:-[mu] ?)*(?:\S*[/_-])?(?:tensorboard|monitor|exporter|http\.server|jupyter)"
)
#: Programs that start training. Programs that match `_SERVES` are services, even if such a program starts
#: them.
_TRAINS = lazy(
    r"(?i)python|torchrun|accelerate|deepspeed|srun|mpirun|horovodrun|swift|llamafactory|tun(?:e|ing)|train|sft|dpo|ppo"
)
_SERVES = lazy(r"(?i)vllm|sglang|serve|server|api|tensorboard|monitor|exporter|proxy")
#: A report of a program's end that does not name the program. A sandbox that calculates rewards prints many
#: such reports.
_NAMELESS = lazy(r"(?i:\bcode)[:= ]+\d+|^[A-Z][a-z][\w /-]{2,40}(?: ?\(core dumped\))?\s*$")
#: Maximum number of reported program ends. If a log contains more reports, the run itself calls the programs.
MOST_RESTARTS = 5


def without_helpers(found: list[RuleFinding]) -> list[RuleFinding]:
    """Return the findings, except those whose lines all report the end of a helper program."""
    return [finding for finding in found if not finding.hits or not all(map(_is_helper, finding.texts()))]


def is_of_other_program(finding: RuleFinding) -> bool:
    """Return whether all lines of a finding report the end of a program other than the training program."""
    return bool(finding.hits) and all(map(_is_another, finding.texts()))


def is_recurring_noise(finding: RuleFinding) -> bool:
    """Return whether a finding reports the end of unnamed programs too often to concern the run's end."""
    if not finding.tagged("any-process") or finding.count <= MOST_RESTARTS:
        return False
    for hits in finding.hits.values():
        # True if other lines are between the matches.
        spread = hits.last_index - hits.first_index >= 2 * (hits.count - 1)
        if not (spread and 4 * hits.count >= hits.mark > MOST_RESTARTS):
            return False
    return all(_NAMELESS.search(text) and not _program_in(text) for text in finding.texts())


def _is_helper(text: str) -> bool:
    name = _program_in(text)
    return bool(name) and bool(_HELPER.search(name))


def _is_another(text: str) -> bool:
    name = _program_in(text)
    return bool(name) and (not _TRAINS.search(name) or bool(_SERVES.search(name)))


def _program_in(text: str) -> str:
    """Return the name of the program whose end a line reports, or an empty string if there is no name."""
    match = _PROGRAM.search(text)
    return next(filter(None, match.groups()), "") if match else ""


#: String literals in code can contain the search words, as in ``row["RANK"]``.
_STRINGS = lazy(r"'[^']*'|\"[^\"]*\"")


def without_foreign_exceptions(found: list[RuleFinding], streams: Streams) -> list[RuleFinding]:
    """Return the findings, excluding exceptions from code to which their page does not apply.

    ``KeyError: 'optimizer'`` concerns a checkpoint if it is raised while a checkpoint is loaded, and a
    configuration otherwise. A page names the matching code in ``said_by``. The check applies only if the log
    shows the exception's stack frames. If a script does all its work in ``main``, the check uses the line of
    code in the innermost frame, such as ``load_state_dict(…)``.
    """
    kept = (
        _without_foreign_streams(finding, streams) if finding.page.said_by and finding.hits else finding
        for finding in found
    )
    return [finding for finding, before in zip(kept, found, strict=True) if finding.hits or not before.hits]


def _without_foreign_streams(finding: RuleFinding, streams: Streams) -> RuleFinding:
    """Return the finding without the streams in which all exceptions are from unrelated code."""
    hits = dict(finding.hits)
    for key in finding.hits:
        table = streams[key].exceptions_now().seen.values()
        seen = [each.last for each in table if finding.rule in each.last.rules]
        fitting = [raised for raised in seen if not _is_foreign(finding.page, raised)]
        if seen and not fitting and any(is_exception_line(finding.hits[key], raised) for raised in seen):
            del hits[key]
    return replace(
        finding, hits=hits, occurrences=tuple(at for at in finding.occurrences if at.stream in hits)
    )


def _is_foreign(page: RulePage, raised: ExceptionChain) -> bool:
    """Return whether the exception's text fits several pages and its stack frames do not fit this page."""
    text = f"{raised.exception}: {raised.message}"
    for entry in page.said_by:
        if not raised.frames or not found_in(entry.words, text):
            continue
        calls = [f"{call.path} in {call.name}".replace("\\", "/") for call in raised.frames]
        places = [*calls, _STRINGS.sub("", raised.source)]
        if entry.calls and not any(found_in(entry.calls, part) for part in places):
            return True
        if entry.never and any(found_in(entry.never, call) for call in calls):
            return True
    return False
