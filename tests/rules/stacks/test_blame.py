"""Blame of ranks that hold up others, by their activity and their progress in process groups."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stallwatch_rules.locale import render
from stallwatch_rules.stacks.blame import AGREED, COUNTED, SILENT, STACKS, UNSURE, blame
from stallwatch_rules.stacks.folding import by_host, of_odd_ranks, over_hosts
from stallwatch_rules.stacks.records import Collectives, RankGroup, StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import sentence, stacks_file
from stallwatch_rules.stacks.spans import members_of, ranks_in, spans_of

WORLD = RankGroup("world:0-7", "0-7", "world", "world")
# Two replicas of two pipeline stages with two tensor-parallel ranks each.
TP = [RankGroup(f"tp:{n}-{n + 1}", f"{n}-{n + 1}", "tp", "tp") for n in (0, 2, 4, 6)]
PP = [RankGroup(f"pp:{n},{n + 4}", f"{n},{n + 4}", "pp", "pp") for n in range(4)]


def group(ranks: str, kind: Any = "collective", what: str = "all_reduce", **about: Any) -> StackGroup:
    place = about.pop("place", f"train.py:42 in {what}" if what else "train.py:11 in score")
    return StackGroup([*ranks_in(ranks)], kind, what=what, place=place, **about)


def at(
    joined: int, done: int | None = None, operation: str = "", id: str = WORLD.id
) -> dict[str, Collectives]:
    return {id: Collectives(joined, done, operation)}


def waits(ranks: str, joined: int = 7, operation: str = "all_reduce", **about: Any) -> StackGroup:
    return group(ranks, what=operation, collectives=at(joined, joined - 1, operation), **about)


CASES: dict[str, tuple[list[StackGroup], str, str, float]] = {
    "elsewhere, by number and by stack": (
        [waits("0-6"), group("7", "code", "", collectives=at(6, 6))],
        "7",
        "elsewhere",
        AGREED,
    ),
    "elsewhere, by its stack alone": ([group("0-6"), group("7", "code", "")], "7", "elsewhere", STACKS),
    "elsewhere, where only what was joined is counted": (
        [group("0-6", collectives=at(7)), group("7", "data", "DataLoader", collectives=at(6))],
        "7",
        "elsewhere",
        AGREED,
    ),
    "of several that are elsewhere, the one that is missed": (
        [
            waits("0-5"),
            group("6", "code", "", collectives=at(7, 6, "all_reduce")),
            group("7", "code", "", collectives=at(6, 6)),
        ],
        "7",
        "elsewhere",
        AGREED,
    ),
    "no stack, but missed": (
        [waits("0-6"), group("7", "unknown", "", collectives=at(6, 6))],
        "7",
        "elsewhere",
        COUNTED,
    ),
    "all are in their own code and wait for a device": (
        [group("0-6", "code", "", collectives=at(7, 6)), group("7", "code", "", collectives=at(6, 6))],
        "7",
        "behind",
        COUNTED,
    ),
    "left a collective out": ([waits("0-6"), waits("7", 6, "barrier")], "7", "behind", COUNTED),
    "joined another operation": ([waits("0-6"), waits("7", 7, "broadcast")], "7", "diverged", COUNTED),
    "joined, and not done": (
        [waits("0-6", 8), waits("7", 7)],
        "7",
        "unfinished",
        COUNTED,
    ),
    "all joined it, and some are not done": (
        [group("0-6", collectives=at(7, 7)), group("7", collectives=at(7, 6))],
        "7",
        "unfinished",
        STACKS,
    ),
    "all joined it, and none is done": ([waits("0-7")], "", "unfinished", COUNTED),
    "all joined it, and nobody counts what is done": (
        [group("0-7", collectives=at(7))],
        "",
        "unfinished",
        STACKS,
    ),
    "ended": ([waits("0-6"), group("7", "unknown", "", condition="ended")], "7", "ended", AGREED),
    "stopped": ([waits("0-6"), group("7", condition="stopped")], "7", "stopped", AGREED),
    "all stopped": ([group("0-7", "code", "", condition="stopped")], "", "frozen", AGREED),
    "all blocked in the kernel": (
        [group("0-7", "save", "torch.save", condition="blocked")],
        "",
        "outside",
        STACKS,
    ),
    "all join the process group": ([group("0-7", "joining", "init_process_group")], "", "outside", STACKS),
    "all are in the same code": ([group("0-7", "code", "")], "", "", 0.0),
}


@pytest.mark.parametrize(("groups", "ranks", "why", "confidence"), CASES.values(), ids=CASES)
def test_odd_ranks_of_a_host(groups: list[StackGroup], ranks: str, why: str, confidence: float) -> None:
    found = blame(groups, [WORLD], world=8)
    assert (spans_of(found.ranks), found.why, found.confidence) == (ranks, why, confidence)


def in_pipeline(ranks: str, what: str, tp: int, under_way: str = "") -> StackGroup:
    counts = {
        item.id: Collectives(tp, tp - bool(under_way), under_way)
        for item in TP
        if set(ranks_in(item.ranks)) & {*ranks_in(ranks)}
    }
    return group(ranks, what=what, collectives=counts)


def test_of_a_pipeline_the_rank_is_found_that_its_stage_and_all_others_wait_for() -> None:
    groups = [
        in_pipeline("0-3,6-7", "recv", 4),
        in_pipeline("4", "all_reduce", 4, "all_reduce"),
        group("5", "code", "", collectives=at(3, 3, id="tp:4-5")),
    ]
    found = blame(groups, [WORLD, *TP, *PP], world=8)
    assert (found.ranks, found.why, found.confidence) == ((5,), "elsewhere", AGREED)
    without = [replace(group, collectives={}) for group in groups]
    assert blame(without, [], world=8).ranks == (5,)


def test_of_ranks_that_wait_at_many_places_of_a_pipeline_none_is_blamed_by_its_stack() -> None:
    groups = [group("0-3,6-7", what="recv"), group("4"), group("5", what="barrier")]
    found = blame(groups, [*TP, *PP], world=8)
    assert (found.ranks, found.candidates) == ((), (4, 5))


def test_in_a_circle_of_waits_the_rank_is_blamed_that_contradicts_the_others() -> None:
    """Rank 1 skipped a collective of its group of four, and waits for them in the next one of all ranks."""
    tp = RankGroup("tp:0-3", "0-3", "tp", "tp")
    groups = [
        group("0,2-3", collectives={**at(5, 4, "all_reduce", tp.id), **at(2, 2)}),
        group("1", what="all_gather", collectives={**at(4, 4, "", tp.id), **at(3, 2, "all_gather")}),
        group("4-7", what="all_gather", collectives=at(3, 2, "all_gather")),
    ]
    found = blame(groups, [WORLD, tp], world=8)
    assert (found.ranks, found.why, found.confidence) == ((1,), "diverged", STACKS)


def test_stage_whose_collective_hangs_is_not_done_and_the_others_wait_for_it() -> None:
    groups = [in_pipeline("0-3,6-7", "recv", 4), in_pipeline("4-5", "all_reduce", 4, "all_reduce")]
    groups[0].collectives |= at(9, 8, "all_reduce")
    groups[1].collectives |= at(8, 8)
    found = blame(groups, [WORLD, *TP], world=8)
    assert (found.ranks, found.why) == ((4, 5), "unfinished")


@pytest.mark.parametrize(
    ("groups", "hosts", "silent", "ranks", "why", "most"),
    [
        ([waits("0-3")], {"n2": "4-7"}, ["n2"], "4-7", "unreachable", SILENT),
        ([waits("0-3")], {"n1": "0-3"}, ["n2"], "4-7", "unreachable", SILENT),
        ([waits("0-3")], {}, [], "", "", 0.0),
        ([waits("0-2"), group("3", "code", "", collectives=at(6, 6))], {}, [], "3", "elsewhere", UNSURE),
        (
            [waits("0-2"), group("3", "code", "", collectives=at(6, 6))],
            {"n2": "4-7"},
            ["n2"],
            "3",
            "elsewhere",
            SILENT,
        ),
        ([group("0-3", "unknown", "", condition="ended")], {"n2": "4-7"}, ["n2"], "", "", 0.0),
        # the ranks that responded contradict each other, so the silent host is not the cause
        ([waits("0-2"), waits("3", 7, "barrier")], {"n2": "4-7"}, ["n2"], "3", "diverged", SILENT),
        ([], {"n2": "4-7"}, ["n2"], "4-7", "unreachable", UNSURE),
        ([], {}, [], "", "", 0.0),
    ],
)
def test_unknown_facts_give_no_certainty(
    groups: list[StackGroup], hosts: dict[str, str], silent: list[str], ranks: str, why: str, most: float
) -> None:
    found = blame(groups, [WORLD] if groups else [], world=8 if groups else 0, hosts=hosts, silent=silent)
    assert (spans_of(found.ranks), found.why, found.confidence) == (ranks, why, most)


EXPERTS = RankGroup("ep:8-15", "8-15", "ep", "ep")


@pytest.mark.parametrize(
    ("layout", "few", "ranks", "why", "confidence"),
    [
        ([], "8-14", "15", "diverged", UNSURE),
        ([], "8-15", "8-15", "unfinished", UNSURE),
        ([EXPERTS], "8-14", "15", "diverged", STACKS),
        ([EXPERTS], "8-15", "8-15", "unfinished", STACKS),
        ([], "8,16", "", "", UNSURE),  # most of the adjacent ranks wait elsewhere
        ([], "0-15", "", "", UNSURE),  # as many ranks wait at one place as at the other
        ([EXPERTS], "0-15", "", "", UNSURE),
    ],
)
def test_group_that_waits_elsewhere_reveals_the_odd_ranks_without_counters(
    layout: list[RankGroup], few: str, ranks: str, why: str, confidence: float
) -> None:
    others = spans_of(sorted({*range(32)} - {*ranks_in(few)}))
    found = blame([group(others), group(few, what="all_to_all_single")], layout, world=32)
    assert (spans_of(found.ranks), found.why, found.confidence) == (ranks, why, confidence)


def test_few_ranks_without_reports_are_candidates_if_all_others_wait() -> None:
    found = blame([waits("0-5")], [WORLD], world=8)
    assert (found.ranks, found.candidates, found.confidence) == ((), (6, 7), UNSURE)


def test_ranks_that_the_launcher_ended_after_a_host_was_gone_are_victims() -> None:
    groups = [group("0-2", "unknown", "", condition="ended"), waits("3")]
    found = blame(groups, [WORLD], world=8, hosts={"n2": "4-7"}, silent=["n2"])
    assert (spans_of(found.ranks), found.why) == ("4-7", "unreachable")


ALL, TENSOR, DATA, PIPE = range(4)
EIGHT = {
    "0-7": ALL,
    **dict.fromkeys(("0-1", "2-3", "4-5", "6-7"), TENSOR),
    **dict.fromkeys(("0,2", "1,3", "4,6", "5,7"), DATA),
    **dict.fromkeys(("0,4", "1,5", "2,6", "3,7"), PIPE),
}
SIXTEEN = {
    "0-15": ALL,
    **{f"{n}-{n + 1}": TENSOR for n in range(0, 16, 2)},
    **{f"{n},{n + 2}": DATA for n in (0, 1, 4, 5, 8, 9, 12, 13)},
    **{f"{n},{n + 4},{n + 8},{n + 12}": PIPE for n in range(4)},
}
# State by rank: the call, the kind of its group, and the number of joined collectives of each kind.
States = list[tuple[str, str, int | None, tuple[int, int, int]]]
PIPELINES: dict[str, tuple[dict[str, int], States, list[str], str, str, float]] = {
    "a collective of two hangs, and the stage before waits for its message": (
        EIGHT,
        [
            ("0-1", "recv", None, (9, 2, 5)),
            ("4-5", "all_reduce", TENSOR, (9, 3, 5)),
            ("2-3,6-7", "reduce_scatter", DATA, (9, 4, 6)),
        ],
        [],
        "4-5",
        "unfinished",
        COUNTED,
    ),
    "a host is silent, and the stage before waits for its message": (
        EIGHT,
        [("0-1", "recv", None, (9, 2, 5)), ("2-3,6-7", "reduce_scatter", DATA, (9, 4, 6))],
        ["n2"],
        "4-5",
        "unreachable",
        SILENT,
    ),
    "a host is silent, and nobody knows whose message the others wait for": (
        {spans: kind for spans, kind in EIGHT.items() if kind != PIPE},
        [("0-1", "recv", None, (9, 2, 5)), ("2-3,6-7", "reduce_scatter", DATA, (9, 4, 6))],
        ["n2"],
        "4-5",
        "unreachable",
        SILENT,
    ),
    "left out the last collective of all, and waits for a message of the next step": (
        EIGHT,
        [("0-6", "barrier", ALL, (9, 4, 6)), ("7", "recv", None, (8, 4, 6))],
        [],
        "7",
        "diverged",
        STACKS,
    ),
    "left out a collective of two, and is where its stage has joined more": (
        EIGHT,
        [
            ("0", "all_reduce", TENSOR, (9, 15, 5)),
            ("1", "norm", ALL, (10, 14, 6)),
            ("2", "reduce_scatter", DATA, (9, 16, 6)),
            ("3-7", "norm", ALL, (10, 16, 6)),
        ],
        [],
        "1",
        "diverged",
        STACKS,
    ),
    "left out a collective of two, and is where another stage has joined more": (
        SIXTEEN,
        [
            ("0-1", "recv_backward", None, (9, 6, 5)),
            ("4", "recv_backward", None, (9, 4, 5)),
            ("5", "all_reduce", TENSOR, (9, 5, 5)),
            ("8", "all_reduce", TENSOR, (9, 5, 5)),
            ("9,12-13", "recv_forward", None, (9, 4, 5)),
            ("2-3,6-7,10-11,14-15", "reduce_scatter", DATA, (9, 12, 6)),
        ],
        [],
        "4",
        "diverged",
        STACKS,
    ),
    "either of two may have left a collective out": (
        SIXTEEN,
        [
            ("0-1", "recv_backward", None, (9, 6, 5)),
            ("4", "recv_backward", None, (9, 4, 5)),
            ("5", "all_reduce", TENSOR, (9, 5, 5)),
            ("8", "all_reduce", TENSOR, (9, 5, 5)),
            ("9", "recv_forward", None, (9, 4, 5)),
            ("12-13", "recv_forward", None, (9, 7, 5)),
            ("2-3,6-7,10-11,14-15", "reduce_scatter", DATA, (9, 12, 6)),
        ],
        [],
        "",
        "diverged",
        UNSURE,
    ),
}


@pytest.mark.parametrize(
    ("kinds", "states", "silent", "ranks", "why", "confidence"), PIPELINES.values(), ids=PIPELINES
)
def test_ranks_of_groups_without_names_that_hold_up_a_pipeline(
    kinds: dict[str, int], states: States, silent: list[str], ranks: str, why: str, confidence: float
) -> None:
    layout = [RankGroup(f"{at}:{spans}", spans, str(at)) for at, spans in enumerate(kinds)]
    groups = []
    for here, what, hangs, joined in states:
        for rank in ranks_in(here):
            one = group(str(rank), what=what)
            for each in layout:
                kind = kinds[each.ranks]
                if rank in ranks_in(each.ranks):
                    count = (*joined, 1)[kind]
                    under_way = what if kind == hangs else ""
                    one.collectives[each.id] = Collectives(count, count - (kind == hangs), under_way)
            groups.append(one)
    found = blame(groups, layout, hosts={"n2": "4-5"}, silent=silent)
    assert (spans_of(found.ranks), found.why, found.confidence) == (ranks, why, confidence)


# One rank's state: its call, and its progress in each of its groups.
AXES: list[tuple[str, Any]] = [("0-7", "world"), ("0-3", "tp"), ("4-7", "tp"), ("0,4", "")]
GROUPS = [RankGroup(f"g:{spans}", spans, "g", axis) for spans, axis in AXES]
STATES = st.lists(
    st.tuples(
        st.sampled_from(
            [("collective", "all_reduce"), ("collective", "barrier"), ("code", ""), ("data", "next")]
        ),
        st.sampled_from(["alive", "alive", "alive", "stopped", "ended"]),
        st.tuples(*[st.tuples(st.integers(3, 4), st.sampled_from([None, 2, 3]))] * len(GROUPS)),
    ),
    min_size=8,
    max_size=8,
)


def looked_at(states: list[Any], ranks: list[int], layout: list[RankGroup]) -> StallStacks:
    """Return stacks with one group for each of these ranks."""
    groups = []
    for rank in ranks:
        (kind, what), condition, counts = states[rank]
        found = group(str(rank), kind, what, condition=condition)
        for item, (joined, done) in zip(layout, counts, strict=True):
            if rank in ranks_in(item.ranks):
                found.collectives[item.id] = Collectives(joined, done)
        groups.append(found)
    return StallStacks(1.0, 0.1, groups, elsewhere=8 - len(ranks), layout=layout)


def by_rank(stacks: StallStacks) -> dict[int, StackGroup]:
    """Return each rank's own group, with the counters of its own process groups."""
    members = {item.id: ranks_in(item.ranks) for item in stacks.layout}
    return {
        rank: replace(
            group,
            ranks=[rank],
            collective=None,
            collectives={id: count for id, count in group.collectives.items() if rank in members[id]},
        )
        for group in stacks.groups
        for rank in group.ranks
    }


