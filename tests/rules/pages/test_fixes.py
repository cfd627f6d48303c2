"""Fixes that fit the evidence: conditions on the framework, captures, the log, and the end of training."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from smallruns import raised, steps

import stallwatch_rules
from stallwatch_rules.failures.frameworks import FRAMEWORKS, framework_of
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.comparisons import parse_amount
from stallwatch_rules.pages.fixes import Evidence, fixes_for, parse_fix
from stallwatch_rules.pages.page import RulePage, parse_page
from stallwatch_rules.reading import RunReading

FIXES = """\
1. {tried > total} Chunk it.
2. {in verl, vllm} Set an option.
3. {else} Lower it.
4. {finished; in trainer} Upload it.
5. {log ~ ^size mismatch for \\w+} Set num_labels.
6. Always this.
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}."
    " GPU 0 has a total capacity of 14.74 GiB of which 9.12 GiB is free."
)


@pytest.fixture(scope="module")
def page(catalogue: Catalogue) -> RulePage:
    path = Path(stallwatch_rules.__file__).parent / "catalogue/memory/cuda-oom.md"
    text = path.read_text("utf-8")
    for heading, end in (("## Fix", "## When"), ("### 处理", "```log")):
        start = text.index(heading) + len(heading)
        text = text[:start] + "\n\n" + FIXES + "\n" + text[text.index(end, start) :]
    return parse_page(text, "memory/cuda-oom.md")


def shown(page: RulePage, evidence: Evidence | None) -> list[str]:
    return [render(fix) for fix in fixes_for(page, {}, evidence)]


@pytest.mark.parametrize(
    ("evidence", "fixes"),
    [
        (Evidence(), ["Lower it.", "Always this."]),
        (Evidence("vllm"), ["Set an option.", "Always this."]),
        (Evidence("trainer", {}, True), ["Lower it.", "Upload it.", "Always this."]),
        (Evidence("trainer", {}, False), ["Lower it.", "Always this."]),
        (Evidence("", {"tried": "96.00 GiB", "total": "14.74 GiB"}), ["Chunk it.", "Always this."]),
        (Evidence("", {"tried": "96.00 MiB", "total": "14.74 GiB"}), ["Lower it.", "Always this."]),
        (Evidence("", {"tried": "96.00 GiB"}), ["Lower it.", "Always this."]),
        (Evidence("", {}, False, "an error\nsize mismatch for score"),
         ["Lower it.", "Set num_labels.", "Always this."]),
    ],
)  # fmt: skip
def test_only_applicable_fixes_are_shown(page: RulePage, evidence: Evidence, fixes: list[str]) -> None:
    assert shown(page, evidence) == fixes


@pytest.mark.parametrize(
    ("evidence", "first"),
    [
        (Evidence(trained=True), "Look at the host."),
        (Evidence(), "Check the address."),
        (None, "If the run had completed a step before this failure: Look at the host."),
    ],
)
def test_fix_can_depend_on_whether_the_ranks_had_trained(
    page: RulePage, evidence: Evidence | None, first: str
) -> None:
    fixes = ["{trained} Look at the host.", "{not trained} Check the address.", "Always this."]
    sections = msgspec.structs.replace(page.sections, fixes=fixes, zh_fixes=fixes)
    texts = shown(msgspec.structs.replace(page, sections=sections), evidence)
    assert (texts[0], texts[-1], len(texts)) == (first, "Always this.", 3 if evidence is None else 2)


def test_conditions_become_text_without_a_run(page: RulePage) -> None:
    texts = shown(page, None)
    assert texts[:2] == ["Lower it.", "Always this."]
    assert texts[2] == "If tried is more than total: Chunk it."
    assert texts[3] == "With verl, vLLM: Set an option."
    assert texts[4] == "If training had already finished: With Hugging Face Trainer: Upload it."
    assert "size mismatch" in texts[5]
    assert "大于" in render(fixes_for(page, {})[2], "zh")


@pytest.mark.parametrize(
    "braces", ["{in nowhere}", "{log ~ (}", "{tried >}", "{finished, else}", "{finished;}"]
)
def test_unknown_conditions_are_refused(braces: str) -> None:
    with pytest.raises(ValueError, match=r"\{.*\}"):
        parse_fix(f"{braces} text")


