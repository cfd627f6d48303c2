# ruff: noqa: E501 - log lines are as long as they are
"""Generated logs of many shapes: trainings in unlisted formats, and numbers that are not steps.

Each row is the output of one epoch, iteration or episode. A complete run prints all rows and its end; a
truncated run prints six in ten rows and no end.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import NamedTuple

CUT = 0.6


class At(NamedTuple):
    """Numbers of one row."""

    n: int  #: the counter as printed
    loss: float
    val: float
    acc: float
    reward: float
    seconds: float
    r: random.Random


Row = Callable[[At], str]


class Shape(NamedTuple):
    """One kind of training log."""

    name: str
    row: Row
    rows: int = 30
    first: int = 1
    stride: int = 1
    head: str = ""
    end: str = ""
    ends: bool = True  #: True if the end reports that the run is complete
    shown: bool = True  #: True if the text contains the counter

    def text(self, seed: int, *, whole: bool) -> str:
        """Return the log of a complete run, or of a truncated one."""
        rnd = random.Random(f"{self.name} {seed}")
        count = self.rows if whole else int(self.rows * CUT)
        lines = [self.head] if self.head else []
        lines += [self.row(_at(self.first + k * self.stride, k, rnd)) for k in range(count)]
        if whole and self.end:
            lines.append(self.end)
        return "\n".join(lines) + "\n"

    def last(self, *, whole: bool) -> int:
        """Return the counter of the last row."""
        return self.first + ((self.rows if whole else int(self.rows * CUT)) - 1) * self.stride


def _at(n: int, k: int, r: random.Random) -> At:
    fall = math.exp(-k / 12)
    return At(
        n,
        0.3 + 2 * fall + r.uniform(-0.05, 0.05),
        0.4 + 2 * fall + r.uniform(-0.05, 0.05),
        0.9 - 0.8 * fall + r.uniform(-0.02, 0.02),
        200 - 180 * fall + r.uniform(-9, 9),
        r.uniform(2, 3),
        r,
    )


def batches(at: At, one: Callable[[int], str], count: int = 3) -> str:
    """Return the lines of an epoch's batches."""
    return "\n".join(one(100 * (n + 1)) for n in range(count))


BOX = "-" * 35

