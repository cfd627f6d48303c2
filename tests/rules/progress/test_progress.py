"""The progress of a run: steps, durations, phases, attempts and the end, from the lines of all ranks."""

from __future__ import annotations

import math
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from progress_logs import bar, log, track

from stallwatch_rules.progress.phases import phase_sign
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract

# ---- steps


def test_empty_log_has_no_progress() -> None:
    tracker = track(log("hello", "world"))
    assert (tracker.first_step, tracker.last_step, tracker.total_steps, tracker.last_loss) == (None,) * 4
    assert (tracker.phase, tracker.finished, tracker.progressed) == ("init", False, False)
    assert (tracker.durations(), tracker.step_seconds(), tracker.steps) == ([], [], {})


def test_steps_losses_and_times_of_a_plain_loop_are_read() -> None:
    lines = log(*(f"step {n}/50 loss {1 / n}" for n in (1, 2, 4, 8)), times=[10, 11, 15, 23])
    tracker = track(lines)
    assert (tracker.first_step, tracker.last_step, tracker.total_steps) == (1, 8, 50)
    assert tracker.last_loss == 1 / 8
    assert tracker.durations() == [1, 4, 8]  # what one waits for the next sign of life
    assert tracker.step_seconds() == [1, 2, 2]
    assert tracker.last_progress_time == 23
    assert tracker.phase == "train"
    assert not tracker.finished


def test_total_beside_an_epoch_is_that_of_the_run_if_the_steps_run_on() -> None:
    """PaddleSeg counts the steps of the run beside the epoch; most other programs count within the epoch."""
    lines = log(*(f"[TRAIN] epoch: {1 + n // 3}, iter: {n}/8, loss: 0.5" for n in range(1, 9)))
    tracker = track(lines)
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (8, 8, True)


def test_total_beside_an_epoch_is_that_of_the_epoch_if_the_steps_begin_again() -> None:
    lines = log(*(f"epoch: {e}, iter: {n}/4, loss: 0.5" for e in (1, 2, 3) for n in range(1, 5)))
    tracker = track(lines)
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (12, None, False)


def test_add_returns_whether_a_line_is_progress() -> None:
    tracker = ProgressTracker()
    lines = log("step 1 loss 2", "step 1 loss 2", "words", "step 2 loss 2", "step 1 loss 2")
    assert [tracker.add(extract(line), line) for line in lines] == [True, False, False, True, False]


def test_losses_without_steps_are_progress() -> None:
    lines = log("{'loss': 1.0, 'epoch': 0.1}", "{'loss': 0.5, 'epoch': 0.2}", times=[5, 25])
    tracker = track(lines)
    assert (tracker.last_step, tracker.last_loss, tracker.durations()) == (None, 0.5, [20])
    assert tracker.step_seconds() == []


def test_lines_with_equal_times_share_the_interval() -> None:
    """Most lines of such a log have no time of their own and repeat that of an earlier line."""
    lines = log(*(f"step {n} loss 1" for n in range(1, 7)), times=[10, 10, 10, 16, 16, 22])
    assert track(lines).step_seconds() == [2, 3]


def test_clock_of_a_bar_is_used_without_times() -> None:
    tracker = track(log(*(bar(n, 10, 5 * n) for n in range(4))))
    assert tracker.step_seconds() == [5, 5, 5]
    assert tracker.durations() == [5, 5, 5]


def test_clock_of_a_bar_has_precedence_over_an_old_time() -> None:
    lines = log(*(bar(n, 10, 5 * n) for n in range(4)), times=[0, 0, 900, 900])
    assert track(lines).step_seconds() == [5, 5, 5]


def test_printed_step_times_are_used_if_nothing_is_measured() -> None:
    lines = log(*(f"step {n} loss 1 step time: 1.5s" for n in range(3)))
    tracker = track(lines)
    assert (tracker.step_seconds(), tracker.durations()) == ([1.5, 1.5, 1.5], [])


def test_nan_loss_is_not_in_the_record() -> None:
    tracker = track(log("step 1 loss 1", "step 2 loss nan"))
    assert tracker.last_loss is not None and math.isnan(tracker.last_loss)
    assert tracker.summary().last_loss is None
    assert tracker.summary().last_step == 2


# ---- bars


def test_bar_of_an_evaluation_is_not_the_progress_of_the_run() -> None:
    texts = [bar(0, 100), bar(1, 100, 1), bar(2, 100, 2)]
    texts += [bar(n, 1000, n) for n in (0, 400, 999, 1000)]
    tracker = track(log(*texts))
    assert (tracker.last_step, tracker.total_steps, tracker.phase) == (2, 100, "eval")
    assert not tracker.finished
    tracker = track(log(*texts, bar(3, 100, 60)))
    assert (tracker.last_step, tracker.total_steps, tracker.phase, tracker.attempt) == (3, 100, "train", 1)


