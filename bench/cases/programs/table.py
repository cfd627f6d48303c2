"""The table of real runs, with the program, number of ranks, seeds, and correct answer for each run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    scenario: str
    cause: str  #: a class of causes.json; empty if nothing is wrong
    sign: str = ""  #: words that name the cause; bars separate alternatives
    ranks: int = 0  #: number of ranks; 0 means that Python starts without a launcher
    seeds: int = 1
    kind: str = "real run"
    rank: int | None = None  #: the rank at fault

    @property
    def file(self) -> str:
        """Return the name of the program file that defines this scenario."""
        library = self.scenario.partition("_")[0]
        trainers = ("hf", "lightning", "accelerate", "trl", "deepspeed")
        if library in trainers:
            return "trainers.py"
        return "faults.py" if self.cause else "fine.py"


FAILING = (
    Run("forward_shapes", "tensor-shapes", "mat1 and mat2 shapes cannot be multiplied", seeds=2),
    Run("collate_key", "other", "KeyError: 'labels'", seeds=2),
    Run("token_out_of_range", "index-out-of-range", "index out of range in self", seeds=2),
    Run("target_out_of_bounds", "index-out-of-range", "Target 12 is out of bounds"),
    Run("bad_json_line", "data-unreadable", "JSONDecodeError", seeds=2),
    Run("latin_text", "data-unreadable", "UnicodeDecodeError"),
    Run("worker_raises", "other", "image has 1 channel, expected 3", seeds=2),
    Run("worker_killed", "data-worker-died", "killed by signal: Killed", seeds=2),
    Run("worker_segfaults", "data-worker-died", "egmentation fault"),
    Run("ragged_batch", "batch-lengths", "stack expects each tensor to be equal size"),
    Run(
        "ragged_batch_in_worker",
        "batch-lengths",
        "resize storage that is not resizable|stack expects each tensor",
    ),
    Run("lambda_in_spawned_loader", "other", "pickle"),
    Run("average_of_nothing", "other", "ZeroDivisionError"),
    Run("own_assertion", "other", "preference pairs differ", seeds=2),
    Run("missing_package", "missing-package", "No module named 'flash_attn'"),
    Run("renamed_function", "versions-conflict", "cannot import name 'AdamWithWarmRestarts'"),
    Run("broken_config", "other", "mapping values are not allowed here"),
    Run("config_key", "other", "KeyError: 'weight_decay'"),
    Run("syntax_error", "source-syntax", "SyntaxError"),
    Run("required_argument", "arguments", "the following arguments are required: --model"),
    Run("none_attribute", "other", "'NoneType' object has no attribute 'step'", seeds=2),
    Run("wrong_keyword", "other", "unexpected keyword argument 'warmup_steps'"),
    Run("recursion", "other", "maximum recursion depth exceeded"),
    Run("empty_optimizer", "other", "optimizer got an empty parameter list"),
    Run("script_fails", "other", "CalledProcessError"),
    Run("label_server_down", "other|network", "ConnectionError", seeds=2),
    Run("backward_twice", "autograd", "backward through the graph a second time"),
    Run("inplace_change", "autograd", "modified by an inplace operation"),
    Run("half_and_float", "dtype-mismatch", "same dtype"),
    Run("cuda_on_a_cpu_build", "no-gpu", "Torch not compiled with CUDA enabled"),
    Run("loss_is_nan_raised", "loss-nan", "loss is nan", seeds=2),
    Run("loss_is_nan_exit", "loss-nan", "Loss is nan", seeds=2),
    Run("loss_is_nan_goes_on", "loss-nan", "nan"),
    Run("numpy_memory", "host-oom", "Unable to allocate"),
    Run("cpu_allocator", "host-oom", "DefaultCPUAllocator"),
    Run("cuda_memory", "cuda-oom", "CUDA out of memory", seeds=3, kind="re-enacted"),
    Run("disk_full", "disk-full", "No space left on device", seeds=2),
    Run("no_checkpoint", "file-missing", "runs/exp7/step-900.pt"),
    Run("other_width", "checkpoint-mismatch", "size mismatch for 0.weight"),
    Run("missing_keys", "checkpoint-mismatch", "Missing key(s) in state_dict"),
    Run("pickle_cut_off", "data-unreadable|checkpoint-corrupt", "pickle data was truncated"),
    Run("too_many_files", "open-files", "Too many open files"),
    Run("output_is_a_file", "other", "Not a directory"),
    Run("hub_is_away", "network", "some-team/some-model-7b"),
    Run("local_model_path", "file-missing", "/models/llama-sft/checkpoint-900"),
    Run("killed", "killed", "Killed", seeds=2),
    Run("segfault", "segfault", "Segmentation fault", seeds=2),
    Run("segfault_with_faulthandler", "segfault", "Segmentation fault"),
    Run("aborted", "abort|host-oom", "std::bad_alloc"),
    Run("terminated", "terminated", "Terminated"),
    Run("rank_raises", "other", "no teacher for language 'xx'", 3, seeds=2, rank=2),
    Run("rank_killed", "killed", "SIGKILL", 2, seeds=2, rank=1),
    Run("rank_segfaults", "segfault", "SIGSEGV", 2, rank=1),
    Run("rank_out_of_memory", "cuda-oom", "CUDA out of memory", 2, seeds=3, kind="re-enacted", rank=1),
    Run("rank_is_late", "collective-timeout", "Timed out waiting", 2, seeds=2),
    Run("rank_leaves", "rank-left", "", 2),
    Run("rank_loader", "other", "image has 1 channel, expected 3", 2, rank=1),
    Run("rank_disk_full", "disk-full", "No space left on device", 2, rank=0),
    Run("unused_parameter", "ddp-unused-parameters", "Expected to have finished reduction", 2),
    Run("models_differ", "ranks-differ", "appears not to match", 2),
    Run("no_launcher", "rendezvous", "environment variable RANK expected"),
    Run("hf_without_labels", "training-arguments", "did not return a loss"),
    Run("hf_without_eval_data", "training-arguments", "didn't pass an `eval_dataset`"),
    Run("hf_metric_key", "other", "not supported between instances"),
    Run("hf_best_model_key", "training-arguments", "eval_rouge"),
    Run("hf_resume_nothing", "file-missing", "No valid checkpoint found"),
    Run("hf_strategies_differ", "training-arguments", "load_best_model_at_end"),
    Run("hf_bf16_flags", "training-arguments", "At most one of fp16 and bf16"),
    Run("lightning_raises", "other", "augmentation produced an empty crop"),
    Run("lightning_returns_text", "other", "training_step"),
    Run("lightning_monitors_nothing", "other", "val_accuracy"),
    Run("lightning_wants_a_gpu", "no-gpu", "No supported gpu backend found"),
    Run("accelerate_uneven", "other", "reference answer is longer"),
    Run("trl_dpo_columns", "data-columns", "chosen"),
    Run("trl_sft_columns", "data-columns", "text"),
    Run("trl_grpo_generations", "batch-arguments", "num_generations"),
    Run("trl_grpo_reward_length", "reward-function", "reward"),
    Run("trl_grpo_reward_raises", "reward-function", "list index out of range"),
    Run("deepspeed_unknown_optimizer", "framework-config", "SuperAdam", 2),
    Run("deepspeed_unknown_key", "framework-config", "allgather_bucket", 2),
    Run("deepspeed_rank_raises", "other", "prompt has 0 tokens after truncation", 2, rank=1),
    Run("deepspeed_load_nothing", "file-missing", "checkpoint could not be loaded", 2),
)
FINE = (
    Run("fine", "", seeds=7),
    Run("fine_ddp", "", ranks=2, seeds=4),
    Run("fine_with_retries", "", seeds=4),
    Run("fine_with_warnings", "", seeds=3),
    Run("fine_with_dying_thread", "", seeds=2),
    Run("fine_del_noise", "", seeds=2),
    Run("fine_early_stop", "", seeds=3),
    Run("fine_loss_spikes", "", seeds=3),
    Run("interrupted", "", seeds=3),
    Run("hf_fine", "", seeds=2),
    Run("hf_fine_with_evaluation", "", seeds=2),
    Run("lightning_fine", "", seeds=2),
    Run("trl_sft_fine", "", seeds=1),
    Run("trl_grpo_fine", "", seeds=1),
    Run("deepspeed_fine", "", ranks=2, seeds=2),
)
