"""A run that stands without a word."""

from __future__ import annotations

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.text.digest import short_duration
from stallwatch_rules.text.sentences import say


def judge_silence(facts: RunFacts) -> Judgement | None:
    """A hang without a message: steps, then nothing for longer than the run's own rhythm allows."""
    if facts.complete or not facts.stalled:
        return None
    if facts.silence is None:
        return Judgement("fatal", say("silent-by-watch", facts.language))
    return Judgement(
        "fatal",
        say(
            "silent",
            facts.language,
            silence=short_duration(facts.waited),
            threshold=short_duration(facts.threshold),
        ),
    )
