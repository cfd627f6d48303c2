"""Styles in which training programs print their start, steps, evaluations, saves, and end.

Each style is named after a program and follows the format of this program, with different numbers. A style
consists of functions that take a `Scene` and return lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random


@dataclass
class Scene:
    """The state of the run whose log is generated: its random numbers, its clock, and its counters."""

    chance: Random
    style: str
    ranks: int
    total: int
    step: int = 0
    now: datetime = field(default_factory=lambda: datetime(2026, 3, 2, 9, 14, 7))
    pace: float = 1.0
    home: str = "/opt/train"

    @classmethod
    def of(cls, chance: Random, style: str, ranks: int) -> Scene:
        total = chance.choice([200, 500, 1000, 2500, 10000])
        now = datetime(2026, 1, 5) + timedelta(seconds=chance.randrange(20_000_000))
        home = chance.choice(["/opt/train", "/workspace/src", "/mnt/project/code", "/scratch/team/llm"])
        return cls(chance, style, ranks, total, now=now, pace=chance.choice([0.3, 0.9, 2.4, 11.0]), home=home)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def loss(self) -> float:
        return 1.7 + 8.0 / (1 + self.step / 40) * (1 + self.chance.uniform(-0.03, 0.03))

    @property
    def iso(self) -> str:
        return self.now.strftime("%Y-%m-%d %H:%M:%S")

    @property
    def glog(self) -> str:
        return self.now.strftime("%m%d %H:%M:%S.%f")

    @property
    def host(self) -> str:
        return f"node{1 + self.ranks % 7:02d}"


Lines = list[str]
Written = Callable[[Scene], Lines]


@dataclass(frozen=True)
class Style:
    start: Written
    step: Written
    evaluate: Written
    save: Written
    end: Written
    ray: bool = False


def _none(_: Scene) -> Lines:
    return []


def _trainer_start(s: Scene) -> Lines:
    return [
        "***** Running training *****",
        f"  Num examples = {s.total * 32:,}",
        "  Num Epochs = 3",
        "  Instantaneous batch size per device = 4",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {4 * s.ranks}",
        f"  Total optimization steps = {s.total:,}",
    ]


def _trainer_step(s: Scene) -> Lines:
    return [
        f"{{'loss': {s.loss:.4f}, 'grad_norm': {s.chance.uniform(0.4, 2):.6f}, 'learning_rate': "
        f"{2e-5 * (1 - s.step / s.total):.10g}, 'epoch': {3 * s.step / s.total:.2f}}}"
    ]


def _bar(s: Scene) -> str:
    done = 10 * s.step // s.total
    spent = int(s.step * s.pace)
    return (
        f"{100 * s.step // s.total:3d}%|{'█' * done}{' ' * (10 - done)}| {s.step}/{s.total} "
        f"[{spent // 60:02d}:{spent % 60:02d}<{int((s.total - s.step) * s.pace) // 60:02d}:11, {s.pace:5.2f}s/it]"
    )


def _axolotl_step(s: Scene) -> Lines:
    return [_bar(s), *_trainer_step(s)]


def _trainer_eval(s: Scene) -> Lines:
    return [
        f"{{'eval_loss': {s.loss + 0.1:.6f}, 'eval_runtime': 31.2204, 'eval_samples_per_second': 40.1, "
        f"'eval_steps_per_second': 5.013, 'epoch': {3 * s.step / s.total:.2f}}}"
    ]


def _trainer_save(s: Scene) -> Lines:
    return [f"Saving model checkpoint to out/checkpoint-{s.step}"]


def _trainer_end(s: Scene) -> Lines:
    seconds = s.total * s.pace
    return [
        f"{{'train_runtime': {seconds:.4f}, 'train_samples_per_second': {32 / s.pace:.3f}, "
        f"'train_steps_per_second': {1 / s.pace:.3f}, 'train_loss': {s.loss:.6f}, 'epoch': 3.0}}"
    ]


def _factory(lines: Written, where: str) -> Written:
    return lambda s: [f"[INFO|{where}] {s.iso},{s.chance.randrange(1000):03d} >> {line}" for line in lines(s)]


def _megatron_start(s: Scene) -> Lines:
    return [
        f"using world size: {s.ranks}, data-parallel size: {s.ranks}, tensor-model-parallel size: 1",
        "------------------------ arguments ------------------------",
        "  check_for_nan_in_loss_and_grad .................. True",
        f"  train_iters ..................................... {s.total}",
        "  error_injection_rate ............................ 0",
        "-------------------- end of arguments ---------------------",
        f"[before the start of training step] datetime: {s.iso} ",
    ]


def _megatron_step(s: Scene) -> Lines:
    return [
        f" [{s.iso}] iteration {s.step:8d}/{s.total:8d} | consumed samples: {s.step * 64:12d} | elapsed time per "
        f"iteration (ms): {s.pace * 1000:.1f} | learning rate: 3.000000E-04 | global batch size:    64 | "
        f"lm loss: {s.loss:.6E} | loss scale: 1.0 | grad norm: {s.chance.uniform(0.4, 2):.3f} | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |"
    ]


def _megatron_save(s: Scene) -> Lines:
    return [
        f"saving checkpoint at iteration {s.step:7d} to /ckpt/gpt in torch_dist format",
        f"  successfully saved checkpoint from iteration {s.step:7d} to /ckpt/gpt",
    ]


def _torchtitan_step(s: Scene) -> Lines:
    return [
        f"[rank0]:[titan] {s.iso},{s.chance.randrange(1000):03d} - root - INFO - step: {s.step:2d}  loss: {s.loss:7.4f}"
        f"  grad_norm: {s.chance.uniform(0.4, 2):.4f}  memory: 47.31GiB(59.79%)  tps: 7,{s.chance.randrange(100, 999)}"
        "  tflops: 412.25  mfu: 41.68%"
    ]


def _verl_step(s: Scene) -> Lines:
    return [
        f"step:{s.step} - global_seqlen/mean:{s.chance.randrange(9000, 20000)} - actor/entropy:{0.4 + s.loss / 50:.4f} - "
        f"actor/pg_loss:{s.chance.uniform(-0.02, 0.02):.5f} - actor/grad_norm:{s.chance.uniform(0.1, 0.6):.4f} - "
        f"critic/score/mean:{0.7 - s.loss / 20:.4f} - response_length/mean:{s.chance.uniform(400, 900):.1f} - "
        f"perf/throughput:{s.chance.uniform(800, 1200):.2f}"
    ]


def _fairseq_step(s: Scene) -> Lines:
    return [
        f"{s.iso} | INFO | train_inner | epoch 001: {s.step:6d} / {s.total} loss={s.loss:.3f}, ppl={2 ** min(s.loss, 15):.2f},"
        f" wps=41022.1, ups=1.2, wpb=32768, bsz=64, num_updates={s.step}, lr=0.0003, gnorm=1.021, train_wall=88"
    ]


def _mm_step(s: Scene) -> Lines:
    return [
        f"{s.now.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Epoch(train)  [1][{s.step:5d}/{s.total}]  lr: 2.0000e-04"
        f"  eta: 3:12:09  time: {s.pace:.4f}  data_time: 0.0103  memory: 5421  loss: {s.loss:.4f}"
    ]


def _detr_step(s: Scene) -> Lines:
    return [
        f"Epoch: [{s.step // 500}]  [{s.step:>5}/{s.total}]  eta: 0:41:02  lr: 0.000100  loss: {s.loss:.4f} ({s.loss + 0.2:.4f})"
        f"  time: {s.pace:.4f}  data: 0.0098  max mem: 10236"
    ]


def _maxtext_step(s: Scene) -> Lines:
    return [
        f"completed step: {s.step}, seconds: {s.pace:.3f}, TFLOP/s/device: 182.114, Tokens/s/device: 9102.331, "
        f"total_weights: 65536, loss: {s.loss:.3f}"
    ]


def _sb3_step(s: Scene) -> Lines:
    rule = "-" * 41
    return [
        rule,
        "| rollout/                |             |",
        "|    ep_len_mean          | 412         |",
        f"|    ep_rew_mean          | {120 + s.step / 10:<12.3g}|",
        "| time/                   |             |",
        f"|    iterations           | {s.step:<12}|",
        f"|    total_timesteps      | {s.step * 2048:<12}|",
        "| train/                  |             |",
        f"|    value_loss           | {s.loss:<12.3g}|",
        rule,
    ]


def _keras_step(s: Scene) -> Lines:
    done = 20 * s.step // s.total
    return [
        f"{s.step}/{s.total} {'━' * done}{' ' * (20 - done)} {int(s.pace * (s.total - s.step))}s {int(s.pace * 1000)}ms/step"
        f" - accuracy: {0.3 + s.step / s.total / 2:.4f} - loss: {s.loss:.4f}"
    ]


def _epoch_step(s: Scene) -> Lines:
    return [
        f"Epoch {s.step}: Train={s.loss:.4f} Val={s.loss + 0.2:.4f} best={s.loss - 0.01:.4f} ({s.pace * 60:.1f}s)"
    ]


def _log(s: Scene, text: str, name: str = "trainer") -> str:
    return f"{s.iso},{s.chance.randrange(1000):03d} - {name} - INFO - {text}"


STYLES: dict[str, Style] = {
    "trainer": Style(_trainer_start, _trainer_step, _trainer_eval, _trainer_save, _trainer_end),
    "axolotl": Style(_trainer_start, _axolotl_step, _trainer_eval, _trainer_save, _trainer_end),
    "factory": Style(
        _factory(_trainer_start, "trainer.py:2519"),
        _trainer_step,
        _factory(lambda s: ["***** Running Evaluation *****", "  Num examples = 512"], "trainer.py:4643"),
        _factory(_trainer_save, "trainer.py:4309"),
        _trainer_end,
    ),
    "megatron": Style(
        _megatron_start,
        _megatron_step,
        lambda s: [
            f" validation loss at iteration {s.step} | lm loss value: {s.loss:.6E} | lm loss PPL: {math.exp(min(s.loss, 9)):.6E} |"
        ],
        _megatron_save,
        lambda s: [f"[after training is done] datetime: {s.iso} "],
    ),
    "nanogpt": Style(
        lambda s: [
            "tokens per iteration will be: 491,520",
            "number of parameters: 124.34M",
            "num decayed parameter tensors: 50",
        ],
        lambda s: [f"iter {s.step}: loss {s.loss:.4f}, time {s.pace * 1000:.2f}ms, mfu 38.21%"],
        lambda s: [f"step {s.step}: train loss {s.loss:.4f}, val loss {s.loss + 0.03:.4f}"],
        lambda s: ["saving checkpoint to out"],
        _none,
    ),
    "torchtitan": Style(
        lambda s: [
            f"[rank0]:[titan] {s.iso},101 - root - INFO - Training starts at step 1, with local batch size 8"
        ],
        _torchtitan_step,
        _none,
        lambda s: [
            f"[rank0]:[titan] {s.iso},211 - root - INFO - Saving the checkpoint (or staging if async is enabled)."
        ],
        lambda s: [f"[rank0]:[titan] {s.iso},455 - root - INFO - Training completed"],
    ),
    "verl": Style(
        lambda s: [
            "Using dataset class: RLHFDataset",
            f"Total training steps: {s.total}",
            "Checkpoint tracker file does not exist: ckpt",
        ],
        _verl_step,
        lambda s: [f"step:{s.step} - val-core/gsm8k/acc/mean@1:{0.5 + s.step / s.total / 4:.4f}"],
        lambda s: [f"local_global_step_folder: checkpoints/ppo/global_step_{s.step}"],
        lambda s: [f"Final validation metrics: {{'val-core/gsm8k/acc/mean@1': {0.7:.4f}}}"],
        ray=True,
    ),
    "fairseq": Style(
        lambda s: [
            f"{s.iso} | INFO | fairseq_cli.train | training on {s.ranks} devices (GPUs/TPUs)",
            f"{s.iso} | INFO | fairseq.trainer | begin training epoch 1",
        ],
        _fairseq_step,
        lambda s: [
            f"{s.iso} | INFO | valid | epoch 001 | valid on 'valid' subset | loss {s.loss:.3f} | ppl 31.2 | num_updates {s.step}"
        ],
        lambda s: [
            f"{s.iso} | INFO | fairseq.checkpoint_utils | Saved checkpoint checkpoints/checkpoint_1_{s.step}.pt (epoch 1 @ {s.step} updates, score 5.1) (writing took 3.2 seconds)"
        ],
        lambda s: [f"{s.iso} | INFO | fairseq_cli.train | done training in {s.total * s.pace:.1f} seconds"],
    ),
    "mmengine": Style(
        lambda s: [
            f"{s.now.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Checkpoints will be saved to /work_dirs/rtmdet."
        ],
        _mm_step,
        lambda s: [
            f"{s.now.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Epoch(val) [1][625/625]    coco/bbox_mAP: 0.3910  data_time: 0.0021  time: 0.0310"
        ],
        lambda s: [f"{s.now.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Saving checkpoint at 1 epochs"],
        _none,
    ),
    "detr": Style(
        lambda s: [
            "Not using distributed mode" if s.ranks == 1 else "| distributed init (rank 0): env://",
            "number of params: 41302368",
            "Start training",
        ],
        _detr_step,
        lambda s: [
            "Averaged stats: class_error: 12.01  loss: 4.9120 (5.1002)",
            " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.402",
        ],
        _none,
        lambda s: ["Training time 7:41:02"],
    ),
    "maxtext": Style(
        lambda s: [
            f"System Information: Jax Version: 0.7.2, number of devices {s.ranks}",
            "Num_model_params: 6738415616",
        ],
        _maxtext_step,
        lambda s: [f"eval metrics after step: {s.step}, loss={s.loss:.3f}, total_weights=2097152.0"],
        lambda s: [f"saved a checkpoint at step {s.step}"],
        _none,
    ),
    "sb3": Style(
        lambda s: ["Using cuda device", "Wrapping the env with a `Monitor` wrapper"],
        _sb3_step,
        lambda s: [
            f"Eval num_timesteps={s.step * 2048}, episode_reward={120 + s.step / 10:.2f} +/- 8.31",
            "Episode length: 412.00 +/- 30.12",
        ],
        _none,
        lambda s: ["Saving to logs/ppo/final_model.zip"],
    ),
    "keras": Style(
        lambda s: ["Epoch 1/10"],
        _keras_step,
        lambda s: [f"Epoch 1: val_loss improved from inf to {s.loss:.5f}, saving model to best.keras"],
        _none,
        _none,
    ),
    "epochs": Style(
        lambda s: [f"Namespace(lr=0.001, epochs={s.total}, batch_size=64, seed=1, resume=None)"],
        _epoch_step,
        _none,
        lambda s: ["  -> new best, saved to best.pth"],
        lambda s: [f"Test accuracy: {0.87:.4f}"],
    ),
    "openrlhf": Style(
        lambda s: [_log(s, f"Num episodes = 1, max_steps = {s.total}")],
        lambda s: [
            f"Train epoch [1/1]: {_bar(s)}, pg={s.chance.uniform(-0.02, 0.02):.4f}, rm={0.7 - s.loss / 20:.4f}, ret=0.412, glen=381, kl={s.chance.uniform(0, 0.02):.4f}, act_lr=5e-7"
        ],
        _none,
        lambda s: [
            f"[{s.iso},101] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving ./ckpt/global_step{s.step}/mp_rank_00_model_states.pt..."
        ],
        _none,
    ),
    "logger": Style(
        lambda s: [
            _log(s, f"config: {{'lr': 0.0003, 'max_steps': {s.total}, 'on_nan': 'raise', 'timeout': 1800}}"),
            _log(s, "starting training"),
        ],
        lambda s: [
            _log(
                s,
                f"global_step={s.step} loss={s.loss:.4f} lr=3.0e-04 tokens_per_sec={s.chance.randrange(40000, 52000)}",
            )
        ],
        lambda s: [_log(s, f"eval step={s.step} eval_loss={s.loss + 0.1:.4f}")],
        lambda s: [_log(s, f"checkpoint written to /ckpt/step_{s.step:06d} in 14.2s")],
        lambda s: [_log(s, "training finished, exiting")],
    ),
    "columns": Style(_none, lambda s: [f"{s.step}\t{s.loss:.6f}"], _none, _none, _none),
}