@given(STATES, st.randoms(use_true_random=False))
def test_run_is_judged_the_same_however_its_ranks_are_spread_over_hosts(
    states: list[Any], chance: random.Random
) -> None:
    ranks = [*range(8)]
    chance.shuffle(ranks)
    cuts = sorted(chance.sample(range(1, 8), chance.randrange(4)))
    spread = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, 8], strict=True)]
    folded = [over_hosts({"": looked_at(states, some, GROUPS)}) for some in spread]
    for each in folded:
        each.hosts = {}
    over = over_hosts({f"n{at}": each for at, each in enumerate(folded)}, world=8)
    at_once = over_hosts({"n": looked_at(states, [*range(8)], GROUPS)}, world=8)
    # Ranks whose counters are of different process groups can be shown together in several ways.
    assert replace(over, hosts={}, groups=[]) == replace(at_once, hosts={}, groups=[])
    assert by_rank(over) == by_rank(at_once)


@given(STATES, st.permutations(range(8)))
def test_other_numbers_for_the_ranks_change_no_judgement(states: list[Any], other: list[int]) -> None:
    found = over_hosts({"n": looked_at(states, [*range(8)], GROUPS)})
    renamed = [replace(item, ranks=spans_of(other[rank] for rank in ranks_in(item.ranks))) for item in GROUPS]
    moved: list[Any] = [None] * 8
    for rank, state in enumerate(states):
        moved[other[rank]] = state
    again = over_hosts({"n": looked_at(moved, [*range(8)], renamed)})
    assert again.odd == sorted(other[rank] for rank in found.odd)
    assert again.candidates == sorted(other[rank] for rank in found.candidates)
    assert (again.why, again.confidence) == (found.why, found.confidence)