def test_patterns_of_conditions_can_contain_repeats() -> None:
    fix = parse_fix(r"{log ~ \b429.{0,20}Many; finished} Wait.")
    assert fix.text == "Wait."
    assert [condition.right for condition in fix.conditions] == [r"\b429.{0,20}Many", ""]


def test_amounts_of_memory_are_parsed() -> None:
    assert parse_amount("2.00 GiB") == 2 * 1024**3 and parse_amount("512 MB") == 512 * 1024**2
    assert parse_amount("1,024") == 1024 and parse_amount("12 bytes") == 12
    assert parse_amount("plenty") is None and parse_amount("") is None


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("step:3 - actor/pg_loss:0.1 - actor/grad_norm:0.2", "verl"),
        ("{'loss': 1.5, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.01}", "trainer"),
        ("iter 100: loss 2.5, time 23.5ms, mfu 3%", "nanogpt"),
        ("INFO vLLM API server version 0.11.0", "vllm"),
        ("python -m verl.trainer.main_ppo data.train_batch_size=8", "verl"),
        ("/opt/lib/site-packages/diffusers/utils/outputs.py:63: FutureWarning: deprecated", ""),
        ("step 3/100 loss 1.5", ""),
    ],
)
def test_framework_is_recognized_by_its_output(text: str, framework: str) -> None:
    assert framework_of(text) == framework
    assert framework in FRAMEWORKS or not framework


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("/opt/venv/lib/python3.11/site-packages/transformers/trainer.py", "trainer"),
        ("C:\\venv\\site-packages\\transformers\\trainer.py", "trainer"),
        ("/workspace/Megatron-LM/megatron/training/training.py", "megatron"),
        ("/app/LLaMA-Factory/src/llamafactory/train/tuner.py", "trainer"),
        ("/srv/verl/verl/workers/fsdp_workers.py", "verl"),
        ("/opt/lib/site-packages/transformers/models/llama/modeling_llama.py", ""),
        ("/home/megatron/core/own_cnn.py", ""),
        ("/home/u/verl/own_cnn.py", ""),
        ("/home/u/swift/my/train.py", ""),
        ("/data/lightning/detect.py", ""),
    ],
)
def test_framework_is_recognized_by_installed_code(path: str, framework: str) -> None:
    assert framework_of("", [path]) == framework


def test_traceback_determines_the_framework() -> None:
    packages = "/opt/lib/site-packages/"
    diffusers, vllm = packages + "diffusers/models/unet.py", packages + "vllm/v1/worker.py"
    trainer = packages + "trl/trainer/grpo_trainer.py"
    assert framework_of("", [packages + "transformers/trainer.py"], [diffusers]) == "trainer"
    assert framework_of("iter 1: loss 2.5", [diffusers]) == "diffusers"
    assert framework_of("iter 1: loss 2.5", [], [diffusers]) == "nanogpt"
    assert framework_of("", [vllm], [trainer]) == "trainer"
    assert framework_of("", [vllm]) == "vllm"


def fixes(catalogue: Catalogue, matcher: Matcher, text: str) -> list[str]:
    reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
    reading.feed([*reader.feed(text.encode()), *reader.finish()])
    primary = reading.diagnose().primary
    assert primary is not None
    return [render(fix) for fix in primary.fixes]


