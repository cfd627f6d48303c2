"""The keys that DeepSpeed takes, by version, as the source of each release has them.

The sections below are pydantic models that refuse what they do not know (``extra="forbid"`` in
``runtime/config_utils.py``, in every release from 0.9.0 to 0.19.8). The keys are the fields and aliases of
``DeepSpeedZeroConfig`` (``runtime/zero/config.py``), ``DeepSpeedZeroOffload{Param,Optimizer}Config``
(``runtime/zero/offload_config.py``) and ``DeepSpeed{FP16,BF16}Config`` (``runtime/precision_config.py``, only
since 0.17.1: before, ``fp16`` and ``bf16`` were read key by key and took anything) in the tags v0.9.0 to
v0.19.5 and the releases 0.19.6 to 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FIRST_KNOWN = "0.9.0"
LAST_KNOWN = "0.19.8"  #: of newer releases it is not known which keys they take


class Span(NamedTuple):
    """The releases that take a key: from ``since`` on, up to but not including ``until``."""

    since: str = FIRST_KNOWN
    until: str | None = None


class Section(NamedTuple):
    """An object that refuses unknown keys, in these releases."""

    keys: Mapping[str, Span]
    strict: Span


def _always(*names: str) -> dict[str, Span]:
    return dict.fromkeys(names, Span())


SECTIONS: Mapping[tuple[str, ...], Section] = {
    ("zero_optimization",): Section(
        {
            **_always(
                "stage",
                "contiguous_gradients",
                "reduce_scatter",
                "reduce_bucket_size",
                "allgather_partitions",
                "allgather_bucket_size",
                "overlap_comm",
                "load_from_fp32_weights",
                "elastic_checkpoint",
                "offload_param",
                "offload_optimizer",
                "sub_group_size",
                "cpu_offload_param",
                "cpu_offload_use_pin_memory",
                "cpu_offload",
                "prefetch_bucket_size",
                "stage3_prefetch_bucket_size",
                "param_persistence_threshold",
                "stage3_param_persistence_threshold",
                "model_persistence_threshold",
                "stage3_model_persistence_threshold",
                "max_live_parameters",
                "stage3_max_live_parameters",
                "max_reuse_distance",
                "stage3_max_reuse_distance",
                "gather_16bit_weights_on_model_save",
                "stage3_gather_16bit_weights_on_model_save",
                "stage3_gather_fp16_weights_on_model_save",
                "ignore_unused_parameters",
                "legacy_stage1",
                "round_robin_gradients",
                "memory_efficient_linear",
            ),
            "mics_shard_size": Span("0.9.2", "0.19.7"),
            "mics_hierarchical_params_gather": Span("0.9.2", "0.19.7"),
            "zero_hpz_partition_size": Span("0.10.0"),
            "zero_quantized_weights": Span("0.10.0"),
            "zero_quantized_gradients": Span("0.10.0"),
            "pipeline_loading_checkpoint": Span("0.10.1"),
            "override_module_apply": Span("0.10.1"),
            "zero_quantized_nontrainable_weights": Span("0.10.2"),
            "use_multi_rank_bucket_allreduce": Span("0.12.4"),
            "use_all_reduce_for_fetch_params": Span("0.14.3"),
            "stage3_use_all_reduce_for_fetch_params": Span("0.14.3"),
            "module_granularity_threshold": Span("0.16.0"),
            "stage3_module_granularity_threshold": Span("0.16.0"),
            "zeropp_loco_param": Span("0.16.2", "0.19.8"),
            "log_trace_cache_warnings": Span("0.16.4"),
            "zenflow": Span("0.17.5"),
            "enable_sanity_checks": Span("0.17.6"),
            "leaf_module": Span("0.18.0"),
            "allgather_sequential": Span("0.18.5"),
            "stage3_allgather_sequential": Span("0.18.5"),
            "save_muon_momentum_buffer_in_memory": Span("0.18.9"),
            "compute_grad_norm": Span("0.19.7"),
            "parameter_alignment": Span("0.19.7"),
        },
        Span(),
    ),
    ("zero_optimization", "offload_param"): Section(
        _always("device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"), Span()
    ),
    ("zero_optimization", "offload_optimizer"): Section(
        {
            **_always(
                "device",
                "nvme_path",
                "buffer_count",
                "pin_memory",
                "pipeline_read",
                "pipeline_write",
                "fast_init",
            ),
            "ratio": Span("0.12.3"),
            "super_offload": Span("0.18.0"),
            "cpuadam_cores_perc": Span("0.18.0"),
        },
        Span(),
    ),
    ("fp16",): Section(
        _always(
            "enabled",
            "auto_cast",
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
            "fp16_master_weights_and_grads",
        ),
        Span("0.17.1"),
    ),
    ("bf16",): Section(
        {
            **_always("enabled", "immediate_grad_update", "check_grad_overflow"),
            "bf16_master_weights_and_grads": Span("0.18.3"),
            "bf16_optimizer_states": Span("0.18.3"),
        },
        Span("0.17.1"),
    ),
}

#: What DeepSpeed reads at the top: each key that ``DeepSpeedConfig._initialize_params`` of 0.16.4 and 0.19.8
#: (``runtime/config.py``) asks for, and what is asked for elsewhere: ``bfloat16`` (``precision_config.py``),
#: ``allgather_size`` (``zero/config.py``), ``data_parallel_size`` and ``sequence_parallel_size``
#: (``deepspeed/__init__.py``). It asks with ``dict.get`` and compares with nothing: another key is ignored.
TOP = frozenset(
    {
        "activation_checkpointing",
        "aio",
        "allgather_size",
        "amp",
        "autotuning",
        "bf16",
        "bfloat16",
        "checkpoint",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "compression_training",
        "csv_monitor",
        "curriculum_learning",
        "data_efficiency",
        "data_parallel_size",
        "data_types",
        "dataloader_drop_last",
        "datastates_ckpt",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "eigenvalue",
        "elasticity",
        "expert_parallel",
        "flops_profiler",
        "fp16",
        "fp32_allreduce",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "graph_harvesting",
        "hybrid_engine",
        "log_level",
        "managed_gradient_accumulation",
        "memory_breakdown",
        "nebula",
        "optimizer",
        "pipeline",
        "prescale_gradients",
        "progressive_layer_drop",
        "quantize_training",
        "scheduler",
        "seq_parallel_comm_data_type",
        "seq_parallel_communication_data_type",
        "sequence_parallel_size",
        "sparse_attention",
        "sparse_gradients",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)

#: Objects and flags at the top that raise since this release (``_REMOVED_TOP_LEVEL_CONFIG_KEYS`` in
#: ``runtime/config.py``), whatever their value; all other unknown keys at the top are ignored.
REMOVED_AT_TOP: Mapping[str, str] = {
    "nebula": "0.19.7",
    "compression_training": "0.19.7",
    "quantize_training": "0.19.7",
    "sparse_attention": "0.19.7",
    "amp": "0.19.8",
    "sparse_gradients": "0.19.8",
    "eigenvalue": "0.19.8",
    "elasticity": "0.19.8",
    "graph_harvesting": "0.19.8",
    "curriculum_learning": "0.19.8",
    "progressive_layer_drop": "0.19.8",
}