FIRST_HALF = (
    Shape("two bare columns", lambda a: f"{a.n} {a.loss:.6f}", 40, 0, 10, end="Optimization finished."),
    Shape(
        "three columns under names",
        lambda a: f"{a.n:5d}   {a.loss:.4f}   {a.val:.4f}",
        head="epoch   train    val",
        end="total time: 93.2 s",
    ),
    Shape(
        "Train= and Val=",
        lambda a: f"Epoch {a.n}: Train={a.loss:.4f} Val={a.val:.4f}",
        end="Best epoch: 27 (Val=0.3911)",
    ),
    Shape("epoch N/M, values by split", lambda a: f"Epoch {a.n}/30, Train: {a.loss:.3f}, Valid: {a.val:.3f}"),
    Shape(
        "episodes",
        lambda a: f"episode {a.n} reward {a.reward:.1f} length {a.r.randrange(9, 200)}",
        60,
        10,
        10,
        end="Training done, model saved to policy.pt",
    ),
    Shape(
        "table of rollouts",
        lambda a: (
            f"{BOX}\n| rollout/           |          |\n|    ep_len_mean     | "
            f"{a.r.uniform(20, 200):<8.3g} |\n|    ep_rew_mean     | {a.reward:<8.3g} |\n| time/              |          |"
            f"\n|    fps             | {a.r.randrange(500, 900)}      |\n|    total_timesteps | {a.n:<8d} |\n{BOX}"
        ),
        24,
        2048,
        2048,
        end="Saved the final model to ppo_cartpole.zip",
    ),
    Shape(
        "yaml results",
        lambda a: (
            f"Result for PPO_CartPole-v1_41a0b_00000:\n  episode_reward_mean: {a.reward:.4f}\n"
            f"  num_env_steps_sampled: {a.n * 4000}\n  time_total_s: {a.n * 7.31:.3f}\n  training_iteration: {a.n}\n"
        ),
        end="Trial PPO_CartPole-v1_41a0b_00000 completed.",
        shown=False,
    ),
    Shape(
        "policy and value losses",
        lambda a: (
            f"update {a.n} | v_loss {a.loss:.4f} | pi_loss {-a.loss / 9:.4f} | "
            f"entropy {a.val / 4:.3f} | return {a.reward:.2f}"
        ),
        50,
        end="finished after 50 updates",
    ),
    Shape(
        "iter with time",
        lambda a: f"iter {a.n}: loss {a.loss:.4f}, time {a.seconds * 20:.2f}ms, mfu 12.33%",
        40,
        0,
        10,
        end="saving checkpoint to out/ckpt.pt\nTraining complete",
    ),
    Shape(
        "items of epochs, tests between",
        lambda a: (
            f"Epoch: [{a.n}]  [  0/300]  eta: 0:01:10  lr: 0.000100  loss: "
            f"{a.loss:.4f} ({a.loss + 0.2:.4f})  time: 0.4023  data: 0.01  max mem: 4021\nEpoch: [{a.n}]  [299/300]  eta: "
            f"0:00:00  lr: 0.000100  loss: {a.loss:.4f} ({a.loss:.4f})  time: 0.31  data: 0.00  max mem: 4021\nEpoch: "
            f"[{a.n}] Total time: 0:01:33 (0.3111 s / it)\nTest:  [ 0/20]  eta: 0:00:09  class_error: 12.1  loss: "
            f"{a.val:.4f} ({a.val:.4f})"
        ),
        8,
        0,
        end="Training time 0:14:02",
        shown=False,
    ),
    Shape(
        "records in JSON with status",
        lambda a: (
            ':::MLLOG {"namespace": "", "time_ms": '
            f'{1700000000000 + a.n * 9000}, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": {a.acc:.6f}, '
            f'"metadata": {{"file": "train.py", "lineno": 211, "epoch_num": {a.n}}}}}'
        ),
        20,
        end=':::MLLOG {"namespace": "", "time_ms": 1700000999000, "event_type": "INTERVAL_END", "key": "run_stop", '
        '"value": null, "metadata": {"file": "train.py", "lineno": 301, "status": "success"}}',
    ),
    Shape(
        "bar-less epochs of Keras",
        lambda a: (
            f"Epoch {a.n}/20\n469/469 - 2s - loss: {a.loss:.4f} - accuracy: "
            f"{a.acc:.4f} - val_loss: {a.val:.4f} - val_accuracy: {a.acc:.4f} - 2s/epoch - 5ms/step"
        ),
        20,
        shown=False,
    ),
    Shape(
        "fastai's table",
        lambda a: f"{a.n:<9d} {a.loss:<10.6f}  {a.val:<10.6f}  {a.acc:<8.6f}  00:{a.seconds * 4:02.0f}",
        20,
        0,
        head="epoch     train_loss  valid_loss  accuracy  time",
        end="Training finished.",
    ),
    Shape(
        "comma-separated",
        lambda a: f"{a.n},{a.loss:.5f},{a.val:.5f},0.001",
        head="epoch,train_loss,val_loss,lr",
        end="done.",
    ),
    Shape(
        "JSON lines without loss",
        lambda a: json.dumps(
            {"epoch": a.n, "train_acc": round(a.acc, 4), "test_acc": round(a.acc - 0.02, 4)}
        ),
        end="Final test accuracy: 0.9012",
    ),
    Shape("Chinese", lambda a: f"第{a.n}轮 平均回报 {a.reward:.2f} 准确率 {a.acc:.4f}", end="训练完成"),
    Shape(
        "German",
        lambda a: f"Epoche {a.n}: Verlust {a.loss:.4f}, Genauigkeit {a.acc:.4f}",
        end="Training abgeschlossen",
    ),
    Shape(
        "Russian",
        lambda a: f"Эпоха {a.n}: потери {a.loss:.4f}, точность {a.acc:.4f}",
        end="Обучение завершено",
    ),
    Shape(
        "epochs with batches",
        lambda a: (
            f"Epoch {a.n}/6\n"
            + batches(a, lambda b: f"  batch {b}/300 loss {a.loss + b / 9e3:.4f}")
            + f"\n  val_loss {a.val:.4f} val_acc {a.acc:.3f}"
        ),
        6,
        shown=False,
    ),
    Shape(
        "estimator",
        lambda a: (
            f"INFO:tensorflow:loss = {a.loss:.5f}, step = {a.n} ({a.seconds:.3f} sec)\n"
            f"INFO:tensorflow:global_step/sec: {100 / a.seconds:.3f}"
        ),
        30,
        0,
        100,
        end="INFO:tensorflow:Saving checkpoints for 3000 into /tmp/model.ckpt.\n"
        "INFO:tensorflow:Loss for final step: 0.31.",
    ),
    Shape(
        "solver",
        lambda a: (
            f"I0301 10:00:{a.n // 100 % 60:02d}.123456  1234 solver.cpp:239] Iteration {a.n} (3.21 "
            f"iter/s, 31.1s/100 iters), loss = {a.loss:.5f}\nI0301 10:00:{a.n // 100 % 60:02d}.123477  1234 "
            f"solver.cpp:258]     Train net output #0: loss = {a.loss:.5f} (* 1 = {a.loss:.5f} loss)"
        ),
        30,
        0,
        100,
        end="I0301 10:01:12.123456  1234 caffe.cpp:259] Optimization Done.",
    ),
    Shape(
        "gradient boosting",
        lambda a: f"[{a.n}]\ttrain-rmse:{a.loss:.5f}\teval-rmse:{a.val:.5f}",
        60,
        0,
        1,
        end="best iteration: 57",
    ),
)

