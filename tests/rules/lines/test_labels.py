"""Labels of hosts and tasks before lines."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader


def read(text: str) -> list[tuple[int | None, str]]:
    reader = LineReader("x")
    return [(line.rank, line.text) for line in reader.feed(text.encode()) + reader.finish()]


def test_host_label_is_recognized_from_its_first_line() -> None:
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


def test_host_label_on_many_lines_is_certain() -> None:
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
def test_other_words_before_a_colon_are_not_hosts(line: str) -> None:
    word = line.split(": ")[0]
    assert (None, f"{word}: again") in read(f"{line}\n{word}: again\n")


def test_time_of_day_is_not_a_task_number() -> None:
    lines = [f"{21 + n // 60}:{n % 60:02d}:07 step {n} loss 0.5" for n in range(80)]
    assert read("\n".join(lines)) == [(None, line) for line in lines]
    labeled = [f"{n % 4}: 21:36:{n:02d} step {n} loss 0.5" for n in range(40)]
    assert read("\n".join(labeled))[-1] == (3, "21:36:39 step 39 loss 0.5")


def test_task_numbers_in_a_short_log_are_recognized() -> None:
    found = read(
        "0: step 1 loss 2.0\n1: step 1 loss 2.1\n0: step 2 loss 1.9\n1: step 2 loss 1.8\n"
        "1: RuntimeError: no\n0: bye\n"
    )
    assert found[-2:] == [(1, "RuntimeError: no"), (0, "bye")]


@pytest.mark.parametrize("task", ["3: ", " 3: "])
def test_traceback_after_a_task_number_is_sufficient(task: str) -> None:
    traceback = ["Traceback (most recent call last):", '  File "train.py", line 3, in main', "ValueError: no"]
    assert read("".join(f"{task}{line}\n" for line in traceback)) == [(3, line) for line in traceback]
    assert read(f"{task}hello\n{task}{traceback[0]}\n")[1] == (3, traceback[0])


@pytest.mark.parametrize(
    "text",
    [
        "1: load\n2: train\n3: save\n4: load again\n3: something\n",
        "0: loss 0.9\n0: loss 0.8\n1: loss 0.7\n1: loss 0.6\n2: loss 0.5\n2: loss 0.4\n",  # epochs
        '8:Traceback (most recent call last):\n9:  File "a.py", line 3, in main\n10:ValueError: no\n',
        "1: import a\n2: x\n3: Traceback (most recent call last):\n4: ValueError: no\n",
        "7: {'loss': 0.5}\n8: {'loss': 0.4}\n9: {'loss': 0.3}\n10: {'loss': 0.2}\n",
    ],
)
def test_line_numbers_of_listings_are_not_tasks(text: str) -> None:
    found = read(text)
    assert {rank for rank, _ in found} == {None}
    assert "".join(line for _, line in found) == text.replace("\n", "")


def test_bracketed_numbers_of_intel_mpi_are_recognized() -> None:
    found = read("".join(f"[{n % 4}] word {n}\n" for n in range(20)))
    assert found[-1] == (3, "word 19")
    assert found[0] == (None, "[0] word 0")


def test_device_number_of_nccl_is_not_a_task() -> None:
    found = read("".join(f"[{n % 4}] NCCL INFO Channel {n}\n" for n in range(20)))
    assert {rank for rank, _ in found} == {None}


def test_error_code_before_a_time_is_not_a_host() -> None:
    line = "EE1002: 2026-11-20-16:50:00.041.231 Stream synchronize timeout."
    assert read(f"{line}\n") == [(None, line)]


STEPS_OF_TASK_0 = "".join(f"0: step {step} loss 1.5\n" for step in range(1, 15))


@pytest.mark.parametrize(
    ("shows", "rank"),
    [
        ("1: [rank5]: ValueError: no\n", None),
        ("1: W0511 05:17:26.220000 220040 torch/distributed/run.py:792] Setting OMP_NUM_THREADS\n", None),
        ("1: n1:7:9 [0] NCCL INFO Channel 00/0\n1: n1:8:9 [1] NCCL INFO Channel 00/0\n", None),
        ("+ srun -N 2 --label torchrun --nproc-per-node 4 train.py\n", None),
        ("+ srun -n 8 --label torchrun --nproc-per-node 1 train.py\n", 1),
        ("+ srun -n 8 --label python train.py\n", 1),
        ("+ srun hostname; srun -l /opt/bin/torchrun train.py\n", None),
        ("+ srun -l torchrun --nproc-per-node=1 a.py; torchrun b.py\n", None),
        ("+ srun -l torchrun a.py; torchrun --nproc_per_node 1 b.py\n", 1),
        ("+ torchrun a.py; srun -l python b.py\n", 1),
        ("1: [rank1]: ValueError: no\n", 1),
        ("1: n1:7:9 [1] NCCL INFO Channel 00/0\n0: n1:6:9 [0] NCCL INFO Channel 00/0\n", 1),
    ],
)
def test_task_that_starts_ranks_is_not_a_rank(shows: str, rank: int | None) -> None:
    found = read(shows + STEPS_OF_TASK_0 + "1: hello\n0: [rank3]: there\n")
    assert found[-2:] == [(rank, "hello"), (3, "there")]
    late = read(STEPS_OF_TASK_0 + shows + "1: hello\n") if shows[0] == "1" else [(rank, "hello")]
    assert late[-1] == (rank, "hello")


def ahead(text: str) -> list[tuple[int | None, str]]:
    reader = LineReader("x").look_ahead(text.encode())
    return [(line.rank, line.text) for line in reader.feed(text.encode()) + reader.finish()]


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("messages", [0, 1, 3, 12])
def test_labels_of_a_file_apply_from_its_first_line(tasks: int, messages: int) -> None:
    steps = (f"{task}: step {n}0/5000 | loss 2.5\n" for n in range(1, 14) for task in range(tasks))
    text = "0: INFO loading\n" * messages + "".join(steps) + "srun: error: Node failure on gpu-b17\n"
    found = ahead(text)
    assert {rank for rank, _ in found[:-1]} == set(range(tasks))
    assert found[messages] == (0, "step 10/5000 | loss 2.5")
    assert found[-1] == (None, "srun: error: Node failure on gpu-b17")


def test_early_message_makes_labels_certain() -> None:
    found = read("0: INFO a\n1: INFO b\n0: step 10/5000 | loss 3.0\n1: step 10/5000 | loss 3.1\n")
    assert found[2:] == [(0, "step 10/5000 | loss 3.0"), (1, "step 10/5000 | loss 3.1")]


def test_epoch_number_is_not_a_label() -> None:
    text = "".join(f"{epoch}: step {n} loss 2.5\n" for epoch in range(2) for n in range(4))
    assert {rank for rank, _ in ahead(text)} == {None}


def test_line_with_many_commands_is_read_in_linear_time() -> None:
    """Comparing each of them with each launcher would take minutes, more than a test may."""
    text = ("+ " + "srun -l torchrun " * 230 + "--nproc-per-node 1\n") * 1000
    assert [len(read(text)) for _ in range(15)] == [1000] * 15
