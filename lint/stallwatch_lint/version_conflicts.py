"""Combinations of versions that are known not to work, each read in the sources of both sides.

An entry says where its fact was read. Bounds are those of releases that were looked at: a range is no
wider than what was seen to fail.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stallwatch_lint.diagnostic import Severity, Words
from stallwatch_rules.messages import Message


class VersionConflict(msgspec.Struct, frozen=True):
    """Packages in these ranges together fail."""

    ranges: Mapping[str, str]  #: canonical package name → version specifier; all must hold
    severity: Severity
    what: Message
    why: Message
    fix: Message
    source: str  #: package, versions and files in which the fact was read
    rule: str = "package-versions-conflict"
    used: frozenset[str] = frozenset()  #: only for scripts that use one of these names
    stages: frozenset[int] = frozenset()  #: only at these ZeRO stages
    auto_key: str | None = None  #: only where this key of ``zero_optimization`` is ``auto``


_IMPORT = Words("an import fails", "导入失败")
_RESUME = Words("resuming from a checkpoint fails", "从 checkpoint 恢复会失败")

TABLE: tuple[VersionConflict, ...] = (
    VersionConflict(
        {"deepspeed": "<=0.14.3", "torch": ">=2.4"},
        "fails",
        _IMPORT,
        Words(
            "deepspeed imports private names of torch's elastic agent (log, _get_socket_with_port)"
            " that torch 2.4 no longer has.",
            "deepspeed 导入了 torch elastic agent 的私有名称（log、_get_socket_with_port），torch"
            " 2.4 起已没有。",
        ),
        Words('pip install -U "deepspeed>=0.14.4"', 'pip install -U "deepspeed>=0.14.4"'),
        "deepspeed 0.9.0 to 0.14.3 elasticity/elastic_agent.py; torch 2.4"
        " distributed/elastic/agent/server/api.py;"
        " DeepSpeed #5337, #5603",
    ),
    VersionConflict(
        {"deepspeed": "<=0.14.3", "numpy": ">=2"},
        "likely",
        Words("the deepspeed launcher cannot be imported", "deepspeed 启动器无法导入"),
        Words(
            "Its autotuner imports numpy.BUFSIZE, which numpy 2 no longer has.",
            "它的 autotuner 导入 numpy.BUFSIZE，numpy 2 已将其移除。",
        ),
        Words(
            'pip install -U "deepspeed>=0.14.4", or "numpy<2"',
            'pip install -U "deepspeed>=0.14.4"，或 "numpy<2"',
        ),
        "deepspeed 0.9.0 to 0.14.3 autotuning/scheduler.py; numpy 2.4.6",
        rule="numpy-abi-mismatch",
    ),
    VersionConflict(
        {"deepspeed": "<0.11.2", "pydantic": ">=2"},
        "fails",
        _IMPORT,
        Words(
            "These releases are written for pydantic 1 and require it.",
            "这些版本为 pydantic 1 编写，并要求使用它。",
        ),
        Words('pip install "pydantic<2", or -U deepspeed', 'pip install "pydantic<2"，或 -U deepspeed'),
        "deepspeed 0.9.0 to 0.11.1 requirements/requirements.txt, runtime/config_utils.py",
    ),
    VersionConflict(
        {"deepspeed": ">=0.15.0", "pydantic": "<2"},
        "fails",
        _IMPORT,
        Words(
            "Since 0.15.0 deepspeed imports names that only pydantic 2 has.",
            "自 0.15.0 起 deepspeed 导入 pydantic 2 才有的名称。",
        ),
        Words('pip install -U "pydantic>=2"', 'pip install -U "pydantic>=2"'),
        "deepspeed 0.15.0 to 0.19.5 runtime/config_utils.py (ConfigDict), requirements/requirements.txt",
    ),
    VersionConflict(
        {"deepspeed": "<0.16.0", "torch": ">=2.6"},
        "advice",
        _RESUME,
        Words(
            "torch.load reads nothing but tensors by default since 2.6, and DeepSpeed's checkpoints"
            " hold more;"
            " deepspeed asks for the old way only since 0.16.0.",
            "torch.load 自 2.6 起默认只读张量，而 DeepSpeed 的 checkpoint 不止张量；deepspeed 自"
            " 0.16.0 起才要求旧的方式。",
        ),
        Words('pip install -U "deepspeed>=0.16.0"', 'pip install -U "deepspeed>=0.16.0"'),
        "deepspeed 0.15.4 and 0.16.0 runtime/checkpoint_engine/torch_checkpoint_engine.py; torch"
        " 2.6 release notes",
        rule="torch-load-weights-only",
    ),
    VersionConflict(
        {"transformers": ">=4.38.2,<4.47", "torch": ">=2.6"},
        "advice",
        _RESUME,
        Words(
            "The Trainer loads rng_state_*.pth, which holds numpy objects, without allowing them;"
            " torch 2.6 refuses.",
            "Trainer 加载含 numpy 对象的 rng_state_*.pth 时没有放行，torch 2.6 会拒绝。",
        ),
        Words('pip install -U "transformers>=4.47.1"', 'pip install -U "transformers>=4.47.1"'),
        "transformers 4.38.2 to 4.46.3 and 4.47.1 trainer.py (_load_rng_state)",
        rule="torch-load-weights-only",
        used=frozenset({"resume_from_checkpoint", "get_last_checkpoint"}),
    ),
    VersionConflict(
        {"transformers": ">=4.53.3", "torch": "<2.6"},
        "advice",
        _RESUME,
        Words(
            "transformers refuses torch.load with torch before 2.6 (CVE-2025-32434): optimizer"
            " states and .bin weights.",
            "torch 低于 2.6 时 transformers 拒绝 torch.load（CVE-2025-32434）：包括优化器状态和 .bin 权重。",
        ),
        Words('pip install -U "torch>=2.6"', 'pip install -U "torch>=2.6"'),
        "transformers 4.53.3 to 5.0.0 trainer.py (check_torch_load_is_safe)",
        rule="torch-too-old-to-load",
        used=frozenset({"resume_from_checkpoint", "get_last_checkpoint"}),
    ),
    VersionConflict(
        {"deepspeed": ">=0.16.0", "transformers": "==4.46.3"},
        "likely",
        Words("gradient accumulation fails under ZeRO-2 and ZeRO-3", "ZeRO-2 和 ZeRO-3 下梯度累积失败"),
        Words(
            "This Trainer enters the engine's no_sync between accumulation steps, which DeepSpeed"
            " 0.16 asserts against.",
            "这个 Trainer 在累积步之间进入 engine 的 no_sync，DeepSpeed 0.16 对此断言失败。",
        ),
        Words('pip install -U "transformers>=4.47.1"', 'pip install -U "transformers>=4.47.1"'),
        "transformers 4.46.3 and 4.47.1 trainer.py; deepspeed 0.16.0 runtime/engine.py (no_sync)",
        rule="deepspeed-no-sync-incompatible",
        stages=frozenset({2, 3}),
    ),
    VersionConflict(
        {"deepspeed": ">=0.15.0", "transformers": ">=4.38.2,<4.45"},
        "likely",
        Words('"auto" becomes a fraction that DeepSpeed refuses', '"auto" 变成 DeepSpeed 拒绝的小数'),
        Words(
            "transformers fills stage3_prefetch_bucket_size with 0.9 * hidden_size², rounded only"
            " since 4.45; pydantic 2 wants an integer.",
            "transformers 用 0.9 * hidden_size² 填入 stage3_prefetch_bucket_size，4.45 起才取整；"
            "pydantic 2 要求整数。",
        ),
        Words(
            'pip install -U "transformers>=4.45", or write an integer.',
            'pip install -U "transformers>=4.45"，或写一个整数。',
        ),
        "transformers 4.44.2 and 4.45.2 integrations/deepspeed.py; deepspeed 0.15.0 runtime/config_utils.py",
        rule="deepspeed-config-invalid",
        stages=frozenset({3}),
        auto_key="stage3_prefetch_bucket_size",
    ),
    VersionConflict(
        {"trl": ">=0.8.6,<0.16", "deepspeed": ">=0.16.4"},
        "likely",
        Words("generation under ZeRO-3 fails", "ZeRO-3 下生成失败"),
        Words(
            "trl calls DeepSpeedZeRoOffload._register_hooks_recursively, which 0.16.4 renamed.",
            "trl 调用 DeepSpeedZeRoOffload._register_hooks_recursively，0.16.4 已改名。",
        ),
        Words(
            'pip install -U "trl>=0.16", or "deepspeed<0.16.4"',
            'pip install -U "trl>=0.16"，或 "deepspeed<0.16.4"',
        ),
        "trl 0.8.6, 0.9.6, 0.11.4 to 0.16.0 models/utils.py (add_hooks); deepspeed 0.16.3 and 0.16.4"
        " runtime/zero/parameter_offload.py",
        rule="trl-offload-hooks-renamed",
        used=frozenset(
            {
                "GRPOTrainer",
                "OnlineDPOTrainer",
                "PPOTrainer",
                "PPOv2Trainer",
                "RLOOTrainer",
                "unwrap_model_for_generation",
            }
        ),
        stages=frozenset({3}),
    ),
    VersionConflict(
        {"trl": "<=0.7.11", "transformers": ">=4.39.3"},
        "fails",
        _IMPORT,
        Words(
            "trl imports top_k_top_p_filtering from transformers, which no longer has it.",
            "trl 从 transformers 导入 top_k_top_p_filtering，而后者已没有它。",
        ),
        Words('pip install -U "trl>=0.8.1"', 'pip install -U "trl>=0.8.1"'),
        "trl 0.7.11 and 0.8.1 core.py; transformers 4.38.2 and 4.39.3 __init__.py",
    ),
    VersionConflict(
        {"peft": ">=0.16.0,<0.18", "transformers": ">=5.0.0"},
        "fails",
        _IMPORT,
        Words(
            "peft imports HybridCache from transformers, which 5.0 removed.",
            "peft 从 transformers 导入 HybridCache，5.0 已将其移除。",
        ),
        Words('pip install -U "peft>=0.18"', 'pip install -U "peft>=0.18"'),
        "peft 0.16.0, 0.17.1 and 0.18.0 peft_model.py; transformers 5.0.0 __init__.py",
        rule="peft-version-mismatch",
    ),
    VersionConflict(
        {"peft": ">=0.15.2", "accelerate": "<0.34"},
        "fails",
        _IMPORT,
        Words(
            "peft imports clear_device_cache from accelerate, which has it since 0.34.",
            "peft 从 accelerate 导入 clear_device_cache，0.34 起才有。",
        ),
        Words('pip install -U "accelerate>=0.34.2"', 'pip install -U "accelerate>=0.34.2"'),
        "peft 0.15.2 to 0.18.0 utils/loftq_utils.py; accelerate 0.33.0 and 0.34.2 utils/memory.py",
        rule="peft-version-mismatch",
    ),
    VersionConflict(
        {"transformers": ">=5.0.0", "accelerate": "<1.1.0"},
        "likely",
        Words("the Trainer cannot be made", "无法创建 Trainer"),
        Words(
            "TrainingArguments raises an ImportError: the Trainer requires accelerate>=1.1.0.",
            "TrainingArguments 会抛出 ImportError：Trainer 需要 accelerate>=1.1.0。",
        ),
        Words('pip install -U "accelerate>=1.1.0"', 'pip install -U "accelerate>=1.1.0"'),
        "transformers 5.0.0 utils/import_utils.py (ACCELERATE_MIN_VERSION), training_args.py",
    ),
    VersionConflict(
        {"transformers": ">=4.45.0,<5", "accelerate": "<0.26.0"},
        "likely",
        Words("the Trainer cannot be made", "无法创建 Trainer"),
        Words(
            "TrainingArguments raises an ImportError: the Trainer requires accelerate>=0.26.0.",
            "TrainingArguments 会抛出 ImportError：Trainer 需要 accelerate>=0.26.0。",
        ),
        Words('pip install -U "accelerate>=0.26.0"', 'pip install -U "accelerate>=0.26.0"'),
        "transformers 4.45.0 to 4.57.1 utils/import_utils.py (ACCELERATE_MIN_VERSION), training_args.py",
    ),
    VersionConflict(
        {"transformers": ">=4.38.2,<=4.57.1", "huggingface-hub": ">=1.0"},
        "fails",
        _IMPORT,
        Words(
            "transformers 4 checks for huggingface-hub<1.0 when it is imported.",
            "transformers 4 在导入时检查 huggingface-hub<1.0。",
        ),
        Words(
            'pip install "huggingface-hub<1.0", or transformers 5',
            'pip install "huggingface-hub<1.0"，或升级到 transformers 5',
        ),
        "transformers 4.38.2 to 4.57.1 dependency_versions_table.py, dependency_versions_check.py",
    ),
    VersionConflict(
        {"transformers": ">=5.0.0", "huggingface-hub": "<1.3"},
        "fails",
        _IMPORT,
        Words(
            "transformers 5 checks for huggingface-hub>=1.3 when it is imported.",
            "transformers 5 在导入时检查 huggingface-hub>=1.3。",
        ),
        Words('pip install -U "huggingface-hub>=1.3"', 'pip install -U "huggingface-hub>=1.3"'),
        "transformers 5.0.0 dependency_versions_table.py, dependency_versions_check.py",
    ),
    *(
        VersionConflict(
            {"transformers": transformers, "tokenizers": tokenizers},
            "fails",
            _IMPORT,
            Words(
                f"transformers checks for tokenizers{wanted} when it is imported.",
                f"transformers 在导入时检查 tokenizers{wanted}。",
            ),
            Words(f'pip install "tokenizers{wanted}"', f'pip install "tokenizers{wanted}"'),
            "transformers dependency_versions_table.py of both bounds",
        )
        for transformers, wanted, tokenizers in (
            (">=4.38.2,<=4.39.3", ">=0.14,<0.19", ">=0.19"),
            (">=4.40.2,<=4.44.2", ">=0.19,<0.20", ">=0.20"),
            (">=4.40.2,<=4.44.2", ">=0.19,<0.20", "<0.19"),
            (">=4.45.0,<=4.46.3", ">=0.20,<0.21", ">=0.21"),
            (">=4.45.0,<=4.46.3", ">=0.20,<0.21", "<0.20"),
            (">=4.48.0,<=4.54.1", ">=0.21,<0.22", ">=0.22"),
            (">=4.48.0,<=4.54.1", ">=0.21,<0.22", "<0.21"),
        )
    ),
)