SECOND_HALF = (
    Shape(
        "boosting with learn and test",
        lambda a: (
            f"{a.n}:\tlearn: {a.loss:.7f}\ttest: {a.val:.7f}\tbest: "
            f"{a.val:.7f} ({a.n})\ttotal: {a.n * 12}ms\tremaining: {a.seconds:.2f}s"
        ),
        50,
        0,
        10,
        end="bestTest = 0.4012\nbestIteration = 490",
    ),
    Shape(
        "darknet",
        lambda a: (
            f" {a.n}: {a.loss:.6f}, {a.val:.6f} avg loss, 0.001000 rate, {a.seconds:.6f} seconds, "
            f"{a.n * 64} images, 1.2 hours left"
        ),
        40,
        1,
        1,
        ends=False,
    ),
    Shape(
        "pipes by epoch",
        lambda a: (
            f"| epoch {a.n:03d} | loss {a.loss:.3f} | nll_loss {a.val:.3f} | ppl "
            f"{2**a.val:.2f} | wps 23011.2 | num_updates {a.n * 120}"
        ),
        20,
        end="| done training in 812.3 seconds",
        shown=False,
    ),
    Shape(
        "MXNet",
        lambda a: (
            f"INFO:root:Epoch[{a.n}] Batch [100]\tSpeed: 1234.5 samples/sec\taccuracy={a.acc:.6f}\n"
            f"INFO:root:Epoch[{a.n}] Train-accuracy={a.acc:.6f}\nINFO:root:Epoch[{a.n}] Time cost=12.3\n"
            f"INFO:root:Epoch[{a.n}] Validation-accuracy={a.acc - 0.01:.6f}"
        ),
        15,
        0,
        ends=False,
        shown=False,
    ),
    Shape(
        "adversarial",
        lambda a: "\n".join(
            f"[Epoch {a.n}/12] [Batch {b}/300] [D loss: {a.loss:.6f}] [G loss: {a.val:.6f}]"
            for b in (0, 100, 200)
        ),
        12,
        0,
        ends=False,
        shown=False,
    ),
    Shape(
        "return per step",
        lambda a: (
            f"Step: {a.n} | Return: {a.reward:.1f} | Actor: {-a.loss:.2f} | Critic: "
            f"{a.val:.3f} | Alpha: 0.1{a.r.randrange(99)}"
        ),
        50,
        1000,
        1000,
        end="Total training time: 1823.1 s",
    ),
    Shape(
        "robot learning box",
        lambda a: (
            f"{'#' * 60}\n        Learning iteration {a.n}/40\n\n          Computation: "
            f"{a.r.randrange(4000, 6000)} steps/s\n    Value function loss: {a.loss:.4f}\n         Mean reward: {a.reward:.2f}"
        ),
        40,
        1,
        end="",
    ),
    Shape(
        "game scores",
        lambda a: f"Game {a.n}  Score {a.reward:.0f}  Record: {a.reward + 9:.0f}",
        80,
        1,
        ends=False,
    ),
    Shape(
        "short names",
        lambda a: f"ep={a.n} score={a.reward:.1f} avg={a.reward - 4:.2f} eps={a.val / 4:.3f}",
        50,
        1,
        1,
        ends=False,
    ),
    Shape(
        "matlab's table",
        lambda a: (
            f"|{a.n:8d} |{a.n * 50:12d} |       00:00:{a.n % 60:02d} |      {a.acc * 100:6.2f}% | "
            f"     {a.loss:.4f} |          0.0100 |"
        ),
        20,
        1,
        head="|  Epoch  |  Iteration  |  Time Elapsed  |  Mini-batch  |"
        "  Mini-batch  |  Base Learning  |\n|         |             |   (hh:mm:ss)   |   Accuracy   |     Loss     |"
        "      Rate       |",
        end="Training finished: Max epochs completed.",
        shown=False,
    ),
    Shape(
        "sparse words",
        lambda a: f"Iteration {a.n}, loss = {a.loss:.8f}",
        40,
        1,
        end="Training loss did not improve more than tol=0.000100 for 10 consecutive epochs. Stopping.",
    ),
    Shape(
        "federated",
        lambda a: (
            f"INFO : [ROUND {a.n}]\nINFO : fit progress: ({a.n}, {a.loss:.6f}, "
            f"{{'accuracy': {a.acc:.4f}}}, {a.n * 12.3:.2f})"
        ),
        15,
        1,
        head="INFO : Starting, config: num_rounds=15",
        end="INFO : Run finished 15 round(s) in 184.51s",
    ),
    Shape(
        "zero-based of all",
        lambda a: f"Epoch [{a.n}/25] train loss: {a.loss:.4f} test acc: {a.acc:.4f}",
        25,
        0,
    ),
    Shape(
        "spinning up",
        lambda a: (
            f"{BOX}\n|             Epoch | {a.n:15d} |\n|      AverageEpRet | {a.reward:15.3g} |\n"
            f"|             LossV | {a.loss:15.3g} |\n{BOX}"
        ),
        20,
        0,
        ends=False,
    ),
    Shape(
        "best kept",
        lambda a: (
            f"{a.n:03d} | tr {a.loss:.4f} | te {a.val:.4f} | f1 {a.acc:.3f}" + (" *" if a.n % 3 else "")
        ),
        25,
        1,
        end="Saved final model to runs/final.pt",
    ),
    Shape(
        "logger in front",
        lambda a: (
            f"2026-03-01 10:{a.n // 60:02d}:{a.n % 60:02d},120 INFO trainer - epoch {a.n} - mIoU "
            f"{a.acc:.4f} - best {a.acc + 0.01:.4f}"
        ),
        40,
        1,
        end="2026-03-01 11:03:01,330 INFO trainer - Training finished",
    ),
    Shape(
        "tab-separated",
        lambda a: f"{a.n}\t{a.loss:.4f}\t{a.acc:.4f}",
        head="iteration\tloss\taccuracy",
        ends=False,
    ),
    Shape("Spanish", lambda a: f"Época {a.n} de 30 - pérdida {a.loss:.4f} - exactitud {a.acc:.4f}", end=""),
    Shape("Japanese", lambda a: f"エポック {a.n}/30: 損失 {a.loss:.4f} 精度 {a.acc:.4f}"),
    Shape(
        "evaluations by step",
        lambda a: f"[{a.n:6d}] eval_return={a.reward:.2f} buffer={a.n * 4}",
        30,
        5000,
        5000,
        ends=False,
    ),
    Shape(
        "dictionary by epoch",
        lambda a: f"Epoch {a.n}: {{'mlm': {a.loss:.4f}, 'nsp': {a.val:.4f}}}",
        ends=False,
    ),
    Shape(
        "seconds first",
        lambda a: f"[{a.n * 2.31:8.1f}s] epoch {a.n} perplexity {2**a.val:.2f}",
        end="Done in 71.2s",
    ),
)


