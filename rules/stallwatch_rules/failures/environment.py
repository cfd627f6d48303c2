"""Find the package versions that a log contains. The versions determine which fixes apply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stallwatch_rules.text.lazy import lazy

PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "datasets",
    "vllm",
    "flash-attn",
    "bitsandbytes",
    "ms-swift",
    "lightning",
    "pytorch-lightning",
    "megatron-core",
    "ray",
    "triton",
    "torch-npu",
    "numpy",
    "nccl",
    "cuda",
    "python",
)
_CANONICAL = {name.replace("-", ""): name for name in PACKAGES} | {"pytorch": "torch"}
_VERSION = r"(?P<version>\d+\.\d+(?:\.\d+)*(?:[._-]?(?:rc|a|b|dev|post)\.?\d+)*(?:\+[\w.]+)?)"
_NAMES = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in PACKAGES)

# Each regular expression has the groups ``name`` and ``version``.
_BY_NAME = (
    # Output of pip freeze or of a user's script: "versions torch=2.6.0 deepspeed=0.16.3".
    re.compile(rf"(?:^|[\s,(\[{{'\"])(?P<name>{_NAMES})['\"]?(?:==?|@| ?: ?['\"]?){_VERSION}", re.IGNORECASE),
    # Output of ds_report: "torch version .................... 2.6.0", "deepspeed info ..... 0.16.4,
    # unknown, unknown". Output of transformers-cli env: "- PyTorch version (GPU?): 2.6.0+cu124 (True)".
    # Output of vLLM: "vLLM API server version 0.6.3".
    re.compile(
        rf"\b(?P<name>{_NAMES}|PyTorch)`?(?: API server)? (?:version|info)(?: \([^)]*\))?[ .:=]+v?['\"]?"
        rf"{_VERSION}(?=['\",;)\s]|$)",
        re.IGNORECASE,
    ),
    # "DeepSpeed 0.16.3", "Python 3.11.7". The preceding expression matches "NCCL version 2.20.5+cuda12.4".
    re.compile(
        rf"(?:^|[\s(])(?P<name>DeepSpeed|PyTorch|transformers|vLLM|Python|NCCL) v?{_VERSION}(?=[\s,;)]|$)"
    ),
    # Output of a script, such as "rank 0 deepspeed 0.16.3 extra=5".
    re.compile(rf"(?:^|\s)(?P<name>deepspeed|torch|trl|peft|accelerate) v?{_VERSION}(?=[\s,;)]|$)"),
    # Paths of installed packages, such as site-packages/deepspeed-0.16.3.dist-info.
    re.compile(rf"(?P<name>{_NAMES})-{_VERSION}(?:\.dist-info|-py\d)", re.IGNORECASE),
)
# Text that precedes every version that _BY_NAME matches. One search for this text saves five searches in most
# lines.
_ANY_VERSION = lazy(r"[\s=@:'\"v.-]\d+\.\d")
# Each entry consists of a package, a word that the line must contain, and a pattern.
_BY_KEY = (
    ("deepspeed", "DeepSpeed info: ", re.compile(rf"DeepSpeed info: version={_VERSION}")),
    ("deepspeed", "deepspeed/", re.compile(rf"\bdeepspeed/{_VERSION}/")),
    ("cuda", "torch cuda version", re.compile(rf"torch cuda version[ .:]+{_VERSION}")),
    ("cuda", "CUDA used", re.compile(rf"CUDA used to build PyTorch[ .:]+{_VERSION}")),
    ("cuda", "nvcc version", re.compile(rf"nvcc version[ .:]+{_VERSION}")),
    ("python", "python3.", re.compile(r"[/\\](?:lib[/\\])?python(?P<version>3\.\d{1,2})[/\\]")),
)


# Lines from launchers, DeepSpeed, NCCL, and trainers that belong to a training run but do not show a step.
_RUN = lazy(
    r"DeepSpeed info: version=|Setting ds_accelerator to |Initializing TorchBackend|:see_memory_usage\]"
    r"|\[launch(?:er)?\.py:\d+:|\bNCCL (?:INFO|version) |Setting OMP_NUM_THREADS environment variable"
    r"|torch/distributed/(?:run|elastic/\S+)\.py:\d+\]|\*{5} Running training \*{5}"
    r"|Total optimization steps = |trainable params: [\d,]+ \|\||Loading checkpoint shards: +\d+%"
    r"|Loading extension module \w+|^LOCAL_RANK: \d+ - CUDA_VISIBLE_DEVICES: \["
    r"|Saving model checkpoint to \S+[/\\]checkpoint-\d+|\bSignaling Trainer to stop\.$"
    r"|\bStarting training from iteration \d"  # detectron2 0.6, engine/train_loop.py
    # The only message of many scripts. A longer sentence can be advice or concern another subject.
    r"|(?:^|[\]:|>-] )\W{0,4}Starting (?:[A-Z]+ )?(?:training|fine-?tuning)(?: process| loop)?[\s.!…]*$"
)
RUN_WORDS: tuple[str, ...] = (
    "DeepSpeed",
    "ds_accel",
    "TorchBackend",
    "see_memory",
    "[launch",
    "NCCL ",
    "OMP_NUM_",
    "elastic/",
    "/run.py",
    "unning training",
    "optimization steps",
    "trainable params",
    "shards:",
    "extension module",
    "LOCAL_RANK: ",
    "odel checkpoint to",
    "Signaling Trainer",
    "Starting ",
)


def belongs_to_a_run(text: str) -> bool:
    """Return whether a line is output of a training run. The line need not contain a step."""
    return _RUN.search(text[:2000]) is not None


def versions_in(text: str) -> dict[str, str]:
    """Return the package versions that a line contains."""
    text = text[:2000]
    found: dict[str, str] = {}
    for key, word, pattern in _BY_KEY:
        hit = pattern.search(text) if word in text else None
        if hit:
            found.setdefault(key, hit["version"])
    if _ANY_VERSION.search(text) is None:
        return found
    for pattern in _BY_NAME:
        for hit in pattern.finditer(text):
            name = hit["name"].lower().replace("_", "").replace("-", "")
            if name in _CANONICAL:
                found.setdefault(_CANONICAL[name], hit["version"])
    return found


def agreed(found: Iterable[dict[str, str]]) -> dict[str, str]:
    """Merge the package versions found in several streams into one set of versions for the run.

    If streams contain different versions of a package, use the most precise version. Among equally precise
    versions, use the version that sorts last, so that the result does not depend on the order of the
    streams.
    """
    merged: dict[str, str] = {}
    for versions in found:
        for name, version in versions.items():
            merged[name] = max(
                version, merged.get(name, ""), key=lambda version: (version.count("."), version)
            )
    return {name: merged[name] for name in PACKAGES if name in merged}