def test_advancing_evaluation_is_a_sign_of_life() -> None:
    tracker = track(log(bar(1, 9), bar(0, 5), times=[1, 2]))
    (line,) = log(bar(1, 5), times=[3])
    assert tracker.add(extract(line), line)
    assert tracker.last_progress_time == 3


def test_evaluation_that_prints_batches_is_a_sign_of_life() -> None:
    lines = log(
        "step 5/900 loss 0.5", "[eval] step 1/40 loss 0.6", "[eval] step 2/40 loss 0.6", times=[1, 2, 3]
    )
    tracker = track(lines)
    assert (tracker.last_progress_time, tracker.phase, tracker.last_loss) == (3, "eval", 0.5)
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (5, 900, False)


def test_short_bar_before_the_training_is_ignored() -> None:
    tracker = track(log(bar(0, 3), bar(3, 3), bar(0, 100), bar(7, 100)))
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (7, 100, False)


def test_evaluation_after_the_training_does_not_undo_its_end() -> None:
    tracker = track(log(bar(99, 100), bar(100, 100), bar(0, 40), bar(20, 40)))
    assert (tracker.last_step, tracker.total_steps, tracker.finished) == (100, 100, True)


def test_steps_counted_per_epoch_are_added_up() -> None:
    texts = [f"Epoch [{epoch}/3], Step [{step}/100], Loss: 0.5" for epoch in (1, 2, 3) for step in (50, 100)]
    tracker = track(log(*texts))
    assert (tracker.first_step, tracker.last_step, tracker.attempt) == (50, 300, 1)
    assert not tracker.finished  # an epoch's end is not the run's


# ---- attempts


def test_resumed_run_continues_from_its_checkpoint() -> None:
    texts = [f"step {n} loss 1" for n in [*range(0, 105, 5), *range(60, 75, 5)]]
    tracker = track(log(*texts))
    assert (tracker.attempt, tracker.first_step, tracker.last_step) == (2, 0, 70)


def test_small_step_back_needs_confirmation() -> None:
    texts = [f"step {n} loss 1" for n in range(11)]
    resumed = [f"step {n} loss 1" for n in (8, 9, 9, 10)]
    assert track(log(*texts, *resumed[:2])).attempt == 1
    tracker = track(log(*texts, *(f"step {n} loss 1" for n in (6, 7, 8))))
    assert (tracker.attempt, tracker.last_step) == (2, 8)


def test_restart_is_not_a_long_step() -> None:
    texts = [f"step {n} loss 1" for n in (*range(100), *range(50, 53))]
    times = [float(n) for n in range(100)] + [5000.0, 5001.0, 5002.0]
    tracker = track(log(*texts, times=times))
    assert max(tracker.durations()) == 1


def test_unlabelled_ranks_are_not_a_restart() -> None:
    steps = [step for n in range(2, 40) for step in (n, n - 2)]  # one rank is two steps behind
    tracker = track(log(*(f"step {n} loss 1" for n in steps)))
    assert (tracker.attempt, tracker.last_step) == (1, 39)


def test_two_counters_in_one_log_are_not_a_restart() -> None:
    texts: list[str] = []
    for n in range(10, 60):
        texts.append(f"epoch: 0|step: {n}|act_loss: 0.5")
        if n % 10 == 9:
            texts.append(f"[x] [INFO] [logging.py:96:log_dist] [Rank 0] step={n // 4}, skipped=0, lr=[1e-05]")
    tracker = track(log(*texts))
    assert (tracker.attempt, tracker.last_step) == (1, 59)


def test_attempt_folders_of_torchrun_are_attempts() -> None:
    first = log("step 500 loss 1", source="logs/attempt_0/0/stdout.log", rank=0)
    second = log("step 401 loss 1", source="logs/attempt_1/0/stdout.log", rank=0)
    for lines in (first + second, second + first):
        tracker = track(lines)
        assert (tracker.attempt, tracker.last_step) == (2, 401)


def test_new_bar_after_a_restart_is_used() -> None:
    texts = [bar(0, 100), bar(40, 100), "[x] will restart worker group", bar(0, 200), bar(5, 200)]
    assert track(log(*texts)).total_steps in (100, 200)
    texts += [bar(n, 200) for n in (41, 60)]
    tracker = track(log(*texts))
    assert (tracker.last_step, tracker.total_steps) == (60, 200)


