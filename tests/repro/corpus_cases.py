"""Which cases make up the project's own corpus, and what a diagnosis should say of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One small program of ``cases/`` and the class of failure that it shows."""

    program: str  #: module.function in cases/
    signature: str  #: id of the rule that should be primary; "healthy", "benign:…" or "unknown" otherwise
    ranks: int = 0  #: 0: started by python itself, without torchrun

    @property
    def name(self) -> str:
        return self.program.replace(".", "-").replace("_", "-")

    def command(self, python: str) -> list[str]:
        if not self.ranks:
            return [python, "run.py", self.program]
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks), "--tee", "3"]
        return [python, *launch, "run.py", self.program]


CASES = (
    Case("tensors.dtype_mismatch", "dtype-mismatch"),
    Case("tensors.loss_does_not_require_grad", "loss-does-not-require-grad"),
    Case("tensors.torch_not_compiled_with_cuda", "torch-not-compiled-with-cuda"),
    Case("tensors.sampling_nan_probabilities", "sampling-nan-probabilities"),
    Case("tensors.checkpoint_recompute_mismatch", "checkpoint-recompute-mismatch"),
    Case("tensors.inference_tensor_saved_for_backward", "inference-tensor-saved-for-backward"),
    Case("tensors.fp16_unscale_error", "fp16-unscale-error"),
    Case("tensors.loss_nan", "loss-nan"),
    Case("tensors.loss_divergence", "loss-divergence"),
    Case("tensors.ddp_meta_parameters", "fsdp-params-on-meta-device"),
    Case("processes.killed", "host-oom-sigkill", 2),
    Case("processes.segfault", "process-segfault", 1),
    Case("processes.bus_error", "process-sigbus", 1),
    Case("processes.interrupted", "benign:keyboard-interrupt"),
    Case("processes.terminated", "secondary-sigterm-cascade", 2),
    Case("processes.hung_up", "sighup-terminal-closed", 2),
    Case("processes.absent_rank", "gloo-collective-timeout", 2),
    Case("processes.unknown_exception", "unknown", 2),
    Case("processes.no_launcher", "env-rendezvous-missing-variable"),
    Case("processes.port_in_use", "port-already-in-use"),
    Case("processes.master_unreachable", "rendezvous-connection-failed"),
    Case("processes.unused_parameters", "ddp-unused-parameters", 2),
    Case("processes.marked_ready_twice", "ddp-marked-ready-twice", 2),
    Case("processes.too_many_open_files", "too-many-open-files"),
    Case("files.worker_killed", "dataloader-worker-killed"),
    Case("files.data_file_missing", "data-file-missing"),
    Case("files.weights_only", "torch-load-weights-only"),
    Case("files.archive_cut_off", "checkpoint-archive-corrupt"),
    Case("files.safetensors_cut_off", "checkpoint-archive-corrupt"),
    Case("files.shared_tensors", "safetensors-shared-tensors"),
    Case("files.disk_full", "disk-full-checkpoint"),
    Case("files.model_path_wrong", "model-path-wrong"),
    Case("files.hub_unreachable", "hf-hub-network-failure"),
    Case("files.pad_token_missing", "pad-token-missing"),
    Case("files.argument_error", "config-argparse-error"),
    Case("zero.batch_size_mismatch", "config-train-batch-size-mismatch", 2),
    Case("zero.both_half_precisions", "fp16-and-bf16-both-enabled", 2),
    Case("zero.config_twice", "deepspeed-config-given-twice", 2),
    Case("zero.loss_backward", "healthy", 2),
    Case("zero.bare_weight", "zero3-weight-must-be-2d", 2),
    Case("zero.load_into_partitioned", "zero3-size-mismatch-empty", 2),
    Case("zero.no_sync", "deepspeed-no-sync-incompatible", 2),
    Case("zero.nvme_without_libaio", "libaio-missing", 2),
    Case("zero.save_without_gathering", "benign:zero3-weights-not-gathered-notice", 2),
    Case("zero.not_initialized", "deepspeed-dist-not-initialized"),
    Case("zero.stage_two_healthy", "healthy", 2),
    Case("healthy.plain", "healthy"),
    Case("healthy.ddp", "healthy", 2),
    Case("healthy.noisy", "healthy"),
    Case("healthy.trainer", "healthy"),
)
