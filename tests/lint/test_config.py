"""Configurations that cannot work, and similar ones that do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from stallwatch_lint.batch import ranks_wanted
from stallwatch_lint.check_run import check_run
from stallwatch_lint.config_keys import KNOWN
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_lint.facts import facts
from stallwatch_lint.parse import parse_accelerate, parse_json
from stallwatch_lint.script import Script, parse_script
from stallwatch_rules.locale import render, templates
from stallwatch_rules.pages.catalogue import Catalogue

ZERO3 = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}


def checked(
    values: dict[str, Any], deepspeed: str | None = None, world_size: int | None = None
) -> list[Diagnostic]:
    config = parse_json(json.dumps(values, indent=1), "ds.json").config
    assert config is not None
    return check_run(config, versions={"deepspeed": deepspeed} if deepspeed else {}, world_size=world_size)


def severities_and_checks(diagnostics: list[Diagnostic]) -> list[tuple[str, str]]:
    return [(diagnostic.severity, diagnostic.check) for diagnostic in diagnostics]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ("fails", "fp16-and-bf16")),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, None),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, None),
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1},
            ("fails", "batch-size"),
        ),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
            None,
        ),
        ({"train_micro_batch_size_per_gpu": 0}, ("fails", "batch-size")),
        ({"zero_optimization": {"stage": 4}}, ("fails", "zero-stage-unknown")),
        ({"gradient_cliping": 1.0}, ("likely", "config-key-ignored")),
        ({"wall_clock_brakdown": True}, ("likely", "config-key-ignored")),
        ({"train_micro_batch_size": 4}, ("likely", "config-key-ignored")),
        ({"overlap_comm": True}, ("likely", "config-key-ignored")),  # outside of zero_optimization
        ({"_optimizer": {}, "scheduler_old": {}, "//": "", "seed": 1, "model_name": "x"}, None),
        ({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, ("fails", "zero-legacy-stage1")),
        (
            {"zero_optimization": {**ZERO3, "offload_optimizer": {"device": "nvme"}}},
            ("fails", "nvme-without-path"),
        ),
        ({"zero_optimization": {**ZERO3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}}}, None),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            ("advice", "offload-param-ignored"),
        ),
        ({"zero_optimization": {"stage": 2}, "prescale_gradients": True}, ("fails", "zero-gradient-scaling")),
        ({"zero_optimization": {"stage": 2, "reduce_scatter": False}, "prescale_gradients": True}, None),
        ({"zero_optimization": {"stage": 1}, "prescale_gradients": True}, None),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": None}}, None),
        ({"zero_optimization": {"stage": 3}}, ("advice", "gather-on-save")),
        ({"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}}, None),
        (
            {"zero_optimization": {**ZERO3, "stage3_prefetch_bucket_size": 15099494.4}},
            ("likely", "config-fraction"),
        ),
        ({"zero_optimization": {**ZERO3, "stage3_prefetch_bucket_size": 5e7}}, None),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, ("fails", "config-key-unknown")),
        (
            {"zero_optimization": {"stage": 2, "log_trace_cache_warnings": True}},
            ("advice", "config-key-version"),
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}},
            ("likely", "optimizer-max-grad-norm"),
        ),
        (
            {"optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 1}},
            ("likely", "optimizer-untested"),
        ),
        ({"optimizer": {"type": "Lamb"}}, None),
        (
            {"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}},
            ("likely", "one-bit-with-zero"),
        ),
        ({"scheduler": {"type": "WarmUpLR"}}, ("likely", "scheduler-unknown")),
        ({"scheduler": {"type": "NoSuchSched"}}, ("likely", "scheduler-unknown")),
        ({"scheduler": {"type": "CosineAnnealingLR"}}, None),
        ({"optimizer": {"type": "sgd"}}, ("likely", "optimizer-unknown")),
        ({"optimizer": {"type": "SGD"}}, None),
        ({"optimizer": {"type": "ADAMW"}, "zero_optimization": {"stage": 1}}, None),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}}, ("likely", "parameter-in-quotes")),
        (
            {"optimizer": {"type": "SGD", "params": {"lr": "auto", "momentum": "0.9"}}},
            ("likely", "parameter-in-quotes"),
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "torch_adam": True}}},
            None,
        ),
        ({"optimizer": {"type": "Adam", "params": {"weight_decey": 0.1}}}, ("likely", "parameter-unknown")),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 10}}},
            ("likely", "parameter-unknown"),
        ),
        (
            {
                "scheduler": {
                    "type": "WarmupDecayLR",
                    "params": {"total_num_steps": "auto", "warmup_type": "log"},
                }
            },
            None,
        ),
        ({"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 10}}}, None),
        ({"amp": {"enabled": True}, "zero_optimization": True}, ("fails", "amp-with-zero")),
        ({"some_tool_of_mine": 1}, None),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}}, ("fails", "config-value-kind")),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "500000000"}}, None),
        ({"zero_optimization": {"stage": "two"}}, ("fails", "config-value-kind")),
        ({"zero_optimization": {"stage": "4"}}, ("fails", "zero-stage-unknown")),
        ({"zero_optimization": {"stage": "3"}}, ("advice", "gather-on-save")),
        (
            {"zero_optimization": {**ZERO3, "stage": "3", "offload_param": {"device": "nvme"}}},
            ("fails", "nvme-without-path"),
        ),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}, ("fails", "config-value-kind")),
        ({"zero_optimization": {"stage": 2, "overlap_comm": None, "reduce_scatter": "auto"}}, None),
        ({"bf16": {"enabled": "maybe"}}, ("likely", "config-value-kind")),
        ({"gradient_accumulation_steps": "2"}, ("fails", "config-value-kind")),
        ({"gradient_clipping": "auto", "steps_per_print": 5e2}, None),
    ],
)
def test_configuration_problem_is_found(values: dict[str, Any], expected: tuple[str, str] | None) -> None:
    assert severities_and_checks(checked(values)) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("text", "stage", "checks"),
    [
        ("from transformers import Trainer\nTrainer(model).train()", "3", ["stage-in-quotes"]),
        ("from transformers import Trainer\nTrainer(model).train()", 3, []),
        ("from transformers import Trainer\nTrainer(model).train()", "2", []),
        ("import transformers, deepspeed\ndeepspeed.initialize(model=model, config=c)", "3", []),
    ],
)
def test_quoted_stage_is_reported_for_a_trainer(text: str, stage: object, checks: list[str]) -> None:
    script = parse_script(text, "train.py")
    assert isinstance(script, Script)
    config = parse_json(
        json.dumps({"zero_optimization": {**ZERO3, "stage": stage}}, indent=1), "ds.json"
    ).config
    found = [item for item in check_run(config, [script]) if item.file == "ds.json"]
    assert [item.check for item in found] == checks
    assert [item.line for item in found] == [3] * len(checks)


@pytest.mark.parametrize(
    ("section", "name", "fix"),
    [
        ("optimizer", "AdamWW", 'Did you mean "AdamW"?'),
        ("optimizer", "Lam", 'Did you mean "Lamb"?'),
        ("optimizer", "Shampoo", 'Use "AdamW" or another class of torch.optim'),
        ("scheduler", "warmuplr", "Use WarmupLR."),
        ("scheduler", "CosineAnealingLR", "Use CosineAnnealingLR."),
        ("scheduler", "Cosine", "Use one of LRRangeTest, OneCycle"),
    ],
)
def test_unknown_optimizer_or_scheduler_is_reported(section: str, name: str, fix: str) -> None:
    (diagnostic,) = checked({section: {"type": name}, "zero_optimization": {"stage": 1}})
    assert diagnostic.check == f"{section}-unknown"
    assert all(name in render(diagnostic.what, language) for language in ("en", "zh"))
    assert render(diagnostic.fix).startswith(fix)


def test_known_classes_exist_in_torch() -> None:
    optim = pytest.importorskip("torch.optim", reason="torch is not installed")
    for section, known in (("optimizer", optim), ("scheduler", optim.lr_scheduler)):
        names = [
            name for name in known.__all__ if isinstance(getattr(known, name), type) and name != "Optimizer"
        ]
        assert "AdamW" in names or "StepLR" in names
        assert [name for name in names if checked({section: {"type": name}})] == []


@pytest.mark.parametrize(
    ("deepspeed", "section", "key", "refused"),
    [
        ("0.16.3", "zero_optimization", "log_trace_cache_warnings", True),
        ("0.16.4", "zero_optimization", "log_trace_cache_warnings", False),
        ("0.19.6", "zero_optimization", "mics_shard_size", False),
        ("0.19.7", "zero_optimization", "mics_shard_size", True),
        ("0.17.0", "fp16", "opt_level", False),
        ("0.17.1", "fp16", "opt_level", True),
    ],
)
def test_keys_are_checked_against_the_deepspeed_version(
    deepspeed: str, section: str, key: str, refused: bool
) -> None:
    diagnostics = checked({section: {key: 1}}, deepspeed)
    assert [diagnostic.severity for diagnostic in diagnostics] == ["fails"] * refused
    assert all(diagnostic.line == 3 for diagnostic in diagnostics)


def test_unknown_key_is_only_likely_wrong_for_a_newer_deepspeed() -> None:
    assert severities_and_checks(checked({"zero_optimization": {"brand_new": 1}}, "99.0")) == [
        ("likely", "config-key-unknown")
    ]


def test_removed_top_level_key_is_reported() -> None:
    values = {"elasticity": {"enabled": False}}
    assert severities_and_checks(checked(values, "0.19.8")) == [("fails", "config-key-removed")]
    assert checked(values, "0.19.7") == []


def test_batch_sizes_must_match_the_number_of_ranks() -> None:
    values = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert checked(values, world_size=8) == []
    (diagnostic,) = checked(values, world_size=4)
    assert (diagnostic.severity, diagnostic.line, "32" in render(diagnostic.fix)) == ("fails", 2, True)
    config = parse_json(json.dumps(values), "ds.json").config
    assert config is not None and ranks_wanted(config) == 8
    assert severities_and_checks(checked({"train_batch_size": 10}, world_size=4)) == [("fails", "batch-size")]
    assert checked({**values, "tensor_parallel": {"autotp_size": 2}}, world_size=4) == []


def test_invalid_json_is_reported_with_its_line() -> None:
    parsed = parse_json('{\n "a": 1,\n "b" 2 ] }', "ds.json")
    assert parsed.config is None
    assert [
        (diagnostic.check, diagnostic.severity, diagnostic.line) for diagnostic in parsed.diagnostics
    ] == [("config-unreadable", "fails", 3)]


@pytest.mark.parametrize(("value", "severity"), [("2", "advice"), ('"auto"', "fails")])
def test_comments_are_accepted_only_by_deepspeed_itself(value: str, severity: str) -> None:
    text = f'{{\n  // how many\n  "train_micro_batch_size_per_gpu": {value},\n}}'
    parsed = parse_json(text, "ds.json")
    assert parsed.config is not None
    assert severities_and_checks(parsed.diagnostics) == [(severity, "config-not-json")]


def test_duplicate_key_is_reported() -> None:
    parsed = parse_json(
        '{\n"zero_optimization": {"stage": 2},\n"zero_optimization": {"stage": 3}\n}', "ds.json"
    )
    assert [
        (diagnostic.check, diagnostic.severity, diagnostic.line) for diagnostic in parsed.diagnostics
    ] == [("config-key-twice", "fails", 3)]


def test_line_numbers_are_right_in_a_file_with_tabs() -> None:
    config = parse_json('{\n\t"zero_optimization": {\n\t\t"stage": 3\n\t}\n}', "ds.json").config
    assert config is not None and config.at("zero_optimization", "stage")[1] == 3


def test_accelerate_configuration_is_read() -> None:
    text = "num_processes: 8\nmixed_precision: bf16\n"
    text += "deepspeed_config:\n  zero_stage: 3\n  zero3_save_16bit_model: false\n"
    config = parse_accelerate(text, "accelerate.yaml").config
    assert config is not None
    assert (config.stage, config.world_size, config.on("bf16", "enabled")) == (3, 8, True)
    (diagnostic,) = check_run(config)
    assert (diagnostic.check, diagnostic.line) == ("gather-on-save", 5)
    assert parse_accelerate("distributed_type: FSDP\n", "fsdp.yaml") == (None, [], None)
    assert parse_accelerate("deepspeed_config: {a: [}\n", "bad.yaml").diagnostics[0].line == 1


@pytest.mark.repro
def test_table_of_keys_matches_the_installed_release() -> None:
    deepspeed = pytest.importorskip("deepspeed")
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    installed = Version(deepspeed.__version__)
    for path, model in (
        ("zero_optimization", DeepSpeedZeroConfig),
        ("zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig),
        ("zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig),
        ("fp16", DeepSpeedFP16Config),
        ("bf16", DeepSpeedBF16Config),
    ):
        fields = set(model.model_fields) | {
            model_field.alias for model_field in model.model_fields.values() if model_field.alias
        }
        known = {name for name, key in KNOWN.sections[path].keys.items() if key.within(installed)}
        assert fields == known


@given(
    st.dictionaries(
        st.sampled_from(
            ["zero_optimization", "fp16", "optimizer", "scheduler", "train_batch_size", "elasticity", "amp"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["auto", "nvme", ""]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(
                        ["stage", "offload_optimizer", "device", "type", "params", "enabled", "ratio"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=6,
        ),
    )
)
@settings(max_examples=150, deadline=None)
def test_any_configuration_can_be_checked(values: dict[str, Any]) -> None:
    for deepspeed in (None, "0.14.5", "0.19.8"):
        for diagnostic in checked(values, deepspeed, world_size=3):
            assert render(diagnostic.what) and render(diagnostic.what, "zh")


def test_every_check_has_a_page_and_texts(catalogue: Catalogue) -> None:
    kinds = facts("checks", dict[str, dict[str, str]])
    assert {kind["rule"] for kind in kinds.values() if "rule" in kind} <= set(catalogue.pages)
    for part in ("what", "why"):
        assert [kind for kind in kinds if f"{kind}-{part}" not in templates("en", "lint")] == []
