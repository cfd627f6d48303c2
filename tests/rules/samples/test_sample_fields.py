# ruff: noqa: E501 - log lines are as long as they are
"""The many names of one number: the metrics lines of each framework are read into the same fields."""

from __future__ import annotations

import pytest

from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.fields import FIELDS

GIB, MIB = 1024.0**3, 1024.0**2

LINES = [
    # TRL: DPO, GRPO, PPO, KTO
    ("{'loss': '0.69', 'grad_norm': '1.5', 'learning_rate': '1e-06', 'rewards/chosen': '0.01', "
     "'rewards/margins': '0.02', 'logps/chosen': '-120.5', 'epoch': '0.1'}", None,
     {"loss": 0.69, "grad_norm": 1.5, "learning_rate": 1e-6, "epoch": 0.1, "reward_chosen": 0.01,
      "reward_margin": 0.02}),
    ("{'loss': 0.0, 'grad_norm': 0.3, 'completion_length': 128.0, 'rewards/format/mean': 0.5, 'reward': 0.75, "
     "'reward_std': 0.2, 'kl': 0.001, 'step_time': 12.5, 'epoch': 0.01}", None,
     {"loss": 0.0, "grad_norm": 0.3, "reward": 0.75, "reward_std": 0.2, "kl": 0.001, "step_seconds": 12.5,
      "epoch": 0.01}),
    ("{'loss': 0.0, 'reward': 0.5, 'reward_std': 0.0, 'entropy': 0.31, 'epoch': 0.02}", None,
     {"loss": 0.0, "reward": 0.5, "reward_std": 0.0, "entropy": 0.31, "epoch": 0.02}),
    ("{'eval_loss': 0.62, 'eval_accuracy': 0.684, 'eval_runtime': 1.5, 'epoch': 1.0}", None,
     {"eval_loss": 0.62, "eval_accuracy": 0.684, "epoch": 1.0}),
    ("step:7 - actor/entropy:0.3 - actor/pg_loss:-0.01 - critic/score/mean:0.4 - critic/advantages/max:1.0 - "
     "critic/advantages/min:0.0 - critic/rewards/mean:0.4", 7,
     {"loss": -0.01, "entropy": 0.3, "reward": 0.4, "advantage_max": 1.0, "advantage_min": 0.0}),
    ("{'loss/policy_avg': 0.1, 'objective/kl': 2.5, 'objective/rlhf_reward': -0.5, 'lr': 3e-06, 'step': 4}", 4,
     {"kl": 2.5, "reward": -0.5, "learning_rate": 3e-6}),
    ("{'train_runtime': '10.5', 'train_samples_per_second': '12.5', 'train_loss': '5.1', 'epoch': '1'}", None,
     {"train_runtime": 10.5, "samples_per_second": 12.5, "epoch": 1.0}),
    ("{'eval_loss': 5.4, 'eval_samples_per_second': 30.5, 'epoch': 1.0}", None,
     {"eval_loss": 5.4, "samples_per_second": 30.5, "epoch": 1.0}),
    # ms-swift, LLaMA-Factory, axolotl
    ("{'loss': 1.0, 'token_acc': 0.7, 'epoch': 0.5, 'global_step/max_steps': '10/438', 'percentage': '2.28%', "
     "'memory(GiB)': 30.5, 'train_speed(iter/s)': 0.5}", 10,
     {"loss": 1.0, "epoch": 0.5, "memory_peak_bytes": 30.5 * GIB, "step_seconds": 2.0}),
    ('{"loss": 1.0, "train_speed(s/it)": 2.5, "global_step/max_steps": "10/438"}', 10,
     {"loss": 1.0, "step_seconds": 2.5}),
    ('{"current_steps": 10, "total_steps": 90, "loss": 1.5, "lr": 5e-05, "throughput": 5120.5, '
     '"total_tokens": 81920}', 10, {"loss": 1.5, "learning_rate": 5e-5, "tokens_per_second": 5120.5}),
    ("{'loss': 1.2, 'memory/max_active (GiB)': 20.5, 'memory/max_allocated (GiB)': 19.5, 'epoch': 0.1}", None,
     {"loss": 1.2, "epoch": 0.1, "memory_peak_bytes": 20.5 * GIB, "memory_allocated_bytes": 19.5 * GIB}),
    # OpenRLHF
    ("Train epoch [1/3]:  10%|█         | 5/50 [00:10<01:30,  2.00s/it, pg=0.1, rm=0.5, kl=0.02, act_lr=1e-6]", 5,
     {"kl": 0.02, "step_seconds": 2.0, "elapsed_seconds": 10.0, "epoch": 1.0}),
    # Lightning's bars, NeMo
    ("Epoch 0:  12%|█▏        | 12/100 [00:10<01:00,  2.00it/s, v_num=0, train_loss_step=0.5, val_loss=0.7]", 12,
     {"loss": 0.5, "eval_loss": 0.7, "step_seconds": 0.5, "elapsed_seconds": 10.0, "epoch": 0.0}),
    ("Epoch 2/9  ━━━━━━━━━━━━━━━━ 12/100 0:00:10 • 0:01:00 2.00it/s v_num: 0.000 train_loss: 0.500", 212,
     {"loss": 0.5, "step_seconds": 0.5, "elapsed_seconds": 10.0, "epoch": 2.0}),
    ("Epoch 1/1  ━━━━━━━━━━━━━━━━ 100/100 0:00:01 •        50.00it/s train_loss: 0.003", 200,
     {"loss": 0.003, "step_seconds": 0.02, "elapsed_seconds": 1.0, "epoch": 1.0}),
    ("Epoch 0: :   2%|▏         | 100/5000 [02:30<2:02:30, v_num=ab, reduced_train_loss=9.5, global_step=99.0, "
     "train_step_timing in s=1.5]", 100,
     {"loss": 9.5, "step_seconds": 1.5, "elapsed_seconds": 150.0, "epoch": 0.0}),
    # verl
    ("step:12 - actor/pg_loss:-0.01 - actor/ppo_kl:0.002 - critic/rewards/mean:0.4 - perf/throughput:1234.5 - "
     "perf/max_memory_allocated_gb:50.5 - perf/max_memory_reserved_gb:60.5", 12,
     {"loss": -0.01, "kl": 0.002, "reward": 0.4, "tokens_per_second": 1234.5,
      "memory_allocated_bytes": 50.5 * GIB, "memory_peak_bytes": 60.5 * GIB}),
    ("step:13 - actor/pg_loss:np.float64(0.25) - actor/grad_norm:np.float64(1.5)", 13,
     {"loss": 0.25, "grad_norm": 1.5}),
    # torchtitan, llm.c
    ("[rank0]:[titan] 2026-11-20 10:00:00,000 - root - INFO - step: 10  loss:  8.1234  grad_norm: 1.2345  "
     "memory: 30.31GiB(38.36%)  tps: 5,123  tflops: 100.1  mfu: 40.12%", 10,
     {"loss": 8.1234, "grad_norm": 1.2345, "memory_peak_bytes": 30.31 * GIB, "tokens_per_second": 5123.0}),
    ("step    2/19560 | loss 10.9 (+nanz)| norm 15.2 (+nanz)| lr 1.0e-06 | 300.1 ms | 55.5% bf16 MFU | 173219 tok/s",
     2, {"loss": 10.9, "grad_norm": 15.2, "learning_rate": 1e-6, "tokens_per_second": 173219.0}),
    # Megatron-LM
    (" validation loss at iteration 200 | lm loss value: 7.399725E+00 | lm loss PPL: 1.764354E+03 | ", 200,
     {"eval_loss": 7.399725}),
    ("[Rank 0] (after 10 iterations) memory (MB) | allocated: 1024.5 | max allocated: 2048.5 | reserved: 3000.0 | "
     "max reserved: 3000.0", None,
     {"memory_allocated_bytes": 1024.5 * MIB, "memory_peak_bytes": 2048.5 * MIB}),
    (" iteration       54/  2475 | consumed samples: 835 | elapsed time per iteration (s): 102.5 | lm loss: 2.0E+00 "
     "| grad norm: 0.146 | number of skipped iterations:   3 | samples per second: 18.921 | TFLOPs: 144.87 |", 54,
     {"loss": 2.0, "grad_norm": 0.146, "step_seconds": 102.5, "skipped_iterations": 3.0,
      "samples_per_second": 18.921}),
    # mmengine, MindFormers, PaddleNLP, DeepSpeed-Chat
    ("11/20 23:56:32 - mmengine - INFO - Iter(train) [  10/1000]  lr: 1.0e-05  eta: 0:10:00  time: 1.2  "
     "data_time: 0.1  memory: 12345  loss: 1.25  grad_norm: 0.5", 10,
     {"loss": 1.25, "grad_norm": 0.5, "learning_rate": 1e-5, "memory_peak_bytes": 12345 * MIB}),
    ("2026-11-20 23:56:32,534 - mindformers[callback.py:1] - INFO - { Epoch:[  1/  2], step:[   10/  100], "
     "loss: 5.125, per_step_time: 1200ms, lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: [1.5], "
     "train_throughput_per_npu: 12.3T", 10,
     {"loss": 5.125, "step_seconds": 1.2, "learning_rate": 1e-5, "loss_scale": 1.0, "grad_norm": 1.5,
      "epoch": 1.0, "stated_steps": 100.0}),
    ("[2026-11-20 23:56:32,534] [    INFO] - loss: 9.5, learning_rate: 1e-05, global_step: 10, "
     "interval_samples_per_second: 12.5, progress_or_epoch: 0.1", 10,
     {"loss": 9.5, "learning_rate": 1e-5, "samples_per_second": 12.5}),
    ("Average reward score: 1.25", None, {"reward": 1.25}),
    # loops of one's own
    ("Epoch 1/3 Step 10/100 loss=0.5 lr=1e-5 tokens/s=512.5 samples/s=4.0 mem=10.5GB", 10,
     {"loss": 0.5, "learning_rate": 1e-5, "tokens_per_second": 512.5, "samples_per_second": 4.0,
      "memory_peak_bytes": 10.5 * GIB, "epoch": 1.0, "stated_steps": 100.0}),
    ("loss: 0.5 | lr: 1e-5", None, {"loss": 0.5, "learning_rate": 1e-5}),
    ("step 2000: train loss 1.76, val loss 1.88", 2000, {"loss": 1.76, "eval_loss": 1.88}),
    ("step:250/1490 val_loss:4.5", 250, {"eval_loss": 4.5}),
    ("step 3 loss 0.5，lr 1e-5，reward：0.25", 3, {"loss": 0.5, "learning_rate": 1e-5}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "step", "values"), LINES, ids=[line[0][:50] for line in LINES])
def test_fields_are_extracted(text: str, step: int | None, values: dict[str, float]) -> None:
    found = extract(Line(text.removeprefix("[rank0]:"), "train.log", 1))
    assert found is not None
    assert found.step == step
    assert found.values == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    "text",
    [
        "reward: the model's, kl: 0.1 in the paper",
        "memory: 80GB, tps: 5,000",
        "  reward_model_path: /models/reward-7b",
        "Namespace(step=5, loss_scale=0, memory=10)",
        "valid loss at iteration of the training",
        "{'kl': 0.1, 'beta': 0.04}",
        "Epoch 1/3 ━━━━━━━ download • 3",
        "the tokens/s of this GPU: 5000",
    ],
)
def test_other_lines_have_no_fields(text: str) -> None:
    assert extract(Line(text, "train.log", 1)) is None


def test_field_names_are_lower_case_and_unique() -> None:
    assert all(name == name.lower() and not name.startswith("train/") for name in FIELDS)
    assert "val_loss" in FIELDS and FIELDS["val_loss"][0] != "loss"