def test_of_two_that_wait_for_each_other_the_one_that_called_another_operation_is_named() -> None:
    """Rank 3 gathers over all ranks instead of its data-parallel reduction with rank 7."""
    shift = {rank: RankGroup(f"dp:{rank},{rank + 4}", f"{rank},{rank + 4}", "dp") for rank in range(4)}

    def called(rank: int, what: str, joined: int, reduced: int) -> StackGroup:
        counts = {WORLD.id: Collectives(joined), shift[rank % 4].id: Collectives(reduced)}
        return group(str(rank), what=what, collectives=counts)

    groups = [called(rank, "all_reduce", 123, 246) for rank in (0, 1, 2, 4, 5, 6)]
    groups += [called(3, "all_gather", 123, 244), called(7, "all_reduce", 122, 245)]
    found = blame(groups, [WORLD, *shift.values()], world=8)
    assert (found.ranks, found.why, found.confidence) == ((3,), "diverged", COUNTED)


def host(ranks: str, *groups: StackGroup, world: int = 16) -> StallStacks:
    return StallStacks(1.0, 0.1, [*groups], elsewhere=world - len(ranks_in(ranks)))


def test_sentence_names_the_rank_and_its_host() -> None:
    parts = {f"n{at}": host("0-7", group(f"{8 * at}-{8 * at + 7}"), world=1024) for at in range(128)}
    parts["n1"] = host("8-15", group("8,10-15"), group("9", "code", ""), world=1024)
    found = over_hosts(parts, world=1024)
    assert (found.odd, found.elsewhere, found.hosts["n127"]) == ([9], 0, "1016-1023")
    assert render(sentence(found)) == (
        "Rank 9 on n1 is at train.py:11 in score;"
        " the other 1,023 ranks on 128 hosts wait in all_reduce (train.py:42 in all_reduce)."
    )
    assert render(sentence(found), "zh").startswith("n1 上的 rank 9")