class Other(NamedTuple):
    """Lines with advancing numbers that are not a training's series."""

    name: str
    row: Callable[[int, random.Random], str]
    rows: int = 40
    head: str = ""

    def text(self, seed: int) -> str:
        """Return the log."""
        rnd = random.Random(f"{self.name} {seed}")
        return (
            "\n".join([*([self.head] if self.head else []), *(self.row(n, rnd) for n in range(self.rows))])
            + "\n"
        )


OTHERS = (
    Other("heartbeats", lambda n, r: f"2026-03-01 10:{n:02d}:00,000 INFO agent: alive, uptime {n * 60} s, load {r.random():.2f}"),
    Other("loading shards", lambda n, r: f"Loading shard {n + 1}/40 took {r.uniform(1, 3):.2f}s"),
    Other("tokenising", lambda n, r: f"Tokenized {(n + 1) * 1000} examples ({r.uniform(900, 1500):.2f} examples/s)"),
    Other("downloading", lambda n, r: f"model.safetensors: {n * 2}% {n * 0.2:.1f}G/8.0G {r.uniform(9, 30):.1f}MB/s"),
    Other("cards", lambda n, r: f"{n % 8} {r.uniform(40, 80):.1f} {r.uniform(20, 99):.1f}"),
    Other("ports", lambda n, r: f"worker {n} listening on port {29500 + n}, started in {r.uniform(1, 3):.2f}s"),
    Other("retries", lambda n, r: f"Waiting for the store, attempt {n + 1}, waited {n * 5 + r.random():.1f} s"),
    Other("preparing", lambda n, r: f"Processed {(n + 1) * 1000}/50000 images, mean {r.uniform(0.4, 0.5):.4f}"),
    Other("layers", lambda n, r: f"layer {n}: mean {r.uniform(-1, 1):.4f} std {r.random():.4f}"),
    Other("classification report", lambda n, r: f"{n:12d}       {r.random():.2f}      {r.random():.2f}      "
          f"{r.random():.2f}       980", 20, "              precision    recall  f1-score   support\n"),
    Other("autotune", lambda n, r: f"  triton_mm_{n} {0.03 + n / 900:.4f} ms {99 - n:.1f}%", 20),
    Other("kernel", lambda n, r: f"[{100 + n * 1.7 + r.random():12.6f}] eth0: link up {n}"),
    Other("source", lambda n, r: f"{n + 1}  x{n} = {r.random():.3f} * y"),
    Other("classes", lambda n, r: f"class {n}: AP {r.random():.4f}"),
    Other("questions", lambda n, r: f"question {n + 1} scored {r.random():.2f}"),
    Other("collecting rows", lambda n, r: f"rows {n * 512} bytes {n * 512 * 97} rate {r.uniform(9, 30):.1f} MB/s"),
    Other("buckets", lambda n, r: f"bucket {n} size {r.uniform(20, 30):.1f} MiB"),
    Other("ranks", lambda n, r: f"rank {n} initialised in {r.uniform(1, 9):.2f} s, epoch 0"),
    Other("requests", lambda n, r: f"INFO: request {n} done, latency {r.uniform(0.1, 0.9):.3f} s"),
    Other("memory", lambda n, r: f"step 0 allocated {1000 + n * 40} MiB, fragmentation {r.random():.3f}"),
    Other("hosts", lambda n, r: f"node{n:03d} ok {r.uniform(0.1, 0.9):.3f}"),
    Other("compiling", lambda n, r: f"[{n + 1}/40] nvcc -c kernel_{n}.cu ({r.uniform(1, 9):.1f} s)"),
    Other("samples of text", lambda n, r: f"{n + 1}. The answer is {r.uniform(1, 9):.2f} because of it."),
    Other("search space", lambda n, r: f"trial {n}: lr={10 ** -r.uniform(2, 5):.6f} dropout={r.random():.2f}"),
)  # fmt: skip
