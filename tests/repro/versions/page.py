"""docs/versions.md, generated from the results: one table for each failure, one row for each stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watched import KINDS, Seen

from stallwatch_rules.pages.catalogue import load_catalogue

from .attempts import ATTEMPTS, Attempt
from .stacks import STACKS

PAGE = "docs/versions.md"
_MOST = 150  #: largest number of characters of an exception's text

_HEAD = """# What each version prints, hides, or raises

The `make test-versions` command generates this page, so do not edit it by hand. For each combination of
package versions (a *stack*), the command creates an environment. In each environment, it runs the same
small programs ([`tests/repro/`](../tests/repro/)) under `stallwatch run`, with two ranks on the CPU over
gloo. It then compares the results with [the expected results](../tests/repro/versions/expected.py).

The table for each attempt has the following columns:

* **Log**: the exception that ended a rank, and the number of messages in which DeepSpeed reported that it
  invalidated its trace cache.
* **Probe**: the number of optimizer steps that rank 0 reported, the number of trace-cache invalidations of a
  rank with their kind, and the exception, if the probe reported it. The probe *warned* if it reported the
  fault while the run continued. In this case, the rule follows in parentheses. The kinds of invalidations
  are *mismatch* (a different module than in the previous pass), *short* (more modules than in the previous
  pass), and *external* (from outside the forward pass).
* **Diagnosis**: the verdict of Stallwatch, and the rule of the root cause.

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
    yield "This table shows the result of each attempt (a program with options). The cells have these values:"
    yield ""
    yield "* *raises*: a rank ends with an exception."
    yield "* *logs*: the log shows the fault, and the run continues."
    yield "* *hides*: only the probe shows the fault."
    yield "* *works*: the run has no fault."
    yield ""
    yield "If a cell is empty, the program was not run with this version."
    yield ""
    yield f"| Attempt | {' | '.join(stack.deepspeed for stack in STACKS)} |"
    yield "|---" * (1 + len(STACKS)) + "|"
    for attempt in ATTEMPTS:
        seen = [results.get((stack.name, attempt.name)) for stack in STACKS]
        yield f"| {attempt.title} | {' | '.join('' if each is None else _course(each) for each in seen)} |"


def _course(seen: Seen) -> str:
    """Return the outcome of such a run in one word."""
    if seen.raised:
        return "raises"
    if seen.messages:
        return "logs"
    return "hides" if seen.early or any(seen.invalidations.values()) else "works"


def _stacks(results: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    messages = [seen.versions for seen in results.values()]
    common = [
        f"{name} {', '.join(sorted({each[name.lower()] for each in messages if name.lower() in each}))}"
        for name in ("Python", "torch")
    ]
    yield f"All stacks use {' and '.join(common)}."
    yield ""
    yield "| DeepSpeed | TRL | transformers | accelerate | PEFT | datasets |"
    yield "|---|---|---|---|---|---|"
    for stack in STACKS:
        cells = (stack.deepspeed, stack.trl, stack.transformers, stack.accelerate, stack.peft, stack.datasets)
        yield f"| {' | '.join(cells)} |"


def _table(attempt: Attempt, results: Mapping[tuple[str, str], Seen]) -> Iterator[str]:
    yield (
        "| DeepSpeed | TRL | Log | Probe | Diagnosis |"
        if attempt.trainer
        else "| DeepSpeed | Log | Probe | Diagnosis |"
    )
    yield "|---|---|---|---|---|" if attempt.trainer else "|---|---|---|---|"
    for stack in STACKS:
        if attempt.fits(stack):
            versions = [stack.deepspeed, stack.trl] if attempt.trainer else [stack.deepspeed]
            seen = results.get((stack.name, attempt.name))
            cells = ["not run", "", ""] if seen is None else [_log(seen), _probe(seen), _diagnosis(seen)]
            cells = [cell[:1].upper() + cell[1:] for cell in cells]
            yield f"| {' | '.join([*versions, *cells])} |"


def _log(seen: Seen) -> str:
    end = "the run finished normally" if seen.exit_code == 0 else "the run ended with an error"
    parts = [f"a rank raised {_code(seen.raised[0])}" if seen.raised else end]
    if seen.messages:
        parts.append(f"the log contains {_many(seen.messages, 'trace-cache message')}")
    elif any(seen.invalidations.values()):
        parts.append("the log contains no trace-cache messages")
    return "; ".join(parts)


def _probe(seen: Seen) -> str:
    parts = [_many(seen.steps.get("0", 0), "step")]
    parts += [
        f"{_many(seen.invalidations[kind], 'trace-cache invalidation')} ({kind})"
        for kind in KINDS
        if seen.invalidations.get(kind)
    ]
    if seen.exceptions:
        parts.append("the exception")
    return "; ".join(
        [
            f"the probe reported {_listed(parts)}",
            *(f"it **warned** (rule `{each}`)" for each in seen.early),
        ]
    )


def _diagnosis(seen: Seen) -> str:
    if seen.primary is None:
        return seen.verdict
    family = load_catalogue().pages[seen.primary].family
    link = f"../rules/stallwatch_rules/catalogue/{family}/{seen.primary}.md"
    return f"{seen.verdict} because of [`{seen.primary}`]({link})"


def _listed(parts: Sequence[str]) -> str:
    """Return the parts as an English enumeration."""
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _code(text: str) -> str:
    short = text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"
    return f"`{short.replace('`', chr(39)).replace('|', '¦')}`"