def test_sentence_names_a_host_that_does_not_answer() -> None:
    parts = {"n1": host("0-7", group("0-7"))}
    found = over_hosts(parts, silent=["n2"], world=16)
    assert (found.odd, found.why, found.silent) == ([*range(8, 16)], "unreachable", ["n2"])
    assert render(sentence(found)).startswith(
        "Host n2 does not answer (ranks 8–15); ranks 0–7 on n1 wait in "
    )
    assert render(sentence(found), "zh").startswith("没有响应的主机：n2（rank 8–15）；")
    quiet = over_hosts(parts, world=16)
    assert quiet.odd == [] and render(sentence(quiet)).endswith("; nothing is known about 8 ranks.")
    many = over_hosts(parts, silent=[f"n{at}" for at in range(2, 9)], world=64)
    assert render(sentence(many)).startswith("Hosts n2, n3, n4, n5, 3 more hosts do not answer")


def test_host_that_answers_without_stacks_is_not_taken_for_the_silent_one() -> None:
    parts = {"n1": host("0-7", group("0-7"), world=24)}
    known = {"n1": "0-7", "n2": "8-15", "n3": "16-23"}
    assert over_hosts(parts, silent=["n2"], world=24).odd == [*range(8, 24)]
    assert over_hosts(parts, silent=["n2"], world=24, ranks=known).odd == [*range(8, 16)]
    del known["n2"]  # this host never reported
    assert over_hosts(parts, silent=["n2"], world=24, ranks=known).odd == [*range(8, 16)]


