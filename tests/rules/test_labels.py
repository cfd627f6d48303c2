"""Labels before every line: hosts and tasks."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines import LineReader


def read(text: str) -> list[tuple[int | None, str]]:
    reader = LineReader("x")
    return [(line.rank, line.text) for line in reader.feed(text.encode()) + reader.finish()]


def test_a_host_before_the_start_of_a_line_is_known_from_then_on() -> None:
    found = read(
        "worker-1: hello\n"
        "worker-1: Traceback (most recent call last):\n"
        'worker-1:   File "train.py", line 3, in main\n'
        "worker-1:     main()\n"
        "worker-1: ValueError: no\n"
        "worker-2: not known\n"
        "10.0.0.7: [2026-11-20 23:56:32,534] [INFO] [launch.py:1:main] x\n"
        "10.0.0.7: step 3 loss 0.5\n"
    )
    assert [text for _, text in found] == [
        "worker-1: hello",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in main',
        "    main()",
        "ValueError: no",
        "worker-2: not known",
        "[2026-11-20 23:56:32,534] [INFO] [launch.py:1:main] x",
        "step 3 loss 0.5",
    ]


def test_hosts_before_each_of_many_lines_are_sure() -> None:
    found = read("".join(f"node{n % 3}.cluster: word {n}\n" for n in range(40)))
    assert found[0][1] == "node0.cluster: word 0"
    assert found[-1][1] == "word 39"


@pytest.mark.parametrize(
    "line",
    [
        "train.py: Traceback (most recent call last):",
        "step10:     loss 0.5",
        "wandb: [2026-11-20 23:56:32] x",
        "ValueError: Traceback (most recent call last):",
        "ERROR: [2026-11-20 23:56:32] x",
        "10:00:00: [2026-11-20 23:56:32] x",
    ],
)
def test_other_words_before_a_colon_are_no_hosts(line: str) -> None:
    word = line.split(": ")[0]
    assert (None, f"{word}: again") in read(f"{line}\n{word}: again\n")


def test_intel_mpis_numbers_in_brackets() -> None:
    found = read("".join(f"[{n % 4}] word {n}\n" for n in range(20)))
    assert found[-1] == (3, "word 19")
    assert found[0] == (None, "[0] word 0")


def test_a_device_before_nccls_lines_is_no_task() -> None:
    found = read("".join(f"[{n % 4}] NCCL INFO Channel {n}\n" for n in range(20)))
    assert {rank for rank, _ in found} == {None}


def test_an_error_code_before_a_time_is_no_host() -> None:
    line = "EE1002: 2026-11-20-16:50:00.041.231 Stream synchronize timeout."
    assert read(f"{line}\n") == [(None, line)]