# ---- phases


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("***** Running Evaluation *****", "eval"),
        ("ei step 0 done, eval_acc: 0.686", "eval"),
        ("{'val_loss': 1.25}", "eval"),
        ("interval_loss: 0.5", "train"),
        ("the best eval_acc so far", "train"),
        ("***** Running Prediction *****", "eval"),
        ("Validation DataLoader 0:  10%|#         | 1/10 [00:01<00:09,  1.00it/s]", "eval"),
        ("Evaluating:  10%|#         | 1/10 [00:01<00:09,  1.00it/s]", "eval"),
        ("Saving model checkpoint to out/checkpoint-10", "save"),
        ("[x] [INFO] [engine.py:1] [Rank 0] Saving model checkpoint: out/global_step10/a.pt", "save"),
        ("saving checkpoint at iteration      10 to out", "save"),
        ("Processed prompts:  10%|#         | 1/10 [00:01<00:09,  1.00it/s]", "rollout"),
        ("the model is evaluated later", "train"),
        ("Running validation ...", "eval"),
        ("[2026-11-20 03:00:00] INFO train.py:7: Starting evaluation at step 10", "eval"),
        ("Evaluating on 5,000 prompts ...", "eval"),
        ("开始验证", "eval"),
        ("正在进行评估…", "eval"),
        ("开始验证配置文件", "train"),
        ("2026-11-20 03:00:00,123 INFO Running validation ...", "eval"),
        ("2026-11-20 03:00:00,123 INFO trainer.py:12 Running validation ...", "eval"),
        ("Validating config...", "train"),
        ("Start evaluation at step: 500", "train"),
        ("[INFO] Starting evaluation worker on GPU 7", "train"),
        ("Running validation: took 3 s", "train"),
        ("Starting evaluation server on port 8000", "train"),
        ("start evaluation every 500 steps", "train"),
        ("evaluating took 3 s", "train"),
    ],
)  # fmt: skip
def test_phase_ends_with_the_next_step(text: str, phase: str) -> None:
    tracker = track(log("step 1 loss 1", text, times=[1, 2]))
    assert tracker.phase == phase
    (line,) = log("step 2 loss 1", times=[9])
    tracker.add(extract(line), line)
    assert tracker.phase == "train"
    assert tracker.durations(phase) == [8]  # type: ignore[arg-type]


def test_evaluation_is_not_a_long_step() -> None:
    texts = [
        "step 1 loss 1",
        "step 2 loss 1",
        "***** Running Evaluation *****",
        "step 3 loss 1",
        "step 4 loss 1",
    ]
    tracker = track(log(*texts, times=[1, 2, 3, 903, 904]))
    assert (tracker.durations("train"), tracker.durations("eval")) == ([1, 1], [901])
    assert tracker.step_seconds() == [1, 1]


def test_late_line_of_another_rank_does_not_end_a_phase() -> None:
    first = log("step 1 loss 1", "***** Running Evaluation *****", rank=0, times=[1, 2])
    late = log("step 1 loss 1", rank=1, source="b.log", times=[3])
    tracker = track([*first, *late])
    assert tracker.phase == "eval"
    tracker = track(log("step 2 loss 1", rank=1, source="b.log", times=[4]), tracker)
    assert tracker.phase == "train"


def test_first_state_of_a_bar_is_not_a_step() -> None:
    tracker = track(log(bar(0, 10)))
    assert tracker.progressed and tracker.last_step == 0


# ---- the end


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': '10.5', 'train_samples_per_second': '1.2', 'train_loss': '5.1', 'epoch': '1'}",
        '{"train_runtime": 10.5, "train_samples_per_second": 1.2}',
        "Training completed. Do not forget to share your model on huggingface.co/models =)",
        "[x] [INFO] [launch.py:351:main] Process 4711 exits successfully.",
        "Final eval_acc: 0.5602",
        "Training finished for this run",
        "Training completed for task sst2.",
        "Training completed with the last loss 0.123",
        "2026-11-20 10:00:00,1 - INFO - DPO fine-tuning completed at 2026-11-20 10:00:00",
        "Training is complete on the first node",
        "训练完成",
        "2026-11-20 10:00:00 信息 模型训练已完成！总耗时 3 小时",
        "step 10/10 loss 1",
    ],
)
def test_end_of_the_training_is_recognized(text: str) -> None:
    assert not track(log("step 9/10 loss 1")).finished
    assert track(log("step 9/10 loss 1", text)).finished


@pytest.mark.parametrize(
    "text",
    [
        "第 3 轮 训练完成",
        "epoch 3: 训练完成",
        "训练完成后保存模型",
        "训练未完成",
        "Training finished for this client",
        "Training completed for the current fold",
        "Fine-tuning completed for this fold",
        "Stage 1: fine-tuning complete",
    ],
)
def test_end_of_a_part_is_not_the_end_of_the_training(text: str) -> None:
    assert phase_sign(text) != "finished"


def test_continuing_run_has_not_finished() -> None:
    tracker = track(log("step 9 loss 1", "Training completed", *(f"step {n} loss 1" for n in (10, 11))))
    assert not tracker.finished


