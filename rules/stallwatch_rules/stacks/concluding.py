"""What the stacks add to a diagnosis: the rank to look at, and what it does."""

from __future__ import annotations

import msgspec

from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.words import sentence


def with_stacks(diagnosis: Diagnosis, stacks: StallStacks, language: str = "en") -> Diagnosis:
    """The diagnosis with the sentence in its digest; a standstill without a cause gets the odd rank.

    A cause that a log told is not moved to another rank: whoever hangs may hang because of it.
    """
    told = sentence(stacks, language)
    if not told:
        return diagnosis
    primary = diagnosis.primary
    if primary is not None and primary.rule in STANDSTILLS and stacks.odd:
        primary = msgspec.structs.replace(
            primary, rank=stacks.odd[0], evidence=[told, *(line for line in primary.evidence if line != told)]
        )
    digest = [told, *(line for line in diagnosis.digest if line != told)]
    return msgspec.structs.replace(diagnosis, primary=primary, digest=digest)
