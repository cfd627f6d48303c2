# ruff: noqa: E501 - log lines are as long as they are
"""Both readers of the table of samples give the same: line by line, and in blocks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.bulk import BulkReader
from stallwatch_rules.samples.table import COLUMNS, Row, RowReader
from stallwatch_rules.scan.chunks import whole_lines

# What a line may be; {} are numbers.
LINES = [
    "{{'loss': {f}, 'grad_norm': {f}, 'learning_rate': {f}e-05, 'epoch': {f}}}",
    "{{'loss': '{f}', 'grad_norm': 'nan', 'reward': -{f}, 'step_time': {f}}}",
    "{{'eval_loss': {f}, 'eval_runtime': {f}, 'epoch': {f}}}",
    '{{"current_steps": {i}, "total_steps": {i}, "loss": {f}, "lr": {f}, "elapsed_time": "0:00:{s}"}}',
    "\r {s}%|███▌  | {i}/{i} [00:{s}<01:{s}, {f}it/s]\r {s}%|████  | {i}/{i} [00:{s}<01:{s}, {f}s/it]",
    "  5%|▌ | {i}/{i} [00:{s}<01:{s}, {f}s/it]{{'loss': {f}, 'epoch': {f}}}",
    "Epoch {i}: 5%|▌ | {i}/{i} [00:{s}<01:{s}, {f}it/s, loss={f}]\rEpoch 1: 5%|▌ | {i}/{i} [0:{s}<?, ?it/s, loss=1]",
    "Map: 5%|▌ | {i}/{i} [00:{s}<01:{s}, {f} examples/s]",
    "[2026-11-{d} 10:{s}:{s},{i}] [INFO] [logging.py:96:log_dist] [Rank {d}] step={i}, skipped={i}, lr=[{f}e-06]",
    "[2026-11-{d} 10:{s}:{s},534] [INFO] [timer.py:2:stop] epoch=0/micro_step={i}/global_step={i}, "
    "CurrSamplesPerSec={f}, MemAllocated={f}GB, MaxMemAllocated={f}GB",
    " [2026-11-{d} 10:{s}:{s}] iteration {i}/ {i} | elapsed time per iteration (ms): {f} | lm loss: {f}E+00 |",
    "[rank{d}]: step {i} loss {f} tps: {i},123",
    "[default{d}]:[rank{d}]:step {i}/{i} loss {f} memory: {f}GiB",
    "step:{i} - actor/pg_loss:-{f} - perf/throughput:{f} - timing_s/step:{f}",
    " validation loss at iteration {i} | lm loss value: {f}E+00 | lm loss PPL: {f}",
    "[deepspeed] OVERFLOW! Rank {d} Skipping step. Attempted loss scale: {i}, reducing to {i}",
    "2026-11-{d} 10:{s}:{s}.{i} | INFO | plain words {i}",
    "2026-11-{d}T10:{s}:{s}+08:00 [Rank {d}] words",
    "W11{d} 10:{s}:{s}.5 {i} x.cpp:1] year-less",
    "[10:{s}:{s}] INFO words",
    "at 10:{s}:{s} nothing happened",
    "[rank{d}]: [2026-11-{d} 10:{s}:{s}] words",
    "the loss of step {i} was {f}",
    "s:{i} trl:{f} lr:{f}",
    "x" * 300,
    "",
    "\r",
    "训练 loss：{f}",
    "2026-11-{d} 10:{s}:{s} 信息 第 {d} 步，共 {i} 步，损失 {f}",
    "【训练】步骤 {d}/{i}",
    "steps: {i} loss: {f} samples/sec: {f}",
    "{d}|{i}|Loss: {f}: 12%|█▏   | {i}/{i} [00:{s}<00:{s},  {f}it/s]",
    "INFO Progress on:train {i}it/{i}it rate:{f}it/s remaining:00:{s} elapsed:00:{s} postfix:loss={f}",
    "iteration: {i} / 100 | elapsed_time_per_iteration_ms: {f}K | tokens_per_sec: {f}K | lm_loss: {f}",
    "Train: {d} [{i}/{i} ( {d}%)]  Loss:  {f} ({f})  Time: {f}s, {f}/s  LR: {f}",
    "Test: [  {d}/{i}]  Time: {f} ({f})  Loss:  {f} ({f})",
    "Epoch:[{d}/{d}]({i}/{d}), loss: {f}, lr: {f}",
    "[2026-11-{d} 10:{s}:{s} swin](main.py 232): INFO Train: [{d}/{i}][{i}/{d}]\tlr {f}\tloss {f} ({f})\tmem {i}MB",
    "[Train][{d}][{i}/{d}] Time {f} ({f}) Loss {f} ({f})",
    "Epoch: [{d}/{i}]  [ {i}/{d}]  eta: 0:{s}:{s}  loss: {f} ({f})  lr: {f}",
    "Epoch:  {d} [ {i}/ {i}], loss: {{'classification': {f}, 'total_loss': {f}}}, LR: [{f}]",
    "epoch: {d} step: {i}, loss is {f}",
    "INFO - Epoch {d} - Average loss: {f}",
    "step {i} loss: {f} [{s}s/{s}s]done",
    "[rank0] Val loss: {f}, ppl {f}",
    ':::MLLOG {{"key": "train_loss", "value": {f}, "metadata": {{"step": {i}}}}}',
    ':::MLLOG {{"key": "tracked_stats", "value": {{"throughput": {f}}}, "metadata": {{"step": {i}}}}}',
    '{{"timestamp": "2026-11-{d}T10:{s}:{s}Z", "step": {i}, "loss": {f}}}',
    '{{"step": {i}, "loss": {f}, "ts": 17958{s}00{s}.{i}}}',
    "{{'t': 17958{s}00{s}123, 'step': {i}, 'loss': {f}}}",
    '{{"time": 17958{s}00{s}, "event": "saved"}}',
    '{{"@timestamp": "2026-11-{d}T10:{s}:{s}.{i}+08:00", "event": "saved"}}',
]  # fmt: skip


def by_lines(data: bytes, rank: int | None = None) -> list[Row]:
    reader, rows = LineReader("x", rank), RowReader("x")
    rows.feed(reader.feed(data) + reader.finish())
    return rows.finish()


def in_blocks(data: bytes, size: int, rank: int | None = None) -> list[Row]:
    rows = RowReader("x")
    bulk = BulkReader(LineReader("x", rank).alone(None), rows)
    for block in whole_lines(iter([data[at : at + size] for at in range(0, len(data), size)]), size):
        bulk.read(block)
    return rows.finish()


def same(one: list[Row], two: list[Row]) -> bool:
    plain = [[None if value != value else value for value in row] for row in one]
    return plain == [[None if value != value else value for value in row] for row in two]


def log_of(seed: int, kinds: list[str], lines: int) -> bytes:
    rnd = random.Random(seed)
    out = []
    for _ in range(lines):
        kind = rnd.choice(kinds)
        while "{" in kind.replace("{{", ""):
            before = kind
            for name, make in (
                ("{i}", lambda: str(rnd.choice([0, 1, 7, rnd.randrange(10**6)]))),
                ("{f}", lambda: rnd.choice(["0.0", "1", str(rnd.random()), f"{rnd.random() * 99:.2f}"])),
                ("{s}", lambda: f"{rnd.randrange(60):02d}"),
                ("{d}", lambda: f"{rnd.randrange(10, 29)}"),
            ):
                if name in kind:
                    kind = kind.replace(name, make(), 1)
            if kind == before:
                break
        out.append(kind.replace("{{", "{").replace("}}", "}"))
    return "\n".join(out).encode()


@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=8, unique=True),
    st.integers(1, 150),
    st.sampled_from([500, 5_000, 10**6]),
    st.sampled_from([None, 3]),
)
@settings(max_examples=60, deadline=None)
def test_bulk_reading_equals_line_reading(
    seed: int, kinds: list[str], lines: int, size: int, rank: int | None
) -> None:
    data = log_of(seed, kinds, lines)
    expected = by_lines_without_labels(data, rank)
    found = in_blocks(data, size, rank)
    assert same(found, expected)


def by_lines_without_labels(data: bytes, rank: int | None) -> list[Row]:
    reader, rows = LineReader("x", rank).alone(None), RowReader("x")
    rows.feed(reader.feed(data) + reader.finish())
    return rows.finish()


def test_large_mixed_log_is_read() -> None:
    data = log_of(1, LINES, 3000)
    assert same(in_blocks(data, 20_000), by_lines_without_labels(data, None))


def test_last_state_of_a_bar_in_a_line_is_used() -> None:
    bar = "\r {0}%|# | {0}/20 [00:0{0}<00:10, 1.00s/it]"
    data = ("".join(map(bar.format, (1, 2, 3))) + "\r words\n" + bar.format(4) + "\n").encode()
    assert [row[COLUMNS.index("step")] for row in by_lines(data)] == [3, 4]
    loss = "Epoch 0: 5%|# | {0}/20 [00:0{0}<00:10, 1.00it/s, loss=0.{0}]\r"
    data = "".join(map(loss.format, (1, 2, 3))).encode()
    assert [row[COLUMNS.index("loss")] for row in by_lines(data)] == [0.1, 0.2, 0.3]


def test_evaluation_is_a_separate_phase() -> None:
    data = b"step 1 loss 0.5\n{'eval_loss': 0.7, 'epoch': 1.0}\nstep 2 loss 0.4 val_loss 0.7\n"
    assert [row[COLUMNS.index("phase")] for row in by_lines(data)] == ["train", "eval", "train"]


BAR = "\r {0}%|# | {0}/{1} [00:0{0}<00:10,  1.00s/it]"
SPACE = "\r        \r"
LOSS = "{{'loss': 0.{0}, 'epoch': 0.{0}}}\n"


@pytest.mark.parametrize("read", [by_lines, lambda data: in_blocks(data, 60)])
def test_loss_has_the_step_of_the_nearest_bar(read: Callable[[bytes], list[Row]]) -> None:
    def steps(data: str) -> list[object]:
        at = COLUMNS.index("loss")
        return [row[2:4] for row in read(data.encode()) if row[at] is not None]

    drawn = "".join(BAR.format(n, 20) for n in (1, 2))
    known = steps(
        drawn + SPACE + LOSS.format(2) + BAR.format(2, 20) + BAR.format(4, 20) + SPACE + LOSS.format(4)
    )
    assert known == [(2, 20), (4, 20)]
    assert steps(BAR.format(5, 20) + "\n" + LOSS.format(5)) == [(5, 20)], "each drawing in a line of its own"
    nested = BAR.format(5, 20) + "\n" + BAR.format(3, 4) + SPACE + LOSS.format(5)
    assert steps(nested) == [(None, None)], "an evaluation's bar"
    longer = "".join(BAR.format(n, 625) for n in range(1, 9)) + SPACE + "\n{'eval_loss': 1.5}\n"
    after = BAR.format(4, 20) + SPACE + LOSS.format(4) + BAR.format(5, 20) + "\n" + LOSS.format(5)
    known = steps(drawn + SPACE + LOSS.format(2) + longer + after)
    assert known == [(2, 20), (4, 20), (5, 20)], "an evaluation's bar may be longer"
    assert steps(BAR.format(5, 20) + "\n" + "words\n" * 3 + LOSS.format(5)) == [(None, None)], "too far"
    assert steps("[rank1]: " + BAR.format(5, 20)[1:] + "\n[rank0]: " + LOSS.format(5)) == [(None, None)]


@pytest.mark.parametrize("read", [by_lines, lambda data: in_blocks(data, 60)])
def test_bar_and_loss_in_one_line_are_one_row(read: Callable[[bytes], list[Row]]) -> None:
    wanted = [COLUMNS.index(name) for name in ("line", "step", "loss", "step_seconds")]
    drawn = "".join(BAR.format(n, 20) for n in (1, 2))
    log = (
        drawn + SPACE + LOSS.format(2) + BAR.format(2, 20) + "\n" + LOSS.format(3) + BAR.format(4, 20) + "\n"
    )
    rows = [tuple(row[at] for at in wanted) for row in read(log.encode())]
    assert rows == [(1, 2, 0.2, 1.0), (2, 2, None, 1.0), (3, 2, 0.3, None), (4, 4, None, 1.0)]
    other_rank = "[rank1]: " + BAR.format(5, 20)[1:] + "\r[rank0]: " + LOSS.format(5)
    assert len(read(other_rank.encode())) == 2
