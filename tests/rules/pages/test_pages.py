"""Promises of all packaged pages: covered classes, no noise, captures, both languages.

That each page's own samples hold is tested in ``test_checking.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from packaged import CATALOGUE

from stallwatch_rules.authoring.checking import check_page
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import RulePage, Tag, parse_page

MATCHER = Matcher(CATALOGUE)
RULES = sorted(CATALOGUE.pages)
# A judged rule's samples are whole runs.
MATCHED = [rule for rule in RULES if not CATALOGUE.pages[rule].judged]

ROLES = {
    "cause": """
        checkpoint-recompute-mismatch config-deepspeed-hf-mismatch cpu-adam-build-failed
        cuda-device-side-assert cuda-illegal-memory-access cuda-oom data-file-missing
        dataloader-shm-bus-error deepspeed-initialize-model-none deepspeed-no-sync-incompatible
        disk-full-checkpoint fp16-loss-scale-at-minimum fp16-overflow-every-step grad-norm-nan
        host-oom-sigkill inference-tensor-saved-for-backward loss-nan nccl-collective-mismatch npu-oom
        port-already-in-use process-segfault rendezvous-connection-failed slurm-time-limit
        too-many-open-files torch-load-weights-only vllm-kv-cache-no-memory zero3-backward-in-eval-mode
        zero3-dummy-loss-invalid-gradient zero3-gather-on-save-disabled zero3-inflight-params
        zero3-ranks-disagree zero3-save-unwrapped-model zero3-trace-cache-invalidated
        zero3-weight-must-be-2d step-time-degraded
    """,
    "symptom": """
        gloo-collective-timeout gloo-connection-closed hccl-collective-timeout nccl-collective-timeout
        nccl-remote-process-exited nccl-unhandled-system-error process-sigabrt secondary-sigterm-cascade
        silent-hang-no-error
    """,
    "wrapper": """
        deepspeed-launcher-exit-code torchrun-child-failed
    """,
    "notice": """
        keyboard-interrupt zero3-weights-not-gathered-notice
    """,
}

# Look-alikes that a healthy or deliberately ended run prints: none of them may count as harm.
NOISE = """
[2026-01-07 09:00:00,754] [WARNING] [runner.py:201:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.
 [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
async_io ............... [NO] ....... [NO]
cpu_adam ............... [NO] ....... [OKAY]
node1:771:912 [0] NCCL INFO comm 0x55d0 rank 0 nranks 8 cudaDev 0 busId 7000 - Init COMPLETE
node1:771:912 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA
node1:771:912 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
node1:771:912 [0] NCCL INFO [Service thread] Connection closed by localRank 2
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
UserWarning: This DataLoader will create 16 worker processes in total, which might get DataLoader running slow or even freeze.
UserWarning: The AccumulateGrad node's stream does not match the stream of the node that produced the incoming gradient. This may incur unnecessary synchronization.
Warning: The HCCL execution timeout was set to 0(never timeout), so it is bigger than watchdog timeout 1800000ms which is set by init_process_group!
wandb: Network error (ReadTimeout), entering retry loop.
huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...
[rank0]:[W318 06:12:40.200118734 ProcessGroupNCCL.cpp:1374] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
[W reducer.cpp:1389] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.
UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True or use_reentrant=False explicitly.
UserWarning: None of the inputs have requires_grad=True. Gradients will be None
`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.
Warning: The cache directory for DeepSpeed Triton autotune appears to be on an NFS system. While this is generally acceptable, if you experience slowdowns or hanging when DeepSpeed exits, it is recommended to set the TRITON_CACHE_DIR environment variable
ninja: no work to do.
[2026-01-07 09:00:01,202] [INFO] [utils.py:782:see_memory_usage] MA 71.9 GB         Max_MA 78.2 GB         CA 79.0 GB         Max_CA 79 GB
[2026-01-07 09:00:01,203] [INFO] [launch.py:351:main] Process 4171 exits successfully.
[2026-01-07 09:00:01,203] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4171
 iteration 4120/90000 | lm loss: 2.613070E+00 | loss scale: 65536.0 | grad norm: 0.000 | number of skipped iterations: 0 | number of nan iterations: 0 |
{"current_steps": 10, "total_steps": 438, "loss": 0.42, "eval_loss": null, "reward": null, "percentage": 2.28}
{'loss': 0.0, 'grad_norm': 0.41, 'learning_rate': 1e-06, 'rewards/accuracy_reward': 0.0}
  [Error] <think> appears 2 times (expected 1)
(raylet) file_system_monitor.cc:111: /tmp/ray/session is over 95% full, available space: 153 GB; capacity: 3500 GB.
Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.
E0000 00:00:1743500000.123456 771 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered
[W socket.cpp:601] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection refused).
KeyboardInterrupt
[WARNING|trainer.py:3719] 2026-03-02 10:11:12,131 >>  stage3_gather_16bit_weights_on_model_save=false. Saving the full checkpoint instead, use zero_to_fp32.py to recover weights
If you see CUDA out of memory, lower the batch size; an illegal memory access means a faulty kernel.
"""  # noqa: E501

# Source code of the libraries, as tracebacks and logs that begin with the program's text show it.
SOURCE = """
    assert sub_module.training, "backward pass is invalid for module in evaluation mode"
    assert model is not None, "deepspeed.initialize requires a model"
            raise RuntimeError(f"still have inflight params "
        raise RuntimeError(f"Detected a disagreement on list contents between rank0 and rank{dist.get_rank()}: "
                    f"Invalidate trace cache @ step {self.__step_id}: "
        f"no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage {self.zero_optimization_stage()}"
            logger.error(f"{cmd} exits with return code = {last_return_code}")
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
    raise ChildFailedError(
    except RendezvousTimeoutError:
    except KeyboardInterrupt:
    if math.isnan(loss): raise ValueError("loss is not finite")
          "CUDA out of memory. Tried to allocate ",
                        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
"""  # noqa: E501


def fired(line: str) -> set[str]:
    return {rule for _, rule, _ in MATCHER.match_text(line)}


@pytest.mark.parametrize(
    ("role", "rule"), [(role, rule) for role, rules in ROLES.items() for rule in rules.split()]
)
def test_failure_class_has_a_page_with_its_role(role: str, rule: str) -> None:
    assert CATALOGUE.pages[rule].role == role


@pytest.mark.parametrize("line", NOISE.strip().splitlines())
def test_lines_of_healthy_runs_fire_no_harmful_rule(line: str) -> None:
    harmful = {rule for rule in fired(line) if CATALOGUE.pages[rule].role != "notice"}
    assert harmful == set()


@pytest.mark.parametrize("line", SOURCE.strip("\n").splitlines())
def test_source_code_fires_no_rule(line: str) -> None:
    assert fired(line) == set()


@pytest.mark.parametrize(
    ("rule", "line", "captures"),
    [
        (
            "cuda-oom",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total "
            "capacity of 79.11 GiB of which 1.12 GiB is free.",
            {"tried": "2.00 GiB", "gpu": "5", "total": "79.11 GiB", "free": "1.12 GiB"},
        ),
        (
            "cuda-oom",
            "RuntimeError: CUDA out of memory. Tried to allocate 98.00 MiB (GPU 0; 10.76 GiB total capacity; "
            "9.51 GiB already allocated; 25.56 MiB free; 9.80 GiB reserved in total by PyTorch)",
            {
                "tried": "98.00 MiB",
                "gpu": "0",
                "total": "10.76 GiB",
                "allocated": "9.51 GiB",
                "free": "25.56 MiB",
            },
        ),
        (
            "zero3-trace-cache-invalidated",
            "Invalidate trace cache @ step 10: expected module 19, but got module 11",
            {"trace_step": "10", "expected": "19", "got": "11"},
        ),
        (
            "zero3-trace-cache-invalidated",
            "Invalidate trace cache @ step 0 and module 68: cache has only 0 modules",
            {"trace_step": "0", "module": "68", "cached": "0"},
        ),
        (
            "zero3-dummy-loss-invalid-gradient",
            "RuntimeError: Function SumBackward0 returned an invalid gradient at index 0 - got [0] but "
            "expected shape compatible with [12480]",
            {"function": "SumBackward0", "index": "0", "expected": "12480"},
        ),
        (
            "nccl-collective-timeout",
            "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81244, "
            "OpType=_ALLGATHER_BASE, NumelIn=2097152, NumelOut=16777216, Timeout(ms)=600000) ran for 600032 "
            "milliseconds before timing out.",
            {"seqnum": "81244", "optype": "_ALLGATHER_BASE", "timeout_ms": "600000", "ran_ms": "600032"},
        ),
        (
            "gloo-collective-timeout",
            "RuntimeError: [unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete",
            {"timeout_ms": "15000", "operation": "send"},
        ),
        (
            "gloo-collective-timeout",
            "[Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 8000 ms",
            {"missing_ranks": "2, 5", "timeout_ms": "8000"},
        ),
        (
            "nccl-collective-mismatch",
            "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 520 vs 128. Received data size "
            "doesn't match expected size. Is there a distributed collective mismatch in your code?",
            {"received": "520", "expected": "128"},
        ),
        (
            "port-already-in-use",
            "The server socket has failed to listen on any local network address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            {"port": "29500"},
        ),
    ],
)
def test_important_values_are_captured(rule: str, line: str, captures: dict[str, str]) -> None:
    assert [found for _, name, found in MATCHER.match_text(line) if name == rule] == [captures]


# One text, two rules: the launcher's line also shows the signal.
BOTH = {"deepspeed-launcher-exit-code", "torchrun-child-failed"}


@pytest.mark.parametrize("rule", MATCHED)
def test_samples_of_a_page_fire_only_its_rule(rule: str) -> None:
    page = CATALOGUE.pages[rule]
    for sample in page.fires:
        others = fired(sample) - {rule} - set(page.explains)
        if rule in BOTH:
            others -= {"host-oom-sigkill", "process-segfault", "process-sigabrt"}
        assert others - BOTH == set(), sample


@pytest.mark.parametrize("rule", RULES)
def test_pages_have_all_texts(rule: str) -> None:
    page = CATALOGUE.pages[rule]
    assert page.sections.harmless
    assert page.references
    assert all(reference.startswith("https://") for reference in page.references)
    assert page.judged or page.emitted_by
    for text in (page.title_zh, page.sections.zh_what, page.sections.zh_why, *page.sections.zh_fixes):
        assert re.search(r"[\u4e00-\u9fff]", text), text
    for fix in (*page.sections.fixes, *page.sections.zh_fixes):
        assert not re.search(r".\{[a-z][\w-]*[<>=!]", fix), f"a version condition stands in the middle: {fix}"


def test_explanations_are_acyclic() -> None:
    done: set[str] = set()

    def visit(page: RulePage, above: tuple[str, ...]) -> None:
        assert page.id not in above, " -> ".join((*above, page.id))
        if page.id not in done:
            for consequence in page.explains:
                visit(CATALOGUE.pages[consequence], (*above, page.id))
            done.add(page.id)

    for rule in RULES:
        visit(CATALOGUE.pages[rule], ())


def test_documented_example_page_is_valid() -> None:
    text = (Path(__file__).parents[3] / "docs/rules.md").read_text(encoding="utf-8")
    example = re.search(r"^````markdown\n(.*?)\n````$", text, re.DOTALL | re.MULTILINE)
    assert example
    page = parse_page(example[1], "collectives/nccl-duplicate-gpu.md")
    assert check_page(page) == []
    assert page.id not in CATALOGUE.pages or page.patterns == CATALOGUE.pages[page.id].patterns


def test_every_family_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/rules.md").read_text(encoding="utf-8")
    assert {page.family for page in CATALOGUE.pages.values()} <= set(re.findall(r"`([a-z0-9-]+)`", text))


def test_every_tag_is_documented_and_used(root: Path) -> None:
    tags = set(get_args(Tag))
    text = (root / "docs/rules.md").read_text(encoding="utf-8")
    table = text.partition("\n## Tags\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == tags
    assert {tag for page in load_catalogue().pages.values() for tag in page.tags} == tags
