"""Samples for the inputs: recordings, log lines from rule pages, stored files from version 0.1, and forms."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import zstandard

from stallwatch_exporter.probe.layout import (
    COUNTERS,
    COUNTERS_AT,
    DRAFT_AT,
    FIELDS,
    Header,
    pack_header,
    record_struct,
)

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(rb"```log (?:fires|quiet)[^\n]*\n(.*?)```", re.DOTALL)
_RING_RECORDS = 4
_TRACEBACK = b"""Traceback (most recent call last):
  File "/job/train.py", line 12, in <module>
    main()
    ~~~~^^
  File "/job/train.py", line 8, in main
    raise ValueError("x") from error
ValueError: x

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB
"""
_GROUP = b"""  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 3, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +---------------- 2 ----------------
    | KeyError: 'b'
    +------------------------------------
"""
_BARS = (
    b" 10%|#         | 10/100 [00:10<01:30,  1.00s/it, loss=1.5, v_num=0]\r 11%|#1        | 11/100 [00:11<01:29]\r\n",
    "Epoch 3 ━━━━━━╸━━━━━━ 12/100 0:00:12 • 0:01:28 7.90it/s v_num: 0.000 loss: 1.234\n".encode(),
    b"Training: 3it [00:01,  2.1it/s]\rEpoch 1:  50%|5    | 50/100 [00:10<00:10, 4.99it/s, train_loss=0.1]\r",
    b"  1/100 [..............................] - ETA: 0s - loss: 0.5\b\b\b\b\b\b",
    b"\x1b[1m12/12\x1b[0m \x1b[32m----\x1b[0m \x1b[37m\x1b[0m \x1b[1m3s\x1b[0m 12ms/step - loss: 0.52 - accuracy: 0.8\n",
)
_LINES = (
    b"{'loss': 1.5, 'grad_norm': 0.7, 'learning_rate': 1e-05, 'epoch': 0.1, 'step': 10}\n",
    b"[2026-05-02 09:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n",
    b"2026-05-02T09:00:00.123456789Z stdout F [default7]:step 12/900 loss 1.5 grad_norm 0.7 tokens/s 1,234\n",
    b'{"log":"step 3 loss: 1.5\\n","stream":"stdout","time":"2026-05-02T09:00:00.123456789Z"}\n',
    b"MA 12.3 GB         Max_MA 15.6 GB         CA 20.1 GB         Max_CA 20 GB \n",
    b" iteration        1/     100 | consumed samples:   8 | elapsed time per iteration (ms): 1234.5 | lm loss: 1.2E+01 |\n",
    b"[rank3]:[E1122 09:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600009 ms\n",
    b"[Rank 1] Timeout at NCCL work: 5, last enqueued NCCL work: 5, last completed NCCL work: 4.\n",
    b"srun: error: node7: task 3: Exited with exit code 137\nslurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-05-02T09:00:00 ***\n",
    b"(RayTrainWorker pid=123, ip=10.0.0.7) step: 7 loss: 2.5 [repeated 3x across cluster]\n",
    b"Nov 22 09:00:00 node7 kernel: [12345.678901] Out of memory: Killed process 123 (python) total-vm:1kB\n",
    b"W1122 09:00:00.123000 140 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 12 closing signal SIGTERM\n",
    b"-rw-r--r-- 1 user group 123 May  2 09:00 checkpoint-100\n",
    "训练 步数: 12/100 损失: 1.234 学习率 1e-5\n".encode(),
    "\ufeff步 3 loss 1.5\n".encode("utf-16"),
)
SECRETS = (
    b"--password hunter2secret --api-key=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
    b'{"aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "url": "https://user:pa55w0rd@host/x?token=abc"}',
    b"-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\nAAAA\n-----END RSA PRIVATE KEY-----",
    b"Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlc2lnbmF0dXJl slack://TokenA/TokenB/TokenC",
    b"machine example.com login bob password s3cr3t; /home/alice/.cache ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "密码: 正确马电池 Password for bob: x9Kd0-2!".encode(),
)


def text_of(folder: Path, pattern: str, most: int = 10**9) -> list[bytes]:
    """Return the contents of the files in a folder that match the pattern, sorted by filename."""
    return [path.read_bytes()[:most] for path in sorted(folder.glob(pattern)) if path.is_file()]


@functools.cache
def pages() -> list[bytes]:
    """Return every eighth rule page, which is about forty pages from all families."""
    return text_of(ROOT / "rules" / "stallwatch_rules" / "catalogue", "*/*.md")[::8]


@functools.cache
def logs() -> list[bytes]:
    """Return short logs: lines of rule pages, tracebacks, progress bars, launcher output, and recordings."""
    catalogue = ROOT / "rules" / "stallwatch_rules" / "catalogue"
    blocks = [found[1] for page in text_of(catalogue, "*/*.md") for found in _BLOCK.finditer(page)]
    recorded = [log[:6000] for log in text_of(ROOT / "tests" / "recordings", "*/ranks/*.log")]
    recorded += [log[-3000:] for log in text_of(ROOT / "tests" / "recordings", "*/output.log")]
    odd = [
        _TRACEBACK,
        _TRACEBACK * 3,
        _GROUP,
        *_BARS,
        *_LINES,
        b"".join(_LINES[:-1]),
        b"".join(_BARS),
        b"\n".join(SECRETS),
    ]
    return [*blocks, *recorded, *odd]


@functools.cache
def lines() -> list[bytes]:
    """Return one line for each template in the logs from `logs`."""
    found = {
        re.sub(rb"\d+", b"0", line): line
        for log in logs()
        for line in re.split(rb"[\r\n]+", log)
        if line.strip()
    }
    return list(found.values())


def stored(*names: str) -> list[bytes]:
    """Return the stored files that have these names, from runs of version 0.1 and from recordings."""
    found = [body for name in names for body in text_of(ROOT / "tests" / "release_0_1" / "runs", f"*/{name}")]
    return [*found, *(body for name in names for body in text_of(ROOT / "tests" / "recordings", f"*/{name}"))]


def as_json(*values: object) -> list[bytes]:
    """Return each value as JSON."""
    return [json.dumps(value).encode() for value in values]


def ring(records: int = _RING_RECORDS) -> bytes:
    """Return the bytes of a complete ring file that contains a few records."""
    record = record_struct(FIELDS)
    page = bytearray(pack_header(Header(record.size, records, 3, 1, 1, 1.7e9, FIELDS)))
    COUNTERS.pack_into(page, COUNTERS_AT, records + 2, 1, 0, 0)
    written = [record.pack(number, 1.7e9 + number, *range(len(FIELDS))) for number in (5, 6, 3, 4)]
    page[DRAFT_AT : DRAFT_AT + record.size] = record.pack(7, 1.7e9, *[float("nan")] * len(FIELDS))
    return bytes(page) + b"".join(written)


@functools.cache
def packed() -> list[bytes]:
    """Return small compressed files and archives of every kind, and an archive inside an archive."""
    text = _TRACEBACK + b"".join(_LINES[:4])
    flat = [
        gzip.compress(text, mtime=0),
        bz2.compress(text),
        lzma.compress(text),
        zstandard.compress(text),
        text,
    ]
    zipped, tarred = (
        _zip({"a/rank0.log": text, "b.log.gz": flat[0]}),
        _tar({"rank_1.log": text, "x.gz": flat[0]}),
    )
    locked = bytearray(zipped)
    locked[6] |= 1  # set the flag of an encrypted member
    bomb = gzip.compress(b"\0" * 300_000, mtime=0)
    within = _zip({"inner.zip": zipped, "deep.tar": tarred})
    return [
        *flat,
        zipped,
        bytes(locked),
        tarred,
        gzip.compress(tarred, mtime=0),
        zstandard.compress(tarred),
        within,
        bomb,
    ]


def _zip(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name), body, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


def rank_files() -> list[bytes]:
    """Return dumps from the torch flight recorder and a snapshot from ``stallwatch stacks``."""
    dumps = sorted((ROOT / "tests/logs/flight_recorder").iterdir())
    snapshot = (
        b'{"time":1.8e9,"seconds":0.1,"groups":[{"ranks":[0,1],"kind":"collective","what":"all_reduce"}],'
        b'"layout":[{"id":"0:0-3","ranks":"0-3","name":"0","axis":"world"}],"hosts":{"n1":"0-1"},"elsewhere":2}'
    )
    return [*(dump.read_bytes() for dump in dumps), snapshot]


def checkpoints() -> list[bytes]:
    """Return tensor files: safetensors, and the format of ``torch.save`` with a handwritten pickle."""
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"a": "b"}}
    ).encode()
    pickle = (
        b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03"
        b"ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x04tq\x07QK\x00K\x02K\x02\x86q\x08"
        b"K\x02K\x01\x86q\t\x89ccollections\nOrderedDict\nq\n)Rq\x0btq\x0cRq\rs."
    )
    evil = b"cos\nsystem\n(S'touch /tmp/unpickled'\ntR."
    torch = [
        _zip({"m/data.pkl": body, "m/data/0": b"\0" * 16, "m/version": b"3\n"}) for body in (pickle, evil)
    ]
    return [struct.pack("<Q", len(header)) + header + b"\0" * 16, *torch, evil, pickle]


def joined(parts: Iterable[bytes], between: bytes = b"\n") -> bytes:
    """Join all parts and return the result as a single input."""
    return between.join(parts)
