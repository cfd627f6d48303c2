"""Examples of each kind of message, file, and setting, and the tokens that they contain."""

from __future__ import annotations

import gzip

import zstandard

from fuzzing import samples as of
from stallwatch_exporter.cluster.signing import Proof, Signer


def webhooks() -> list[bytes]:
    labels = {
        "alertname": "StallwatchStalled",
        "run": "sft",
        "rule": "cuda-oom",
        "severity": "critical",
        "rank": "3",
    }
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": "x"},
        "startsAt": "2026-11-21T07:12:13.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://p/graph",
        "fingerprint": "0123456789abcdef",
    }
    body = {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "x",
        "alerts": [alert],
    }
    ended = {**alert, "status": "resolved", "labels": {**labels, "incident": "stall"}}
    return of.as_json(body, {**body, "alerts": [alert, ended, {"status": 3}]}, {**body, "alerts": []})


def posts() -> list[bytes]:
    """Return reports from agents, each with the header that authenticates it."""
    member_report = {"key": "5f", "agent": "n2-1", "host": "n2", "host_id": "ab", "run": "sft-1", "number": 7}
    group = {"ranks": [8, 9], "kind": "collective", "collectives": {"w": {"joined": 12, "done": 11}}}
    layout = [{"id": "w", "ranks": "0-15", "axis": "world"}]
    stacks = {"time": 1.0, "seconds": 0.2, "groups": [group], "layout": layout}
    incident = {
        "id": "sft-1/stall/stall/1",
        "run": "sft-1",
        "kind": "stall",
        "rule": "stall",
        "severity": "critical",
        "status": "open",
        "episode": 1,
        "opened_at": 1.5,
        "updated_at": 2.5,
    }
    pace = {"step": 4, "rank": 8, "own": 0.1, "whole": 0.3}
    report = {
        **member_report,
        "stacks": stacks,
        "incidents": [incident],
        "paces": [pace],
        "ledger": [{"id": "a"}],
    }
    plain = of.as_json(
        {"v": 2, "reports": [member_report]}, {"v": 2, "reports": [report, member_report]}, {"v": 3}
    )
    proof = Signer(b"secret", "5f").sign("POST", "/", Proof("5f", "n2-1", 7, "n1-1"), b"")
    return [*plain, gzip.compress(plain[1], mtime=0), zstandard.compress(plain[1]), proof.header.encode()]


def spied() -> list[bytes]:
    frame = {
        "name": "forward",
        "filename": "/a/b.py",
        "module": None,
        "short_filename": "b.py",
        "line": 7,
        "locals": None,
    }
    thread = {
        "pid": 1,
        "thread_id": 2,
        "thread_name": "MainThread",
        "os_thread_id": 1,
        "active": True,
        "owns_gil": True,
    }
    return of.as_json([{**thread, "frames": [frame, frame]}, {**thread, "frames": []}])


def answered() -> list[bytes]:
    task = {"name": "t", "awaited": True, "frames": [["/a.py", 1, "f", "x()"]]}
    threads = [
        {"name": "MainThread", "main": True, "frames": [["/a.py", 3, "main", "go()"]], "tasks": [task]}
    ]
    entry = {
        "record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 7, "p2p_seq_id": 0, "op_id": 7,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[4]], "output_sizes": [[4]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled", "is_p2p": False, "retired": False,
        "timeout_ms": 600000, "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "duration_ms": None,
    }  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {
        "0": {"last_enqueued_collective": 7, "last_started_collective": -1, "last_completed_collective": 6}
    }
    recorder = {"version": "2.10", "pg_config": groups, "pg_status": status, "entries": [entry]}
    counters = {"step": 3, "saves": {"begun": 1, "ended": 1.0}}
    return of.as_json(
        {"asked": "q", "threads": threads, "counters": counters},
        {"asked": "q", "recorder": recorder},
        {"asked": "q", **recorder},
    )


def written_events() -> list[bytes]:
    seen = {
        "kind": "concern",
        "rule": "zero3-dummy-loss",
        "seen": "x",
        "about": "loss",
        "step": 3,
        "rank": 0,
        "time": 1.7e9,
    }
    cache = {
        "kind": "trace-cache",
        "how": "mismatch",
        "expected": 3,
        "got": 4,
        "got_name": "a.b",
        "rank": 1,
        "time": 1.7e9,
    }
    left = {"kind": "left", "error": False, "time": 1.7e9, "rank": 0}
    raised = {
        "kind": "exception",
        "exception": "ValueError",
        "message": "x",
        "frames": [["/a.py", 1, "f"]],
        "rank": 0,
    }
    return [b"\n".join(of.as_json(seen, cache, raised, left)) + b"\n"]


