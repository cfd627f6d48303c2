"""All checks of one run, put together: configuration, scripts and versions in, diagnostics out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stallwatch_lint.assertions import check_assertions
from stallwatch_lint.batch import check_batch
from stallwatch_lint.class_keywords import check_class_keywords, check_compute_loss, check_trainer_keywords
from stallwatch_lint.config_keys import check_keys, check_quoted_stage, check_top_keys, check_values
from stallwatch_lint.diagnostic import Diagnostic, ordered
from stallwatch_lint.dsconfig import AUTO, DsConfig, number
from stallwatch_lint.dummy_loss import check_dummy_loss
from stallwatch_lint.models import (
    check_eval_mode,
    check_experts,
    check_initialize,
    check_loading,
    check_trl,
)
from stallwatch_lint.optimizers import check_optimizer, check_parameters
from stallwatch_lint.rank_guard import check_rank_guard
from stallwatch_lint.saving import check_bare_saving, check_saving, check_unwrapped
from stallwatch_lint.script import Script
from stallwatch_lint.signatures import Signatures
from stallwatch_lint.trainer_arguments import (
    check_best_model,
    check_eval_dataset,
    check_generations,
    check_strategies,
    check_training_arguments,
)
from stallwatch_lint.versions import check_versions, version_of


def check_run(
    config: DsConfig | None,
    scripts: Sequence[Script] = (),
    versions: Mapping[str, str] | None = None,
    *,
    world_size: int | None = None,
    versions_source: str | None = None,
    signatures: Signatures | None = None,
) -> list[Diagnostic]:
    """What can be said of a run before it starts, the gravest first.

    Args:
        config: the DeepSpeed configuration, if there is one.
        scripts: the training script and what belongs to it.
        versions: of what is installed, by canonical package name; empty where that is not known.
        world_size: the number of data-parallel ranks; by default what the configuration says.
        versions_source: the file that the versions come from.
        signatures: of the classes of what is installed, where its source can be read.
    """
    versions = versions or {}
    diagnostics: list[Diagnostic] = []
    if config is not None:
        diagnostics += _of_config(config, scripts, versions, world_size or config.world_size)
    for script in scripts:
        diagnostics += _of_script(
            script, config.as_meant if config is not None else None, versions, signatures
        )
        ranks = world_size or (config.world_size if config is not None else None)
        diagnostics += check_generations(script, versions, ranks)
    used = frozenset().union(*(script.names for script in scripts))
    zero = config.section("zero_optimization") if config is not None else {}
    diagnostics += check_versions(
        versions,
        stage=config.stage if config is not None else None,
        used=used,
        auto_keys=[key for key, value in zero.items() if value == AUTO],
        source=versions_source,
    )
    return ordered(diagnostics)


def _of_config(
    config: DsConfig, scripts: Sequence[Script], versions: Mapping[str, str], world_size: int | None
) -> Iterator[Diagnostic]:
    deepspeed = version_of(versions, "deepspeed")
    yield from check_keys(config, deepspeed)
    yield from check_top_keys(config)
    yield from check_values(config, deepspeed)
    yield from check_quoted_stage(config, scripts)
    yield from check_batch(config, world_size)
    yield from check_assertions(config, deepspeed)
    yield from check_optimizer(config)
    yield from check_parameters(config)
    yield from check_saving(config, scripts)
    yield from check_experts(config, scripts, deepspeed)


def _of_script(
    script: Script, config: DsConfig | None, versions: Mapping[str, str], signatures: Signatures | None
) -> Iterator[Diagnostic]:
    stage = config.stage if config is not None else None
    yield from check_initialize(script, config)
    yield from check_eval_mode(script, stage, version_of(versions, "deepspeed"))
    yield from check_trl(script, config, versions)
    yield from check_best_model(script, config)
    yield from check_training_arguments(script, config)
    yield from check_strategies(script)
    yield from check_eval_dataset(script)
    yield from check_trainer_keywords(script, versions, signatures)
    yield from check_class_keywords(script, signatures, versions)
    yield from check_compute_loss(script, versions)
    yield from check_rank_guard(script, config)
    if config is None:
        return
    yield from check_loading(script, config)
    yield from check_bare_saving(config, script)
    yield from check_unwrapped(config, script)
    if stage == 3:
        threshold = number(config.get("zero_optimization", "stage3_param_persistence_threshold", default=1e5))
        yield from check_dummy_loss(script, 1e5 if threshold is None else threshold)
