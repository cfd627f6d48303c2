"""Slurm's host lists are expanded as ``scontrol show hostnames`` does, within limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_exporter.cluster.nodelists import MOST_HOSTS, BadNodeList, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [  # expansions that scontrol of Slurm 22.05 prints, except for the last one
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[1-3,07-12]", "n1 n2 n3 n07 n08 n09 n10 n11 n12"),
        ("n[9-011]", "n9 n10 n11"),
        ("n[99-101]", "n99 n100 n101"),
        ("n[1-3,2]", "n1 n2 n3 n2"),
        ("r[0-1]n[08-09],x", "r0n08 r0n09 r1n08 r1n09 x"),
        ("a..b,n[3]", "a..b n3"),
        (",a,,b,", "a b"),
        ("", ""),
        ("gpu[001-002]-ib,n[1-2].cluster", "gpu001-ib gpu002-ib n1.cluster n2.cluster"),
    ],
)
def test_node_list_is_expanded(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        "n[5-3]",
        "n[1",
        "n1]",
        "n[]",
        "n[a-b]",
        "n[1-3][",
        "a b",
        "a/b",
        "n\n",
        "нода",
        "n[1-9999999999999999999]",
        "n" * 254,
        "n[1-2]" * 9,
        "n" * (1 << 21),
    ],
)
def test_invalid_node_list_is_refused(text: str) -> None:
    with pytest.raises(BadNodeList):
        expand(text)


@pytest.mark.parametrize(
    "text", ["n[1-999999999999]", "a[0-9999]b[0-9999]c[0-9999]", "x," * (MOST_HOSTS + 1)]
)
def test_expansion_of_a_huge_node_list_is_bounded(text: str) -> None:
    with pytest.raises(BadNodeList, match=r"65,536"):
        expand(text)


_NAMES = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@given(st.lists(st.tuples(_NAMES, st.integers(0, 300), st.integers(0, 30), st.integers(1, 4)), min_size=1))
def test_folded_node_list_round_trips(folded: list[tuple[str, int, int, int]]) -> None:
    text = ",".join(
        f"{name}[{str(first).zfill(width)}-{first + more}]" for name, first, more, width in folded
    )
    hosts = [
        f"{name}{str(number).zfill(width)}"
        for name, first, more, width in folded
        for number in range(first, first + more + 1)
    ]
    assert expand(text) == tuple(hosts)


@given(st.text(alphabet="n1-9,[]0.x \n", max_size=40))
def test_any_text_is_expanded_or_refused_without_an_exception(text: str) -> None:
    try:
        hosts = expand(text)
    except BadNodeList:
        return
    assert all(host and not set(host) & set("[], \n") for host in hosts)
