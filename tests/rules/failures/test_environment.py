"""Versions of packages in logs."""

from __future__ import annotations

import pytest

from stallwatch_rules.failures.environment import agreed, belongs_to_a_run, versions_in


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        (
            "[2026-05-02 09:00:00,123] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: "
            "version=0.16.3, git-hash=unknown, git-branch=unknown",
            {"deepspeed": "0.16.3"},
        ),
        ("torch version .................... 2.6.0+cu124", {"torch": "2.6.0+cu124"}),
        ("deepspeed info ................... 0.15.4, unknown, unknown", {"deepspeed": "0.15.4"}),
        ("- PyTorch version (GPU?): 2.6.0+cu124 (True)", {"torch": "2.6.0+cu124"}),
        ("- `transformers` version: 4.46.3", {"transformers": "4.46.3"}),
        ("# versions torch=2.13.0+cpu deepspeed=0.16.3", {"torch": "2.13.0+cpu", "deepspeed": "0.16.3"}),
        ("flash_attn==2.7.4.post1", {"flash-attn": "2.7.4.post1"}),
        ("rank 0 deepspeed 0.16.3 mode branch", {"deepspeed": "0.16.3"}),
        ("NCCL version 2.20.5+cuda12.4", {"nccl": "2.20.5+cuda12.4"}),
        ('  File "/opt/env/lib/python3.11/site-packages/trl/x.py", line 3, in f', {"python": "3.11"}),
        ("Removing /opt/env/lib/site-packages/deepspeed-0.15.3.dist-info", {"deepspeed": "0.15.3"}),
        ("{'loss': 1.25, 'epoch': 0.16}", {}),
        ("DeepSpeed C++/CUDA extension op report", {}),
    ],
)
def test_versions_are_found(text: str, versions: dict[str, str]) -> None:
    assert versions_in(text) == versions


def test_versions_do_not_depend_on_the_order_of_streams() -> None:
    rough, exact = {"python": "3.11"}, {"python": "3.11.7", "torch": "2.6.0"}
    assert agreed([rough, exact]) == agreed([exact, rough]) == {"torch": "2.6.0", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("text", "of_a_run"),
    [
        ("[2026-05-02 09:00:00,123] [INFO] [real_accelerator.py:222] Setting ds_accelerator to cuda", True),
        ("node1:812:900 [0] NCCL INFO Connected all rings", True),
        ("***** Running training *****", True),
        ("trainable params: 4,128,768 || all params: 7,619,745,280 || trainable%: 0.0541", True),
        ("LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1]", True),
        ("Monitored metric val_mae did not improve in the last 7 records. Signaling Trainer to stop.", True),
        ("INFO:transformers.trainer:Saving model checkpoint to runs/tiny/checkpoint-750", True),
        ("[08/24 08:17:46 d2.engine.train_loop]: Starting training from iteration 0", True),
        ("2026-05-02 09:00:00,123 - INFO - Starting training", True),
        ("2026-05-02 09:00:00,123 - INFO - Step 5: Starting fine-tuning process...", True),
        ("Starting training of the sales staff in May", False),
        ("# Before starting training, check the data", False),
        ("export LOCAL_RANK=0 CUDA_VISIBLE_DEVICES=0,1", False),
        ("torch==2.6.0", False),
        ("import torch.distributed as dist", False),
        ("pip install deepspeed", False),
    ],
)
def test_lines_that_only_a_training_prints_are_recognized(text: str, of_a_run: bool) -> None:
    assert belongs_to_a_run(text) is of_a_run