def part(total: int = 4, last: int | None = None) -> list[str]:
    return [f"step {n}/{total} loss 1" for n in range(1, (last or total) + 1)]


OVER = "Training finished"


@pytest.mark.parametrize(
    ("texts", "sure", "only_total"),
    [
        (part(), True, True),
        ([*part(), OVER], True, False),
        (part() * 2, False, False),  # the counter counts the steps of a part
        ([*part(), OVER] * 2, False, False),
        ([*part(9, last=4), OVER, *part(9, last=8)], False, False),
        ([*part(), "Training finished for this split"], True, True),  # the message is about a part
        ([*(f"step {n} loss 1" for n in range(1, 9)), "Training finished for this split"], False, False),
        ([*part(9, last=4), *part(9)], True, True),  # the run failed, and a new start reached the total
    ],
)
def test_end_of_a_part_is_no_sure_end(texts: list[str], sure: bool, only_total: bool) -> None:
    tracker = track(log(*texts))
    assert (tracker.surely_finished, tracker.only_reached_total) == (sure, only_total)


def test_run_is_complete_when_the_rank_with_the_most_steps_is() -> None:
    first = log(*part(12, last=9), rank=0)
    second = log(*part(9), rank=1, source="b.log")
    tracker = track([*first, *second])
    assert (tracker.total_steps, tracker.finished) == (12, False)
    last = [Line(f"step {n}/12 loss 1", "a.log", 20 + n, 0) for n in (10, 11, 12)]
    assert track(last, tracker).finished


# ---- order


EVAL = "***** Running Evaluation *****"
RANKS = [
    log("step 1 loss 4", EVAL, "step 2 loss 3", "step 3 loss nan", rank=0, times=[1, 2, 5, 6]),
    log("step 1 loss 4", "step 2 loss 2", rank=1, times=[1.5, 5.5]),
    log(
        bar(0, 9), bar(1, 9, 1), bar(0, 4), bar(4, 4, 2), bar(2, 9, 5), rank=0, source="b.log", times=range(9)
    ),
    log(*(f"step {n} loss 1" for n in (*range(30), 3, 4)), source="c.log", times=range(7, 70)),
]


def answers(tracker: ProgressTracker) -> object:
    messages = [
        getattr(tracker, name) for name in ("attempt", "last_progress_time", "phase", "steps", "last_loss")
    ]
    return repr(
        (messages, tracker.summary(), tracker.durations(), tracker.durations("eval"), tracker.step_seconds())
    )


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_of_ranks_is_irrelevant(order: random.Random) -> None:
    queues = [list(lines) for lines in RANKS]
    mixed: list[Line] = []
    while queues:
        queue = order.choice(queues)
        mixed.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    assert answers(track(mixed)) == answers(track(line for lines in RANKS for line in lines))


def test_memory_for_hostile_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch_rules.progress.tracker._MAX_COUNTERS", 20)
    tracker = track(Line(bar(1, n), "a.log", n) for n in range(2, 500))
    assert sum(len(stream.counters) for stream in tracker._streams.values()) == 20


def test_redrawn_bar_shows_the_duration_of_a_stall() -> None:
    tracker = track(log(bar(49, 90, 490), bar(50, 90, 500), bar(50, 90, 500), bar(50, 90, 3100)))
    assert tracker.waited == 2600
    track(log(bar(51, 90, 3110)), tracker)
    assert tracker.waited == 0


# ---- several processes


def test_merged_trackers_equal_a_single_tracker() -> None:
    files = [
        log("step 1/9 loss 3", "step 2/9 loss 2", "***** Running Evaluation *****", source="a.log", rank=0),
        log("step 1/9 loss 3", "step 4/9 loss 1", source="b.log", rank=1, times=[10, 20]),
        log(bar(3, 9, 3), bar(9, 9, 9), source="c.log", rank=2),
        log("no step here", source="d.log"),
    ]
    one = track(line for lines in files for line in lines)
    parts = [pickle.loads(pickle.dumps(track(lines))) for lines in files]
    for order in (parts, [pickle.loads(pickle.dumps(part)) for part in reversed(parts)]):
        merged = ProgressTracker()
        for part in order:
            merged.merge(part)
        assert merged.summary() == one.summary()
        assert (merged.steps, merged.phase, merged.step_seconds()) == (
            one.steps,
            one.phase,
            one.step_seconds(),
        )
        assert (merged.progressed, merged.last_progress_time) == (one.progressed, one.last_progress_time)


def test_source_belongs_to_one_tracker() -> None:
    tracker = track(log("step 1/9 loss 3"))
    with pytest.raises(ValueError, match="same source and rank"):
        tracker.merge(track(log("step 2/9 loss 3")))
