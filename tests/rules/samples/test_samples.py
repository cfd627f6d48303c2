"""Numbers from the metrics lines of common trainers, and none from other lines."""

from __future__ import annotations

import math
import random
import re

import pytest
from msgspec.structs import replace

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import EVALUATION, Line, Sample
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.fields import Found
from stallwatch_rules.samples.line_templates import learn_line
from stallwatch_rules.samples.table import FIELDS, Entry, as_entry
from stallwatch_rules.samples.templates import TemplateReader
from stallwatch_rules.samples.text import from_text

GIB = 1024**3
NAN, INF = math.nan, math.inf


def sample(text: str) -> Sample | None:
    return extract(Line(text, "train.log", 1, rank=2, time=5.0))


METRICS = [
    # transformers: numbers until version 4, strings since version 5
    ("{'loss': 0.5, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.01}", None, None,
     {"loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-5, "epoch": 0.01}),
    ("{'loss': '5.436', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.01'}", None, None,
     {"loss": 5.436, "grad_norm": NAN, "learning_rate": 1e-5, "epoch": 0.01}),
    ("{'loss': inf, 'grad_norm': nan, 'epoch': 1.0}", None, None,
     {"loss": INF, "grad_norm": NAN, "epoch": 1.0}),
    ("{'eval_loss': '5.4', 'eval_runtime': '0.5', 'epoch': '1'}", None, None,
     {"eval_loss": 5.4, "epoch": 1.0}),
    ("{'train_runtime': 10.5, 'train_steps_per_second': 1.2, 'train_loss': 5.1, 'epoch': 1.0}", None, None,
     {"train_runtime": 10.5, "epoch": 1.0}),
    # a container's timestamp stayed before it
    ("2026-03-01T10:00:06Z {'loss': 0.5, 'epoch': 0.01}", None, None, {"loss": 0.5, "epoch": 0.01}),
    ("2026-03-01T10:00:06.123+00:00 {'loss': 0.5, 'epoch': 0.01}", None, None, {"loss": 0.5, "epoch": 0.01}),
    # LLaMA-Factory
    ("[INFO|2025-03-01 10:00:00] llamafactory.train.callbacks:157 >> {'loss': 1.1, 'learning_rate': 2e-5}",
     None, None, {"loss": 1.1, "learning_rate": 2e-5}),
    ('{"current_steps": 30, "total_steps": 900, "loss": 1.2, "eval_loss": null, "lr": 9e-05, '
     '"elapsed_time": "1 day, 0:00:45", "remaining_time": "5:01:44"}', 30, 900,
     {"loss": 1.2, "learning_rate": 9e-5, "elapsed_seconds": 86445.0}),
    ('{"current_steps": 900, "total_steps": 900, "loss": null, "percentage": 100.0, "epoch": 3.0}',
     900, 900, {"epoch": 3.0}),
    # the loss first, nothing but blanks between
    ("[train.py:12] loss 2.0 step 3", 3, None, {"loss": 2.0}),
    ("2026-01-01 10:00:00 [train.py:12] loss 2.0 lr 1e-5 step 3/90", 3, 90,
     {"loss": 2.0, "learning_rate": 1e-5}),
    ("train loss 2.0 at step 3", 3, None, {"loss": 2.0}),
    # ms-swift
    ("{'loss': 1.0, 'memory(GiB)': 1.5, 'global_step/max_steps': '1/438', 'elapsed_time': '1m 5s'}",
     1, 438, {"loss": 1.0, "memory_peak_bytes": 1.5 * GIB, "elapsed_seconds": 65.0}),
    ('{"step": 5, "loss": NaN}', 5, None, {"loss": NAN}),
    # wandb's history, with and without Lightning
    ('{"trainer/global_step": 50, "train/loss": 1.5, "_step": 1, "_timestamp": 1795860002.1}', 50, None,
     {"loss": 1.5}),
    ('{"train/loss": 1.5, "_runtime": 12.5, "_step": 7}', 7, None, {"loss": 1.5}),
    ('{"iteration": 7, "loss": 1.5, "time": 0.25}', 7, None, {"loss": 1.5}),
    ('{"loss": -Infinity, "step": 7}', 7, None, {"loss": -INF}),
    # DeepSpeed
    ("[2026-11-20 23:56:32,534] [INFO] [logging.py:96:log_dist] [Rank 0] step=5, skipped=2, lr=[3.5e-7], "
     "mom=[(0.9, 0.95)]", 5, None, {"skipped_steps": 2.0, "learning_rate": 3.5e-7}),
    ("[2026-11-20 23:56:32,534] [INFO] [timer.py:199:stop] epoch=0/micro_step=70/global_step=35, "
     "RunningAvgSamplesPerSec=84.8, CurrSamplesPerSec=82.0, MemAllocated=10.5GB, MaxMemAllocated=20.25GB",
     35, None, {"memory_allocated_bytes": 10.5 * GIB, "memory_peak_bytes": 20.25 * GIB,
                "samples_per_second": 82.0}),
    ("[2026-11-20 23:56:32,534] [INFO] [utils.py:782:see_memory_usage] MA 0.5 GB         Max_MA 1.5 GB"
     "         CA 2.0 GB         Max_CA 2 GB ", None, None,
     {"memory_allocated_bytes": 0.5 * GIB, "memory_peak_bytes": 1.5 * GIB}),
    ("steps: 10 loss: 2.9 iter time (s): 0.5 samples/sec: 9", 10, None, {"loss": 2.9, "step_seconds": 0.5,
                                                                          "samples_per_second": 9.0}),
    # DeepSpeed-Chat
    ("epoch: 0|step: 12|ppo_ep: 1|act_loss: -0.25|cri_loss: 0.5|unsuper_loss: 0.0", 12, None,
     {"loss": -0.25, "epoch": 0.0}),
    # Megatron-LM
    (" [2026-11-20 23:56:32] iteration      100/  500000 | consumed samples:    1600 | "
     "elapsed time per iteration (ms): 900.5 | learning rate: 1.500000E-04 | global batch size:    16 | "
     "lm loss: 6.9E+00 | loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 |",
     100, 500000,
     {"loss": 6.9, "learning_rate": 1.5e-4, "loss_scale": 1.0, "grad_norm": 1.25, "step_seconds": 0.9005,
      "skipped_iterations": 0.0}),
    # torchtitan, llm.c, modded-nanogpt, nanoGPT, NeMo, verl
    ("[titan] 2026-11-20 10:00:00,000 - root - INFO - step: 1,010  loss:  7.9  tps: 5,000  mfu: 30%",
     1010, None, {"loss": 7.9, "tokens_per_second": 5000.0}),
    ("step    1/19560 | loss 10.98 (+nanz)| norm 15.2 (+nanz)| lr 0.00e+00 | 3000 ms", 1, 19560,
     {"loss": 10.98, "grad_norm": 15.2, "learning_rate": 0.0}),
    ("s:4960 trl:3.42 lr:0.001 norm:0.25", 4960, None,
     {"loss": 3.42, "learning_rate": 0.001, "grad_norm": 0.25}),
    ("step:160/1490 train_time:5200ms step_avg:32.50ms", 160, 1490, {"elapsed_seconds": 5.2}),
    ("step:0/1490 val_loss:10.83 train_time:0ms", 0, 1490, {"elapsed_seconds": 0.0, "eval_loss": 10.83}),
    ("iter 100: loss 2.5, time 23.5ms, mfu 3%", 100, None, {"loss": 2.5}),
    ("Training epoch 0, iteration 9/99 | lr: 1e-05 | reduced_train_loss: 9.5 | train_step_timing in s: 1.5",
     9, None, {"learning_rate": 1e-5, "loss": 9.5, "step_seconds": 1.5, "epoch": 0.0, "stated_steps": 99.0}),
    ("step:12 - global_seqlen/min:1 - actor/entropy_loss:0.3 - actor/pg_loss:-0.01 - actor/grad_norm:0.2"
     " - timing_s/step:33.5", 12, None, {"loss": -0.01, "grad_norm": 0.2, "step_seconds": 33.5}),
    # hand-made loops
    ("step 3 loss 0.63", 3, None, {"loss": 0.63}),
    ("rank 1 step 3 loss 0.63 extra=2", 3, None, {"loss": 0.63}),
    ("  12.5s rank 1 step 3 loss 0.63", 3, None, {"loss": 0.63}),
    ("step: 3, loss: nan", 3, None, {"loss": NAN}),
    ("Epoch [1/3], Step [10/200], Loss: 0.5", 10, None,
     {"loss": 0.5, "epoch": 1.0, "stated_steps": 200.0}),
    ("2026-11-20 23:56:32 [INFO] [rank0] step 5/300 loss=0.25 grad_norm=0.5 lr=1.0e-04 time_per_step=12.5ms",
     5, 300, {"loss": 0.25, "grad_norm": 0.5, "learning_rate": 1e-4, "step_seconds": 0.0125}),
    ("2026-11-20 23:56:32,534 - train - INFO - rl_loss: 0.5, time: 123.0", None, None, {"loss": 0.5}),
    ("step：5，loss：0.5", 5, None, {"loss": 0.5}),
    ("step 7/100", 7, 100, {}),
    ("step 7 val loss 3.5 train loss 2.5", 7, None, {"loss": 2.5, "eval_loss": 3.5}),
    ("step 7 init loss: 4864026.9, train loss: 2.5", 7, None, {"loss": 2.5}),
    # an evaluation's own loss, which is none of the training's
    ("[eval] step: 3 loss 2.2", 3, None, {"eval_loss": 2.2}),
    ("2026-11-20 10:00:00 | INFO | eval | step 500 | loss 2.31", 500, None, {"eval_loss": 2.31}),
    ("eval: step:1/90 loss: 2.3", 1, 90, {"eval_loss": 2.3}),
    ("[rank0] validation: iter 4/50 loss 1.2", 4, 50, {"eval_loss": 1.2}),
    # rows of a training that only speak of one
    ("best val: 0.83 | step 5/90 | loss 2.2", 5, 90, {"loss": 2.2}),
    ("next eval in 5 | step 5/90 | loss 2.2", 5, 90, {"loss": 2.2}),
    ("next val @ 100 | step 5/90 | loss 2.2", 5, 90, {"loss": 2.2}),
    ("valid: True, step: 5/90, loss: 2.2", 5, 90, {"loss": 2.2}),
    ("[train, val] step 5/90 loss 2.2", 5, 90, {"loss": 2.2}),
    ("[train|eval] step 5/90 loss 2.2", 5, 90, {"loss": 2.2}),
    ("[train] | eval | step 5/90 loss 2.2", 5, 90, {"loss": 2.2}),
    ("Epoch 1 [val acc 0.5] batch 5/90 loss 2.2", 5, None, {"loss": 2.2, "epoch": 1.0}),
    ("acc 0.5 - precision: 0.4 - recall: 0.3 - loss: 2.2", None, None, {"loss": 2.2}),
    ("train_eval.py:33 step 3 loss 2.2", 3, None, {"loss": 2.2}),
    # loggers' leads that no bracket or dash ends: Python's default, and the source's file and line
    ("INFO:root:step 1 loss=2.0", 1, None, {"loss": 2.0}),
    ("INFO:__main__:Step 1: loss = 2.0", 1, None, {"loss": 2.0}),
    ("WARNING:root:step 1/50 loss=2.0", 1, 50, {"loss": 2.0}),
    ("2026-11-20 10:00:00,123 INFO trainer.py:412 step 1 loss=2.0 lr=1e-4", 1, None,
     {"loss": 2.0, "learning_rate": 1e-4}),
    ("2026-11-20 10:00:00,123 INFO trainer.py:412 step: 1 loss=2.0", 1, None, {"loss": 2.0}),
    ("2026-11-20 10:00:00 INFO train - step 1 loss 2.0", 1, None, {"loss": 2.0}),
    ("2026-11-20 10:00:00 INFO my.trainer step 1 loss 2.0", 1, None, {"loss": 2.0}),
    ("[train.py:12] step 1 loss 2.0", 1, None, {"loss": 2.0}),
    # counters within an epoch
    ("Train Epoch: 1 [640/60000 (1%)]  Loss: 2.1", 640, None, {"loss": 2.1, "epoch": 1.0}),
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.1", 640, None, {"loss": 2.1, "epoch": 1.0}),
    ("Train Epoch: 2 [  640/60000 ( 1%)]  Loss: nan", 640, None, {"loss": NAN, "epoch": 2.0}),
    ("batch 3/500 - loss 0.5", 3, None, {"loss": 0.5}),
    ("Batch 3/500, Loss: 0.5", 3, None, {"loss": 0.5}),
    ("Epoch [2/10], Batch [3/500], Loss: 0.5", 3, None, {"loss": 0.5, "epoch": 2.0}),
    # in Chinese
    ("第3步 损失 0.5", 3, None, {"loss": 0.5}),
    ("第 3 步，loss 0.5", 3, None, {"loss": 0.5}),
    ("第 2 轮，第 3/500 步，损失：0.5，学习率：1e-4", 3, None,
     {"loss": 0.5, "learning_rate": 1e-4, "epoch": 2.0, "stated_steps": 500.0}),
    ("步数=3 损失=0.5", 3, None, {"loss": 0.5}),
    ("2026-11-20 10:00:00 INFO 步数：3 验证损失：0.6 训练损失：0.5", 3, None,
     {"loss": 0.5, "eval_loss": 0.6}),
    ("训练步 3/500 loss=0.5", 3, 500, {"loss": 0.5}),
    ("步数：3，损失：nan", 3, None, {"loss": NAN}),
    ("2026-11-20 10:00:00 信息 第 3 步，共 500 步，损失 0.5", 3, 500, {"loss": 0.5}),
    ("[信息] 第3步（共500步）损失：0.5", 3, 500, {"loss": 0.5}),
    ("第 3 步共 500 步 loss=0.5", 3, 500, {"loss": 0.5}),
    ("轮次 1 步骤 3/500", 3, None, {"epoch": 1.0, "stated_steps": 500.0}),
    ("【训练】第 3 步 损失 0.5", 3, None, {"loss": 0.5}),
    ("【训练】步骤 3/500", 3, 500, {}),
    ("训练进度：第 3/500 步", 3, 500, {}),
    ("【验证】第 3 步 损失 0.5", 3, None, {"eval_loss": 0.5}),
    ("Epoch: [3]  [  10/700]  eta: 5:00:00  lr: 0.0002  loss: 40.5 (45.2)  time: 2.4", 2110, None,
     {"loss": 40.5, "learning_rate": 0.0002, "epoch": 3.0}),
    ("Epoch: [3/100]  [  10/700]  eta: 0:06:35  loss: 7.5 (7.25)  lr: 0.0001", 2110, None,
     {"loss": 7.5, "learning_rate": 0.0001, "epoch": 3.0}),  # DINO
    ("Epoch:[2/3](40/500), loss: 0.75, dpo_loss: 0.5, learning_rate: 0.00010000, epoch_time: 1.0", 540, 1500,
     {"loss": 0.75, "learning_rate": 0.0001, "epoch": 2.0}),  # MiniMind
    ("Epoch:[1/1](3/500), Reward: -1.5, KL_ref: 0.0, Actor Loss: 0.0625, Learning Rate: 0.00000030", 3, 500,
     {"loss": 0.0625, "learning_rate": 3e-7, "reward": -1.5, "epoch": 1.0}),
    ("Train: 4 [  50/1251 (  4%)]  Loss:  6.97 (6.95)  Time: 0.5s, 99.50/s  LR: 1.000e-06", 50, None,
     {"loss": 6.97, "learning_rate": 1e-6, "epoch": 4.0}),  # timm
    ("2026-06-07 09:14:02 - LOGS    - Epoch:  13 [   10387/  200000], loss: {'classification': 4.5, "
     "'total_loss': 5.75}, LR: [0.001], Avg. batch load time: 0.300", 10387, None,
     {"loss": 5.75, "learning_rate": 0.001, "epoch": 13.0}),  # CoreNet
    ("epoch: 1 step: 1875, loss is 0.25", 1875, None, {"loss": 0.25, "epoch": 1.0}),  # MindSpore
    ("    step   20/328  loss 0.5", 20, 328, {"loss": 0.5}),
    ("    train/CrossEntropyLoss=9.5", None, None, {"loss": 9.5}),  # OLMo
    ('{"epoch": 10, "train_loss": "3.5", "train_num_updates": "4791", "train_lr": "1e-05"}', 4791, None,
     {"loss": 3.5, "learning_rate": 1e-5, "epoch": 10.0}),  # fairseq
    ("2026-03-02 05:16:20,962 - INFO - Epoch 1 - Batch loss: 12.5", None, None, {"loss": 12.5}),
    ("INFO:root:Epoch 3 - Average Loss: 4.75, Average Accuracy: 0.5", None, None, {"loss": 4.75}),
    # an evaluation's loss alone, and means of one
    ("2026-03-02 05:16:20,962 - INFO - Epoch 3 validation loss: 4.75", None, None, {"eval_loss": 4.75}),
    ("[rank0] Val loss: 4.75, ppl 115.6", None, None, {"eval_loss": 4.75}),
    ("eval_loss = 0.75", None, None, {"eval_loss": 0.75}),
    ("[Evaluation] Epoch:[1/2](40/500), loss: 0.75", 40, 1000, {"eval_loss": 0.75}),
    ("Test: [  10/100]  Time: 0.5 (0.6)  Loss:   0.75 (0.72)  Acc@1: 80.0", None, None, {"eval_loss": 0.75}),
    ("Test:  [  10/700]  eta: 0:06:35  loss: 7.5 (7.25)", None, None, {"eval_loss": 7.5}),
    ("[/srv/dev/loop.py:30] Epoch 3 Average loss: 4.75", None, None, {"loss": 4.75}),  # no evaluation
    ("INFO:root:Evaluation Epoch 3 - Average Loss: 4.75, Average Accuracy: 0.5", None, None,
     {"eval_loss": 4.75}),
    ("Test set: Average loss: 0.25, Accuracy: 9914/10000 (99%)", None, None, {"eval_loss": 0.25}),
    # MLPerf
    (':::MLLOG {"namespace": "", "time_ms": 1715, "event_type": "POINT_IN_TIME", "key": "train_loss", '
     '"value": 3.75, "metadata": {"file": "log.py", "lineno": 17, "samples_count": 192}}', None, None,
     {"loss": 3.75}),
    (':::MLLOG {"namespace": "", "time_ms": 1715, "event_type": "POINT_IN_TIME", "key": "tracked_stats", '
     '"value": {"throughput": 0.97}, "metadata": {"file": "log.py", "lineno": 17, "step": 1536}}', 1536, None,
     {}),
    (':::MLLOG {"namespace": "", "time_ms": 1715, "event_type": "POINT_IN_TIME", "key": "eval_error", '
     '"value": 2.75, "metadata": {"file": "log.py", "lineno": 17, "samples_count": 192}}', None, None,
     {"eval_loss": 2.75}),
    # MaxText, litgpt, nanotron
    ("completed step: 7, seconds: 3.5, TFLOP/s/device: 123.4, Tokens/s/device: 1434.5, total_weights: 8192, "
     "loss: 10.5", 7, None, {"loss": 10.5, "step_seconds": 3.5, "tokens_per_second": 1434.5}),
    ("Epoch 1 | iter 8 step 2 | loss train: 2.5, val: n/a | iter time: 250.0 ms (step)", 8, None,
     {"loss": 2.5, "step_seconds": 0.25, "epoch": 1.0}),
    ("[INFO|DP=0|PP=0|TP=0|node-1]: iteration: 3 / 100 | consumed_tokens: 196K | "
     "elapsed_time_per_iteration_ms: 1.5K | tokens_per_sec: 52K | lm_loss: 10.5 | lr: 3e-05", 3, 100,
     {"loss": 10.5, "learning_rate": 3e-5, "step_seconds": 1.5, "tokens_per_second": 52000.0}),
    ("iteration 28/100000 done in 0.75s", 28, 100000, {"step_seconds": 0.75}),
    # a tensor that was printed as it is
    ("step 3 loss tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)", 3, None, {"loss": NAN}),
    ("Loss: tensor([0.5], device='cuda:0', grad_fn=<DivBackward0>)", None, None, {"loss": 0.5}),
    ("Train: data epoch: [1]  [  50/700]  eta: 0:10:00  lr: 0.0002  loss: 3.5000  time: 0.4", 750, None,
     {"loss": 3.5, "learning_rate": 0.0002, "epoch": 1.0}),
    # Swin Transformer, and examples with an AverageMeter
    ("[2026-03-01 10:00:00 swin_tiny](main.py 232): INFO Train: [1/300][10/1251]\teta 1:23:45 lr 0.000001\t"
     "time 0.4012 (0.5012)\tloss 6.5 (6.9412)\tgrad_norm 1.25 (inf)\tmem 7890MB", 1261, None,
     {"loss": 6.5, "learning_rate": 1e-6, "grad_norm": 1.25, "epoch": 1.0}),
    ("[Train][0][  7/100] Time 0.234 (0.240) Loss 1.5 (2.1)", 7, None, {"loss": 1.5, "epoch": 0.0}),
    ("Train: [2][7/100]  Time 0.234 (0.240)  Loss 1.5 (2.1)", 207, None, {"loss": 1.5, "epoch": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "step", "total", "values"), METRICS, ids=[m[0][:60] for m in METRICS])
def test_metric_lines_are_read(
    text: str, step: int | None, total: int | None, values: dict[str, float]
) -> None:
    found = sample(text)
    assert found is not None
    assert (found.step, found.total_steps) == (step, total)
    assert found.values == pytest.approx(values, nan_ok=True)
    assert (found.rank, found.time) == (2, 5.0)
    assert not found.from_bar


PADDED = [
    "step 12 | loss {} | grad_norm {} | lr {}",
    "step: 12  loss: {}  grad norm: {}  val_loss: {}  step_time: {}",
    "step 12 loss = {} tokens/s = {} reward = {} kl = {} mem = {}",
    "train_loss {} lr {} step 12/90",
    "训练步 12/90 损失：{} 学习率：{}",
]


@pytest.mark.parametrize("value", ["0.25", "nan"])
@pytest.mark.parametrize("text", PADDED, ids=[text[:30] for text in PADDED])
def test_aligned_values_are_read_like_others(text: str, value: str) -> None:
    plain, aligned = sample(text.replace("{}", value)), sample(text.replace("{}", f"{value:>14}"))
    assert plain is not None and aligned is not None
    assert plain.values and repr(aligned) == repr(plain)  # with NaN


def test_column_between_two_names_is_no_value() -> None:
    found = sample("step 12 | loss              | lr        0.5")
    assert found is not None and found.values == {"learning_rate": 0.5}


def read(line: str) -> Entry | None:
    """The line as a row of the table."""
    reader = LineReader("").alone(None)
    (found,) = reader.feed(line.encode() + b"\n")
    return as_entry(extract(found))


def test_template_is_learned_from_one_line() -> None:
    template = learn_line(b"[2026-11-20 10:00:00,000] step 1/900 loss 2.0000 lr 1e-4", rank=2)
    assert template is not None
    stamp = b"[2026-11-20 10:00:07,500] "
    odd = stamp + b"step 33/800 loss 2e-05 lr 5e-4"
    found, none, other = template.read(
        [stamp + b"step 33/800 loss 0.0202 lr 5e-4", odd, stamp + b"step 34/0 loss 0.5000 lr 5e-4"]
    )
    assert found is not None
    values = dict.fromkeys(FIELDS) | {"loss": 0.0202, "learning_rate": 5e-4}
    assert found == Entry(2, 1795168807.5, 33, 800, False, tuple(values.values()))
    assert none is None, "a number is written in another way"
    assert other is not None
    assert (other.step, other.total_steps, other.fields[0]) == (34, None, 0.5)
    assert template.read([odd]) == [None]


@pytest.mark.parametrize("text", [text for text, *_ in METRICS if "%" not in text])
def test_template_reads_the_values_of_its_lines(text: str) -> None:
    template = learn_line(text.encode(), None)  # a line without one is read by itself
    rnd = random.Random(1)
    for _ in range(40 if template is not None else 0):
        other = with_other_digits(text, rnd)
        (found,), expected = template.read([other.encode()]), read(other)
        if found is not None:
            assert expected is not None, other
            assert replace(found, fields=()) == replace(expected, fields=()), other
            assert repr(found.fields) == repr(expected.fields), other  # with NaN


def with_other_digits(text: str, rnd: random.Random) -> str:
    return re.sub(r"\d+", lambda run: "".join(rnd.choice("0123456789") for _ in run[0]), text)


@pytest.mark.parametrize("text", [text for text, *_ in METRICS])
def test_template_reading_equals_line_reading(text: str) -> None:
    read, rnd = TemplateReader(from_text), random.Random(1)
    for _ in range(150):  # at first, no template is known
        other = with_other_digits(text, rnd)
        assert repr(read(other)) == repr(from_text(other)), other  # with NaN, and in the same order


@pytest.mark.parametrize("odd", ["9223372036854775807", "1e-400", "0.00000000000000000000001"])
@pytest.mark.parametrize("text", ["step {}/200 loss 0.5", "step 3/{} loss 0.5", "step 3/200 loss {}"])
def test_template_from_an_unusual_number_loses_no_value(text: str, odd: str) -> None:
    read = TemplateReader(from_text)
    for _ in range(40):  # the template is learned from this text
        assert repr(read(text.format(odd))) == repr(from_text(text.format(odd)))
    for number in ("7", "200", "1e-4", "0.25", "12345678901234567890"):
        other = text.format(number)
        assert repr(read(other)) == repr(from_text(other)), other


def test_lines_with_a_template_are_not_parsed_again() -> None:
    parsed: list[str] = []
    read = TemplateReader(lambda text: parsed.append(text) or from_text(text))
    for step in range(1000):
        found = read(f"[Rank 3] step={step} loss={1 / (step + 1):.5f} tokens/s={9000 + step}")
    assert found == Found(999, None, {"loss": 0.001, "tokens_per_second": 9999.0}, "text Rankstep")
    assert len(parsed) < 100


LOSS_SCALES = [
    ("[x] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
     "step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1", 65536.0, True),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32, reducing to 16", 16.0, True),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step.", None, True),
    ("Grad overflow on iteration 5", None, True),
    # the same overflow in other words: not counted again
    ("[x] [fused_optimizer.py:363] Reducing dynamic loss scale from 65536 to 32768.0", 32768.0, False),
    ("[x] [fused_optimizer.py:371] Increasing dynamic loss scale from 128.0 to 256.0", 256.0, False),
    ("[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 8, reducing to 4",
     4.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "scale", "overflow"), LOSS_SCALES)
def test_loss_scales_and_skipped_steps(text: str, scale: float | None, overflow: bool) -> None:
    found = sample(text)
    assert found is not None
    assert found.values.get("loss_scale") == scale
    assert ("overflow" in found.values) is overflow
    assert found.step is None


@pytest.mark.parametrize(
    ("text", "step", "total", "values"),
    [
        ("  6%|▌         | 4/68 [00:05<01:36,  1.5s/it]", 4, 68, {"step_seconds": 1.5, "elapsed_seconds": 5}),
        ("  0%|          | 0/68 [00:00<?, ?it/s]", 0, 68, {"elapsed_seconds": 0}),
        (" 50%|█████     | 5/10 [1:00:05<1:00:05,  2.00it/s]", 5, 10,
         {"step_seconds": 0.5, "elapsed_seconds": 3605}),
        ("12/100 [00:10<01:00, 1.2s/it]", 12, 100, {"step_seconds": 1.2, "elapsed_seconds": 10}),
        ("Training:  12%|█▏        | 12/100 [00:10<01:00, 1.20s/step]", 12, 100,
         {"step_seconds": 1.2, "elapsed_seconds": 10}),
        ("Epoch 3:  12%|█▏        | 12/100 [00:10<01:00,  2.00it/s, loss=0.5, v_num=0]", 12, None,
         {"step_seconds": 0.5, "elapsed_seconds": 10, "loss": 0.5, "epoch": 3}),
        # a bar with the loss of a training, under any name
        ("my_lora:  12%|█▏    | 12/100 [00:10<01:00,  2.00it/s, lr: 1.0e-04 loss: 2.5e-01]", 12, 100,
         {"step_seconds": 0.5, "elapsed_seconds": 10, "loss": 0.25, "learning_rate": 1e-4}),
        ("Fine-tune:  12%|█▏    | 12/100 [00:10<01:00,  2.00it/s, loss 2.5000]", 12, 100,
         {"step_seconds": 0.5, "elapsed_seconds": 10, "loss": 2.5}),
        ("steps:  12%|█▏    | 12/100 [00:10<01:00,  2.00it/s, Average key norm=0.5, avr_loss=nan]", 12, 100,
         {"step_seconds": 0.5, "elapsed_seconds": 10, "loss": NAN}),
        ("Train step of epoch 1:  12%|█▏   | 12/100 [00:10<01:00,  2.00it/s]", 12, None,
         {"step_seconds": 0.5, "elapsed_seconds": 10, "epoch": 1}),  # OpenRLHF
        ("2|37|Loss: 0.75:  12%|█▏   | 12/25 [00:10<00:11,  2.00it/s]", 37, None,
         {"step_seconds": 0.5, "loss": 0.75, "epoch": 2}),  # torchtune
        # Levanter
        ("2026-05-01T10:00:00 - 0 - levanter.callbacks - progress.py:44 - INFO :: Progress on:train "
         "1.25kit/10.0kit rate:4.0it/s remaining:48:33 elapsed:05:20 postfix:loss=3.5", 1250, 10000,
         {"loss": 3.5, "step_seconds": 0.25}),
    ],
)  # fmt: skip
def test_training_bars(text: str, step: int, total: int | None, values: dict[str, float]) -> None:
    found = sample(text)
    assert found is not None
    assert (found.step, found.total_steps) == (step, total)
    assert found.values == pytest.approx(values, nan_ok=True)
    assert found.from_bar


def test_loss_in_an_evaluations_bar_is_none_of_the_trainings() -> None:
    found = sample("Validation:  12%|█▏   | 12/100 [00:10<01:00,  2.00it/s, loss=0.5]")
    assert found is not None
    assert (found.values, found.series, found.from_bar) == ({"eval_loss": 0.5}, EVALUATION, False)


@pytest.mark.parametrize(
    "text",
    [
        # bars of something else
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:36<00:36, 18.06s/it]",
        "Map:  12%|█▏        | 100/1000 [00:01<00:02, 500.00 examples/s]",
        "Map (num_proc=8):  12%|█▏        | 100/1000 [00:01<00:02, 500.00it/s]",
        "Evaluating: 100%|██████████| 10/10 [00:01<00:00, 10.0it/s]",
        "Filter: 10%|█         | 1/10 [00:01<00:09,  1.00it/s]",
        "model.safetensors:  10%|█         | 1.00G/10.0G [00:10<01:00, 100MB/s]",
        " 10%|█         | 100/1000 [00:10<01:00, 100MB/s]",
        "352it [00:00, 625.91it/s]",
        "[2026-03-01 10:00:00 swin_tiny](main.py 263): INFO Test: [0/98]\tTime 1.2 (1.2)\tLoss 0.9 (0.9)",
        "[Val][0][1/100] Time 0.234 (0.240) Loss 1.899 (2.1)",
        "print(main.py 3) Train: [0/3][1/2] loss 0.4 (0.3)",
        "Computing perplexity:  12%|█▏   | 12/100 [00:10<01:00,  2.00it/s, ppl=0.5]",
        "Scoring:  12%|█▏   | 12/100 [00:10<01:00,  2.00it/s, loss 0.5]",
        "Compress:  12%|█▏   | 12/100 [00:10<01:00,  2.00it/s, lossless 5]",
        "                 Class     Images  Instances: 100%|████| 2/2 [00:01<00:00,  2.0it/s]",
        "INFO Progress on:eval 1.00it/10.0it rate:4.0it/s remaining:00:02 elapsed:00:01 postfix:loss=3.5",
        # source code, as some scripts and all tracebacks print it
        '    print(f"step {step} loss {loss}")',
        '    logger.info("step 3 loss 0.5")',
        "    if step == 100: loss = 0.5",
        "loss = torch.tensor(0.0)",
        "    loss=((eng(x)-y)**2).mean(); eng.backward(loss); eng.step()",
        "# step 3 loss 0.5",
        # configuration
        '{"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}, "train_batch_size": 2}',
        "{'learning_rate': 1e-5, 'max_steps': 100, 'num_train_epochs': 3}",
        "INFO - trainer_config: {'steps': 100, 'learning_rate': 1e-5, 'loss': 0.5}",
        '  "aux_loss_alpha": 0.001,',
        '    "loss": 0.5',
        "[x] [INFO] [config.py:999:print]   loss_scale ................... 0",
        "  max_steps = 100",
        # prose and other numbers
        "[test.py:3] loss 3 of step 2 was",
        "a loss of 2.0 step 3",
        "[train.py:12] return loss 2.0 step 3",
        "Invalidate trace cache @ step 10: expected module 19, but got module 11",
        "max_steps is given, it will override any value given in num_train_epochs",
        "Step 3/10 : RUN pip install torch==2.0",
        "[Rank 0] time (ms) | fwd: 1.5 | bwd: 2.0 | step: 0.5",
        "[x] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | optimizer_step: 3.5",
        "No Grad overflow for 1000 iterations",
        "reward: {'format_reward': 1.0, 'answer_reward': 0.0, 'reward': 0.0}",
        "the loss of the step before was 0.5",
        "In step 1, we compute the loss 3 of the house",
        "batch size 3/500 loss 0.5",
        "micro_batch 3/500 loss 0.5",
        "the batch 3/500 had a loss 0.5",
        "总步数=500 损失=0.5",
        "步骤 1/3：安装依赖",
        "正在执行第 3 步，共 8 步",
        "第3步我们计算损失 3",
        "在第 3 步损失变为 0.5",
        "损失函数 = 3",
        "第 3 步：安装 loss 0.5 版本",
        "INFO:root:in step 1 the loss was 0.5",
        "INFO:root:Namespace(steps=100, loss=1)",
        "INFO:root:max_steps=100 lr=0.001",
        "INFO:root:steps=100 loss=mse lr=0.001",
        "INFO:root:steps: 100, batch: 3, lr: 0.001",
        "see train.py:12 step 1 loss 2.0",
        '    print("average loss: 0.5")',
        "    loss = 0.5",
        "step 5: loss is 3 times lower than before",
        "At step 30 the loss is 2.5 times higher",
        "INFO step 3: trying {'lr': 0.001, 'weight_decay': 0.1}",
        "    steps: 10/20, lr=1",
        "Total loss = 512 packets",
        "gpt2-medium: average loss: 3.25",
        "Training finished: average loss: 0.5",
        "[Best] val loss: 0.5",
        "Saving model: val_loss: 0.5",
        "    val_loss = 0.5",
        "the best validation loss: 0.5",
        ':::MLLOG {"key": "opt_base_learning_rate", "value": 0.0004, "metadata": {"lineno": 1}}',
        "2026-11-20 10:00:00 INFO trainer.py:412 resuming before step 1 loss=2.0",
    ],
)
def test_other_lines_hold_no_sample(text: str) -> None:
    assert sample(text) is None


def test_null_is_not_measured() -> None:
    found = sample('{"loss": 1.5, "grad_norm": null, "step": 3}')
    assert found is not None and found.values == {"loss": 1.5}


def test_counters_of_one_log_are_distinguished() -> None:
    lines = [
        "[x] [INFO] [logging.py:96:log_dist] [Rank 0] step=5, skipped=0, lr=[1e-05]",
        "epoch: 0|step: 5|act_loss: 0.5",
        " 50%|█████     | 5/10 [00:05<00:05,  1.00it/s]",
        " 50%|█████     | 50/100 [00:05<00:05,  1.00it/s]",
        '{"step": 5, "loss": 0.5}',
    ]
    series = [found.series for line in lines if (found := sample(line))]
    assert len(set(series)) == len(lines)
    later = sample(lines[0].replace("step=5", "step=6").replace("1e-05", "nan"))
    assert later is not None and later.series == series[0]