def test_rank_that_two_hosts_report_is_a_candidate_and_has_no_vote() -> None:
    parts = {"n1": host("0-7", group("0-7")), "n2": host("7-15", group("8-15"), group("7", "code", ""))}
    found = over_hosts(parts, world=16)
    assert (found.odd, found.candidates, found.elsewhere) == ([], [7], 1)
    assert render(sentence(found)).endswith("the rank that holds up the run is among rank 7.")


@pytest.mark.parametrize("spans", ["", "a", "3-1", "0-999999999", "1,,2", "-1", "0-7;9", "9999999999"])
def test_text_that_is_not_a_list_of_ranks_gives_no_ranks(spans: str) -> None:
    assert ranks_in(spans) == ()


@given(st.sets(st.integers(0, 5000)))
def test_ranks_are_read_as_they_were_folded(ranks: set[int]) -> None:
    assert set(ranks_in(spans_of(ranks))) == ranks


def test_of_a_layout_that_no_job_has_only_the_first_groups_are_read() -> None:
    hostile = [RankGroup(f"g{at}", f"0-{100_000 + at}") for at in range(1000)]
    assert 0 < len(members_of(hostile)) < 30
    assert blame([waits("0-7")], hostile).why == ""


def test_odd_ranks_keep_their_process_and_the_file_of_their_host() -> None:
    def look(ranks: str, *groups: StackGroup) -> StallStacks:
        first = ranks_in(ranks)[0]
        return replace(
            host(ranks, *groups, world=6), folder=f"/runs/{first}", file="a.txt", pids={first: 100 + first}
        )

    beside = by_host([("n1", look("2", group("2", "code", ""))), ("n1", look("3", group("3")))])
    found = over_hosts({"n0": look("0-1", group("0-1")), **beside, "n2": host("4-5", group("4-5"))}, world=6)
    assert found.odd == [2] and found.pids == {0: 100, 2: 102, 3: 103}
    assert found.files == {"0-1": "/runs/0/a.txt", "2": "/runs/2/a.txt", "3": "/runs/3/a.txt"}
    few = of_odd_ranks(found)
    assert (few.pids, few.files) == ({2: 102}, {"2": "/runs/2/a.txt"})
    assert stacks_file(few) == ("n1", "/runs/2/a.txt")
    assert stacks_file(replace(few, odd=[])) == stacks_file(replace(few, odd=[4])) == ("", "")
