"""Run all checks on the configuration, scripts, and versions of one run, and return the diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from stallwatch_lint.assertions import check_assertions
from stallwatch_lint.batch import check_batch
from stallwatch_lint.class_keywords import check_compute_loss, check_keywords
from stallwatch_lint.config_keys import check_keys, check_quoted_stage, check_top_keys, check_values
from stallwatch_lint.diagnostic import Diagnostic, ordered
from stallwatch_lint.dsconfig import DsConfig
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
from stallwatch_lint.run import Run
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
from stallwatch_lint.versions import check_versions

_CONFIG_CHECKS: tuple[Callable[[DsConfig, Run], Iterator[Diagnostic]], ...] = (
    check_keys,
    check_top_keys,
    check_values,
    check_quoted_stage,
    check_batch,
    check_assertions,
    check_optimizer,
    check_parameters,
    check_saving,
    check_experts,
)
_SCRIPT_CHECKS: tuple[Callable[[Script, Run], Iterator[Diagnostic]], ...] = (
    check_initialize,
    check_eval_mode,
    check_trl,
    check_best_model,
    check_training_arguments,
    check_strategies,
    check_eval_dataset,
    check_keywords,
    check_compute_loss,
    check_rank_guard,
    check_loading,
    check_bare_saving,
    check_unwrapped,
    check_dummy_loss,
    check_generations,
)


def check_run(
    config: DsConfig | None,
    scripts: Sequence[Script] = (),
    versions: Mapping[str, str] | None = None,
    *,
    world_size: int | None = None,
    versions_source: str | None = None,
    signatures: Signatures | None = None,
) -> list[Diagnostic]:
    """Check a run before it starts, and return the diagnostics in descending order of severity.

    Args:
      config: the DeepSpeed configuration, or ``None`` if the run has none.
      scripts: the training script and the files that belong to it.
      versions: installed versions, by canonical package name, or an empty mapping if they are unknown.
      world_size: the number of data-parallel ranks; by default, the number in the configuration.
      versions_source: the file that contains the versions.
      signatures: signatures of installed classes whose source can be read.
    """
    ranks = world_size or (config.world_size if config is not None else None)
    run = Run(config, scripts, versions or {}, ranks, signatures)
    found = list(check_versions(run, versions_source))
    if config is not None:
        found += [diagnostic for check in _CONFIG_CHECKS for diagnostic in check(config, run)]
        run = replace(run, config=config.with_valid_stage)
    found += [
        diagnostic for script in scripts for check in _SCRIPT_CHECKS for diagnostic in check(script, run)
    ]
    return ordered(found)