def test_fix_for_out_of_memory_names_the_option_of_the_framework(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    oom = raised(OOM.format(tried="2.00 GiB"))
    by_framework = {
        "per_device_train_batch_size": "".join(
            f"{{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.0{at}}}\n" for at in range(1, 6)
        ),
        "ppo_micro_batch_size_per_gpu": "step:3 - actor/pg_loss:0.1 - actor/grad_norm:0.2\n",
        "block_size": "iter 100: loss 2.5, time 23.5ms, mfu 3%\n",
        "--max-num-seqs": "INFO vLLM API server version 0.11.0\n",
        "the batch size per GPU": steps(1, 5),
    }
    for option, log in by_framework.items():
        text = "\n".join(fixes(catalogue, matcher, log + oom))
        assert option in text
        others = [other for other in by_framework if other != option and other in text]
        assert others == [], option
        assert "offload_optimizer" not in text, "nothing says that it runs with DeepSpeed or FSDP"
    sharded = "INFO DeepSpeed Engine initialized\n" + steps(1, 5)
    assert "offload_optimizer" in "\n".join(fixes(catalogue, matcher, sharded + oom))
    megatron = "\n".join(fixes(catalogue, matcher, " iteration 5/ 100 | consumed samples: 40 |\n" + oom))
    assert megatron.count("ecompute activations") == 1


def test_huge_allocation_is_not_blamed_on_the_batch_size(catalogue: Catalogue, matcher: Matcher) -> None:
    found = fixes(catalogue, matcher, steps(1, 5) + raised(OOM.format(tried="96.00 GiB")))
    assert "square" in found[0] and not any("batch size per GPU" in fix for fix in found)


def test_classifier_size_mismatch_suggests_num_labels(catalogue: Catalogue, matcher: Matcher) -> None:
    error = "RuntimeError: Error(s) in loading state_dict for BertForSequenceClassification:\n"
    mismatch = (
        "\tsize mismatch for {}: copying a param with shape torch.Size([2, 768]) from checkpoint,"
        " the shape in current model is torch.Size([3, 768]).\n"
    )
    assert "num_labels" in fixes(catalogue, matcher, raised(error + mismatch.format("classifier.weight")))[0]
    assert "num_labels" not in fixes(catalogue, matcher, raised(error + mismatch.format("pooler.weight")))[0]


def test_failure_after_training_concerns_only_the_hub(catalogue: Catalogue, matcher: Matcher) -> None:
    error = raised("RuntimeError: Error while uploading 'model.safetensors' to the Hub.") + "on the Hub\n"
    assert "only a later request" in fixes(catalogue, matcher, steps(90, 100, total=100) + error)[0]
    assert "only a later request" not in "".join(fixes(catalogue, matcher, steps(40, 50, total=100) + error))


@pytest.mark.parametrize(
    ("text", "first", "absent"),
    [
        ("Memory access fault by GPU node-1 on address 0x77.", "AMD_SERIALIZE", "nvidia|CUDA_LAUNCH"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "compute-san", "AMD|rocm"),
        ("RuntimeError: No HIP GPUs are available", "/dev/kfd", "nvidia-smi|--gpus all"),
        ("RuntimeError: No CUDA GPUs are available", "nvidia-smi", "kfd"),
        ("RuntimeError: HIP error: unspecified launch failure", "amdgpu", "xid|dcgmi"),
        (OOM.format(tried="2.00 GiB").replace("CUDA", "HIP"), "batch size", "PYTORCH_CUDA_ALLOC|nvidia-smi"),
        (
            "ConnectionError: ('Connection aborted.', RemoteDisconnected('x'))\nvllm_client",
            "server log at the time",
            "^Read the server log first",
        ),
        (
            "ModuleNotFoundError: No module named 'transformers.deepspeed'",
            "transformers.integrations",
            "names both",
        ),
        (
            "ImportError: trl>=0.9 is required for a normal functioning of this module, but found trl 0.7",
            "names both",
            "last frame",
        ),
        (
            "huggingface_hub.errors.HfHubHTTPError: 429 Too Many Requests: see huggingface.co",
            "HF_TOKEN",
            "",
        ),
        ("RuntimeError: Failed to find function HcclCommInitRootInfoConfig", "Upgrade CANN", ""),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "sdpa", ""),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "get_arch_list",
            "",
        ),
        (
            "AssertionError: seq value from checkpoint (32) is not equal to the input argument value (24)",
            "use-checkpoint-args",
            "scheduler",
        ),
        (
            "torch._inductor.exc.TritonMissing: Cannot find a working triton installation.",
            "triton-windows",
            "the message from the compiler",
        ),
        (
            "RuntimeError: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used"
            " 40.50G of 31.25G hbm. Exceeded hbm capacity by 9.25G.",
            "batch size",
            "PYTORCH_CUDA_ALLOC|nvidia-smi",
        ),
        (
            "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel"
            " communication collective. Device: 3, node: gpu7",
            "on other GPUs",
            "log lines that follow",
        ),
    ],
)
def test_fixes_fit_the_message(
    catalogue: Catalogue, matcher: Matcher, text: str, first: str, absent: str
) -> None:
    found = fixes(catalogue, matcher, raised(text) if "Error: " in text else text + "\n")
    assert first in found[0]
    assert not absent or not re.search(absent, "\n".join(found))


