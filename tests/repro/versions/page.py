"""docs/versions.md, generated from the results: one table for each failure, one row for each stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watched import KINDS, Seen

from stallwatch_rules.pages.catalogue import load_catalogue

from .attempts import ATTEMPTS, Attempt
from .stacks import STACKS

PAGE = "docs/versions.md"
_MOST = 150  #: largest number of characters of an exception's text

_HEAD = """# What each version prints, hides or raises

Written by `make test-versions`, which makes an environment for each stack below, runs the same small programs
([`tests/repro/`](../tests/repro/)) under `stallwatch run` in all of them, two ranks on the CPU over gloo, and
compares what it sees with [what is expected](../tests/repro/versions/expected.py). Nothing here is edited by
hand.

* **log**: the last words of the exception that ended a rank, and whether DeepSpeed printed that it threw its
  trace cache away ("messages").
* **probe**: optimizer steps that rank 0 reported, how often a rank threw the trace cache away and why
  (*mismatch*: a different module than last time; *short*: more modules than last time; *external*: from
  outside the forward pass), whether it reported the exception, and of what it warned while the run still
  continued.
* **diagnosis**: the verdict of Stallwatch and the rule that it names as the cause.

## The stacks
"""


def page(results: Mapping[tuple[str, str], Seen]) -> str:
    """Return the whole page, which marks the attempts that were not run."""
    parts = [_HEAD, *_stacks(results), *_glance(results)]
    for attempt in ATTEMPTS:
        parts += ["", f"## {attempt.title}", "", f"`{' '.join((attempt.program, *attempt.options))}`", ""]
        parts += _table(attempt, results)
    return "\n".join(parts) + "\n"


def _glance(results: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    yield from ("", "## At a glance", "")
    yield "*raises*: a rank ends in an exception. *says*: the log shows it, and the run continues."
    yield "*hides*: only the probe sees it. *well*: there is nothing to see. Empty: not tried."
    yield ""
    yield f"| | {' | '.join(stack.deepspeed for stack in STACKS)} |"
    yield "|---" * (1 + len(STACKS)) + "|"
    for attempt in ATTEMPTS:
        seen = [results.get((stack.name, attempt.name)) for stack in STACKS]
        yield f"| {attempt.title} | {' | '.join('' if each is None else _course(each) for each in seen)} |"


def _course(seen: Seen) -> str:
    """Return the outcome of such a run in one word."""
    if seen.raised:
        return "raises"
    if seen.messages:
        return "says"
    return "hides" if seen.early or any(seen.invalidations.values()) else "well"


def _stacks(results: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    told = [seen.versions for seen in results.values()]
    common = [
        f"{name} {', '.join(sorted({each[name.lower()] for each in told if name.lower() in each}))}"
        for name in ("Python", "torch")
    ]
    yield f"All with {' and '.join(common)}."
    yield ""
    yield "| DeepSpeed | TRL | transformers | accelerate | PEFT | datasets |"
    yield "|---|---|---|---|---|---|"
    for stack in STACKS:
        cells = (stack.deepspeed, stack.trl, stack.transformers, stack.accelerate, stack.peft, stack.datasets)
        yield f"| {' | '.join(cells)} |"


def _table(attempt: Attempt, results: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    yield (
        "| DeepSpeed | TRL | log | probe | diagnosis |"
        if attempt.trainer
        else "| DeepSpeed | log | probe | diagnosis |"
    )
    yield "|---|---|---|---|---|" if attempt.trainer else "|---|---|---|---|"
    for stack in STACKS:
        if attempt.fits(stack):
            versions = [stack.deepspeed, stack.trl] if attempt.trainer else [stack.deepspeed]
            seen = results.get((stack.name, attempt.name))
            cells = ["not tried", "", ""] if seen is None else [_log(seen), _probe(seen), _diagnosis(seen)]
            yield f"| {' | '.join([*versions, *cells])} |"


def _log(seen: Seen) -> str:
    parts = (
        [_code(seen.raised[0])]
        if seen.raised
        else ["ends well" if seen.exit_code == 0 else "ends with an error"]
    )
    if seen.messages:
        parts.append(_many(seen.messages, "message"))
    elif any(seen.invalidations.values()):
        parts.append("no message")
    return "; ".join(parts)


def _probe(seen: Seen) -> str:
    parts = [_many(seen.steps.get("0", 0), "step")]
    parts += [f"{seen.invalidations[kind]} {kind}" for kind in KINDS if seen.invalidations.get(kind)]
    if seen.exceptions:
        parts.append("the exception")
    return ", ".join([*parts, *(f"**warned of** {each}" for each in seen.early)])


def _diagnosis(seen: Seen) -> str:
    if seen.primary is None:
        return seen.verdict
    family = load_catalogue().pages[seen.primary].family
    link = f"../rules/stallwatch_rules/catalogue/{family}/{seen.primary}.md"
    return f"{seen.verdict}: [{seen.primary}]({link})"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _code(text: str) -> str:
    short = text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"
    return f"`{short.replace('`', chr(39)).replace('|', '¦')}`"
