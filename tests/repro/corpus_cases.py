"""Cases of the project's own corpus, and the expected diagnosis of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One small program and the class of its failure."""

    program: str  #: module.function in cases/, or a name for the program of `script` or `stack`
    signature: str  #: id of the expected primary rule, or "healthy", "benign:…" or "unknown"
    ranks: int = 0  #: 0: started by python without torchrun
    script: tuple[str, ...] = ()  #: program beside cases/ with its options, instead of a function in cases/
    #: DeepSpeed version of an older stack (versions/stacks.py) that ran the attempt `program`
    stack: str = ""

    @property
    def name(self) -> str:
        name = self.program.replace(".", "-").replace("_", "-")
        return f"deepspeed-{self.stack}-{name}" if self.stack else name

    def command(self, python: str) -> list[str]:
        program = [f"../{self.script[0]}", *self.script[1:]] if self.script else ["run.py", self.program]
        if not self.ranks:
            return [python, *program]
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks), "--tee", "3"]
        return [python, *launch, *program]


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
    Case("tensors.loss_spike", "loss-spike"),
    Case("tensors.loss_frozen", "loss-frozen"),
    Case("tensors.ddp_meta_parameters", "fsdp-params-on-meta-device"),
    Case("processes.killed", "host-oom-sigkill", 2),
    Case("processes.segfault", "process-segfault", 1),
    Case("processes.bus_error", "process-sigbus", 1),
    Case("processes.interrupted", "benign:keyboard-interrupt"),
    Case("processes.terminated", "secondary-sigterm-cascade", 2),
    Case("processes.hung_up", "sighup-terminal-closed", 2),
    Case("processes.absent_rank", "gloo-collective-timeout", 2),
    Case("processes.evaluation_hang", "evaluation-hang", 2),
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
    Case("standstills.silent_hang", "silent-hang-no-error", 2),
    Case("standstills.experts_differ", "nccl-collective-mismatch", 2),
    Case("healthy.plain", "healthy"),
    Case("healthy.ddp", "healthy", 2),
    Case("healthy.noisy", "healthy"),
    Case("healthy.trainer", "healthy"),
    Case("trl.sft", "healthy", 2, ("trainers/sft.py",)),
    Case("trl.dpo", "healthy", 2, ("trainers/dpo.py",)),
    Case("trl.grpo", "healthy", 2, ("trainers/grpo.py",)),
    Case("trl.online_dpo", "healthy", 2, ("trainers/online_dpo.py",)),
    Case("trl.grpo_reward_raises", "unknown", 2, ("trainers/grpo.py", "--reward", "raises")),
    Case(
        "trl.grpo_reward_stuck",
        "gloo-collective-timeout",
        2,
        ("trainers/grpo.py", "--reward", "stuck", "--timeout", "8"),
    ),
    Case("eval-mode", "zero3-backward-in-eval-mode", 2, stack="0.14.5"),
    Case("ppo", "zero3-save-unwrapped-model", 2, stack="0.14.5"),
    Case("online-dpo", "deepspeed-initialize-model-none", 2, stack="0.15.3"),
    Case("ppo", "zero3-save-unwrapped-model", 2, stack="0.15.3"),
    Case("dummy-loss", "zero3-dummy-loss-invalid-gradient", 2, stack="0.15.3"),
    Case("grpo", "healthy", 2, stack="0.15.4"),
    Case("grpo", "healthy", 2, stack="0.16.3"),
    Case("trace", "healthy", 2, stack="0.16.3"),
    Case("stall", "zero3-trace-cache-invalidated", 2, stack="0.16.3"),
    Case("grpo", "trl-offload-hooks-renamed", 2, stack="0.16.4"),
    Case("grpo", "healthy", 2, stack="0.17.6"),
    Case("grpo", "healthy", 2, stack="0.18.9"),
)