GATHER = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=71, OpType=_ALLGATHER_BASE,"
    " NumelIn={size}, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
UNEQUAL = (
    steps(1, 20)
    + "Invalidate trace cache @ step 1: expected module 15, but got module 313\n"
    + GATHER.format(rank=0, size=64)
    + GATHER.format(rank=1, size=128)
)
ACLNN = "[E OpParamMaker.cpp:273] call aclnnCast failed, detail:EZ9999: Inner Error!\n"
NO_BINARY = "EZ9999: 2026-05-17-01:30:26.960.959  Op Cast does not has any binary.\n"
IB_LOST = (
    "n1:94:98 [0] transport/net_ib.cc:83 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0,"
    " vendor err 129\n"
)
ROCE = "n1:94:98 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:10.0.3.17<0>\n"
REFUSED = "n1:90:91 [0] include/socket.h:403 NCCL WARN Connect to {peer}<57335> failed : {reason}\n"
NODE_DEAD = (
    "2026-02-15 16:53:52,096\tWARNING worker.py:1462 -- The node with node id: 8f205b12 and ip: 10.128.0.103"
    " has been marked dead because the detector has missed too many heartbeats from it.\n"
)
WORKER_DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
HIP = "RuntimeError: No HIP GPUs are available"
IN_RAY = "ray.exceptions.RayTaskError(RuntimeError): ray::main_task() (pid=201, ip=10.1.2.3)\n"


@pytest.mark.parametrize(
    ("text", "first", "absent"),
    [
        (UNEQUAL, "Run the same modules on every rank", "Run each expert"),
        ("Loading MixtralForCausalLM\n" + UNEQUAL, "Treat the expert block", "vision tower"),
        ("Loading qwen3-30b-a3b\n" + UNEQUAL, "Treat the expert block", "vision tower"),
        ("session 1c9e4d70-a12b-4f7a\n" + UNEQUAL, "Run the same modules on every", "Run each expert"),
        (ACLNN + NO_BINARY, "Ascend-cann-kernels-", "Read the reason"),
        (ACLNN, "Read the reason", "^Install the operator package"),
        (IB_LOST, "NCCL_IB_GID_INDEX", "ethtool"),
        (ROCE + IB_LOST, "NCCL_IB_GID_INDEX", "ethtool"),
        (steps(1, 20) + IB_LOST, "Find the port", "ethtool|show_gids` lists"),
        (ROCE + steps(1, 20) + IB_LOST, "ethtool", "show_gids` lists"),
        (
            REFUSED.format(peer="fe80::c4eb:49ff:fe04:e32d%6", reason="Network is unreachable"),
            "NCCL_SOCKET_FAMILY=AF_INET",
            "",
        ),
        (REFUSED.format(peer="10.0.0.2", reason="No route to host"), "NCCL WARN", "AF_INET"),
        (NODE_DEAD, "Check the machine", ""),
        (NODE_DEAD + WORKER_DIED, "Check the machine", ""),
        (WORKER_DIED, "Read the output of the dead process", "Check the machine"),
        (raised(HIP) + IN_RAY + HIP + "\n", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1", "nvidia-smi"),
        (raised(HIP), "rocminfo", "RAY_EXPERIMENTAL"),
    ],
)
def test_first_fix_fits_the_rest_of_the_log(
    catalogue: Catalogue, matcher: Matcher, text: str, first: str, absent: str
) -> None:
    found = fixes(catalogue, matcher, text)
    assert first in found[0]
    assert not absent or not re.search(absent, "\n".join(found), re.MULTILINE)


@pytest.mark.parametrize(("trained", "shown_first"), [("", True), (steps(1, 20), False)])
def test_killed_process_can_be_a_compiler_only_before_training(
    catalogue: Catalogue, matcher: Matcher, trained: str, shown_first: bool
) -> None:
    built = "  ERROR: Failed building wheel for flash-attn\n"
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("run.log").feed(f"{built}{trained}exits with return code = -9\n".encode()))
    one = reading.diagnose().primary
    assert one is not None and one.rule == "host-oom-sigkill"
    assert render(one.fixes[0]).startswith("The killed process might be a compiler.") is shown_first
