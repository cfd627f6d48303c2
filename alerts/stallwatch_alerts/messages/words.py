"""The sentences of a message. Each language fills in all of them, so none can lack one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec


class Words(msgspec.Struct, frozen=True):
    """Templates for ``str.format``; the names in braces are given by ``compose``."""

    language: str
    duration: Callable[[float], str]
    rank: str  #: {rank}
    step: str  #: {step}
    step_of: str  #: {step}, {total}
    phases: Mapping[str, str]
    harms: Mapping[str, str]
    # Titles, behind "[run] "
    stalled: str  #: {duration}
    stalled_after: str  #: {duration}, {step}
    stalled_in_phase: str  #: {duration}, {phase}
    recovered: str  #: {duration}
    finding: str  #: {harm}, {title}
    finding_over: str  #: {title}
    with_run: Mapping[str, str]  #: by resolution, of what was not mended when its run ended: {title}
    over: Mapping[str, str]  #: by resolution, behind a title: {duration}
    endings: Mapping[str, str]  #: by Ending.kind: {signal}, {duration}
    because: str  #: {ending}, {title}
    with_code: str  #: {ending}, {code}
    in_rank: str  #: {title}, {rank}
    # Text
    more_than: str  #: {duration}, where it reads like the threshold
    stall_sentence: str  #: {duration}, {threshold}
    stall_sentence_start: str  #: {duration}, {threshold}
    stall_sentence_learning: str  #: {duration}, {threshold}
    stall_sentence_plain: str  #: {duration}
    recovered_sentence: str
    over_sentence: Mapping[str, str]  #: by resolution
    unwatched: str  #: {title}: of an incident whose agent is gone
    unwatched_after: str  #: {duration} between the opening and the look that found no agent
    lasted: str  #: {duration}
    run: str  #: {run}
    on_host: str  #: {run}, {host}
    place: str  #: label of rank, step, phase
    last_loss: str  #: {loss}
    comma: str
    cause: str  #: {title}, {rule}, {harm}
    stall_cause: str  #: {title}
    rank_gone: str  #: title of the rule that no page describes
    rank_gone_why: str
    rank_gone_fixes: tuple[str, ...]
    evidence: str
    fixes: str
    look: str  #: before commands
    rank_pid: str  #: {rank}, {pid}
    since: str  #: {when}, {sentence}
    also_seen: str  #: {rules}
    after_stall: str  #: {title}, {duration}
    ended: str  #: {ending}
    exit_code: str  #: {code}
    ran_for: str  #: {duration}
    test_title: str
    test_text: str
    # Groups and alerts that reach us through Alertmanager
    and_others: str  #: {title}, {count}
    also: str  #: before a list of titles
    further: str  #: {count}
    tally: Mapping[str, str]  #: by severity, and "resolved"
    in_all: str  #: {tally}
    late: str  #: {when}, {duration}
    expired: str  #: {count}
    escalated: str  #: {title}, {duration}
    acknowledge: str  #: {id}
    rule_link: str
    page_link: str
    alert_over: str  #: {title}
    alerts: Mapping[
        str, str
    ]  #: by alert, where the rule file's own summary is in another language: {run}, {rank}