TOML = (
    b'[run]\nhome = "state"\n[alerts]\nurls = ["slack://a/b/c", "json://h:1/x"]\nlanguage = "zh"\n'
    b'[[alerts.routes]]\nruns = ["sft-*"]\nseverities = ["critical"]\nurls = ["lark://t"]\n'
    b'quiet = "22:00-07:00"\ntimezone = "Asia/Shanghai"\nescalate_minutes = 15\nescalate_urls = ["mailto://a@b"]\n',
    b"[exporter]\nport = 19400\nhost = '127.0.0.1'\n[server]\nport = 0x4bc8\n[stall]\nfloor_seconds = 3e1\n",
    b"alerts = 3\nurls = 'x'\n[alert]\nurl = 1\n[alerts]\nurls = [1, 'a', []]\nsince = 2026-01-01T00:00:00Z\n",
)
ROUTES = of.as_json(
    [
        {
            "runs": ["sft-*"],
            "severities": ["critical"],
            "urls": ["lark://t"],
            "quiet": "22:00-07:00",
            "timezone": "UTC",
        }
    ],
    [
        {
            "quiet": "9:00 - 25:00",
            "quiet_but": ["critical"],
            "escalate_minutes": 5,
            "escalate_urls": ["a://b"],
            "continue": True,
        }
    ],
)
DEEPSPEED = of.as_json(
    {
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": True},
                              "stage3_prefetch_bucket_size": 5e7, "reduce_bucket_size": "auto", "sub_group_size": 1e9},
        "bf16": {"enabled": True}, "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "activation_checkpointing": {"partition_activations": True}, "zero_allow_untested_optimizer": True,
    }
)  # fmt: skip
ACCELERATE = (
    b"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
    b"deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 1\n  offload_optimizer_device: none\n"
    b"  zero3_save_16bit_model: true\n  deepspeed_config_file: ds.json\n",
    b"zero_optimization: &a\n  stage: 2\nother: *a\nbig: [*a, *a]\n? [complex, key]\n: x\nwhen: 2026-01-01\n",
)
SCRIPT = (
    b"import torch, deepspeed\nfrom trl import SFTTrainer, SFTConfig\n\n\ndef main(args):\n    model = load()\n"
    b"    if torch.distributed.get_rank() == 0:\n        model.save_pretrained(args.out)\n"
    b"    config = SFTConfig(output_dir='x', bf16=True, deepspeed='ds.json', **args.more)\n"
    b"    trainer = SFTTrainer(model=model, args=config)\n    trainer.train()\n    loss = out.sum() * 0.0\n"
    b"    model.eval()\n    loss.backward()\n    assert loss > 0, f'{loss!r:>10}'\n\n\nmain(lambda *a, **k: [x for x in a])\n",
    b"match x:\n    case {'a': [1, *rest]} if rest:\n        pass\ntype X[T] = list[T]\nasync def f(): return [await y async for y in z]\n",
)
METRICS = (
    b'# HELP stallwatch_steps_total x\n# TYPE stallwatch_steps_total counter\nstallwatch_steps_total{run="a",rank="3"} 1.5e3\n'
    b'# TYPE stallwatch_loss gauge\nstallwatch_loss{run="a\\n\\"b\\\\",rank="0",phase="train"} NaN 1700000000000\n'
    b'stallwatch_step_seconds_bucket{le="+Inf",run="a"} 3\nstallwatch_up 1\nother_metric{a="b",} +Inf\n',
)
DUMP = (
    b'Thread 0x00007f1c9e7fc700 [worker] (most recent call first):\n  File "/a/b.py", line 12 in wait\n'
    b'  File "/a/c.py", line ??? in run\n\nCurrent thread 0x00007f1ca0a6f740 (most recent call first):\n'
    b'  File "/job/train.py", line 3 in <module>\n',
)
URLS = (
    b"slack://TokenA/TokenB/TokenC/#general?footer=no", b"https://hooks.slack.com/services/T0/B0/abcdef0123456789",
    b"mailto://user:pa%40ss@smtp.example.com:587/?to=a@b.c&mode=starttls", b"json://u:p@[::1]:8080/a?x=y&z=%2F",
    b"https://open.feishu.cn/open-apis/bot/v2/hook/abcd-ef?secret=s", b"lark://token", b"dingtalk://secret@token/123",
    b"https://oapi.dingtalk.com/robot/send?access_token=abc&secret=SECdef", b"wecombot://key", b"discord://id/token",
)  # fmt: skip
VALUES = (
    b"true",
    b"10",
    b"1.5",
    b"a,b , c",
    b"slack://a/b,json://c d",
    b"~/x",
    b"$HOME/y",
    b"30",
    b"command sbatch x",
    b"en",
)
STATE = of.as_json({"/a.log": {"device": 1, "inode": 2, "offset": 7, "mark": "c3RlcCAxCg=="}})
NOTEBOOK = of.as_json(
    {"cells": [{"cell_type": "code", "outputs": [
        {"output_type": "stream", "text": ["loss 1\n", "x"]}, {"output_type": "error", "traceback": ["\x1b[31mValueError"]},
        {"output_type": "execute_result", "data": {"text/plain": ["1"]}}]}], "nbformat": 4},
    {"log_history": [{"loss": 1.5, "step": 3, "epoch": 0.1}], "global_step": 3},
)  # fmt: skip
INDEX = of.as_json(
    {"metadata": {"total_size": 16}, "weight_map": {"w": "model-00001-of-00002.safetensors", "b": "../x"}}
)
ISO = (
    b"2026-05-02T09:00:00.123456Z",
    b"2026-05-02 09:00:00+08:00",
    b"20260502T090000Z",
    b"0001-01-01T00:00:00+14:00",
)
JSON_TOKENS = (b'{"', b'":', b"[", b"]", b"},{", b"null", b"1e5", b"\\u0000", b"\\ud800")
LINE_TOKENS = (
    b"[rank3]:", b"[default0]:", b"[Rank 7] ", b"0: ", b"3: ", b"stdout F ", b"stderr P ", b"it/s]", b"100%|", b"Traceback ",
    b"Traceback (most recent call last):\n", b'  File "a.py", line 1, in f\n', b"  | ", b"  +-+---- 1 ----\n", b"loss", b"loss: ",
    b"step", b"step=", b"lr: ", b"epoch ", b"Epoch 1/2", b"{'loss': ", b" iteration ", b"nan", b"INFO ", b"ERROR ", b"\\n", b"\n\n",
    b"ValueError: x\n", b"srun: error: ", b"WARNING:", b"2026-05-02 09:00:00,123 ", b"May  2 09:00:00 ", b"[00:10<01:30, ", b"K/s",
)  # fmt: skip
CODES = tuple(
    item.encode()
    for item in ("\x1b[", "\x1b]8;;http://x\x1b\\", "\x9b", "\x1bP", "\x1b(B", "\u202e", "\u2066", "</pre>")
)
SECRET_TOKENS = (
    b"password=",
    b"token: ",
    b"Bearer ",
    b"://u:p@",
    b"api_key",
    b"sk-",
    b"ghp_",
    b"AKIA",
    b"-----BEGIN ",
    b"eyJ",
)
MARKUP = (
    b"<script>", b"<img src=x onerror=alert(1)>", b"](javascript:x)", b"![", b"$$", b":red[", b"```", b"~~~", b"<!channel>", b"@all",
    b"&lt;", b"http://", b"www.", b"</td>", b"|", b"<at id=all>",
)  # fmt: skip
YAML_TOKENS = (
    b"---\n",
    b"- ",
    b": ",
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
    b"|\n  ",
    b"[",
    b"{",
    b"? ",
    b"<<: ",
    b"## Fix\n",
)
TOML_TOKENS = (
    b"[alerts]\n",
    b"[[alerts.routes]]\n",
    b" = ",
    b'"""',
    b"'''",
    b"0x",
    b"1979-05-27",
    b"[a.b.c]\n",
    b"urls = [",
    b"]\n",
)
PY_TOKENS = (
    b"def f():\n",
    b"lambda: ",
    b"(" * 60,
    b"-" * 99,
    b"f'{",
    b"await ",
    b"    ",
    b"\x0c",
    b"if x:\n",
    b"[x for x in ",
    b"a.b" * 40,
)
