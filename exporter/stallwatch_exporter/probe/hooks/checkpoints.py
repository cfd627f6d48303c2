"""Report the paths of checkpoints that the first rank writes, so that the agent can check them later.

The hooks do not read files. They report a path when ``torch.save`` opens a file, and when a model of
transformers writes its configuration, which precedes the weights. They also report a path when a trainer's
checkpoint is complete, and when DeepSpeed chooses the tag of a checkpoint. Direct calls to
``safetensors.torch.save_file`` are not observed.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method
from .transformers import notice_event

AGAIN_SECONDS = 30.0  #: minimum number of seconds between two reports of the same path
#: Minimum number of seconds between reports of a checkpoint's folder while files are written to it.
FOLDER_SECONDS = 5.0
MOST_REPORTS = 2000  #: Maximum number of reports. Further reports are counted as dropped.
_CHECKPOINT = re.compile(r"(checkpoint|ckpt|global_step|step|epoch|iter)[-_=]?\d+", re.IGNORECASE)


def _on_first_rank(watch: Callable[[Any, Probe], None]) -> Callable[[Any, Probe], None]:
    """Wrap a watch function so that it acts only on the first rank, which reports checkpoints."""

    def maybe(module: Any, probe: Probe) -> None:
        if os.environ.get("RANK", "0") == "0":
            watch(module, probe)

    return maybe


@_on_first_rank
def watch_torch(module: Any, probe: Probe) -> None:
    """Watch ``torch.save``, whose ``with`` statement first looks up ``__exit__`` of the file's writer."""

    def saved(writer: Any, _: FrameType) -> None:
        _written(probe).report(folder_of(Path(writer.name)), "torch.save")

    notice_method(module._open_zipfile_writer_file, "__exit__", saved, probe.failed)


@_on_first_rank
def watch_engine(module: Any, probe: Probe) -> None:
    """Watch ``save_checkpoint`` in ``deepspeed.runtime.engine``."""

    def tagged(_: Any, frame: FrameType) -> None:
        given = frame.f_locals
        if "save_dir" in given and "tag" in given:
            _written(probe).report(Path(given["save_dir"]) / given["tag"], "save_checkpoint")

    notice_method(module.DeepSpeedEngine, "_checkpoint_tag_validation", tagged, probe.failed)


@_on_first_rank
def watch_trainer(module: Any, probe: Probe) -> None:
    """Watch checkpoints that a trainer of transformers reports as complete."""

    def complete(state: Any, given: Mapping[str, Any]) -> None:
        folder = f"checkpoint-{state.global_step}"
        _written(probe).report(Path(given["args"].output_dir) / folder, "trainer")

    notice_event(module.CallbackHandler, {"on_save": complete}, probe)


@_on_first_rank
def watch_models(module: Any, probe: Probe) -> None:
    """Watch ``save_pretrained`` of models, which first saves the model's configuration."""
    config = getattr(module, "PretrainedConfig", None) or module.PreTrainedConfig

    def described(_: Any, frame: FrameType) -> None:
        folder = frame.f_locals.get("save_directory")
        if folder is not None and hasattr(frame.f_locals.get("self"), "state_dict"):
            _written(probe).report(folder, "save_pretrained")

    notice_method(config, "save_pretrained", described, probe.failed)


def folder_of(file: Path) -> Path:
    """Return a file's folder if the folder has the name of a checkpoint, or the file itself otherwise."""
    return file.parent if _CHECKPOINT.fullmatch(file.parent.name) else file


class Written:
    """Reporter of checkpoint paths, which limits how often it reports the same path."""

    def __init__(self, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._clock = clock
        self._reported: dict[tuple[str, str], float] = {}
        self._left = MOST_REPORTS

    def report(self, path: Any, by: str) -> None:
        """Report that a file or folder is being written or has been written."""
        where = str(Path(path).absolute())
        now = self._clock()
        parts = by == "torch.save" and _CHECKPOINT.fullmatch(Path(where).name)
        again = FOLDER_SECONDS if parts else AGAIN_SECONDS
        if now - self._reported.get((where, by), float("-inf")) < again:
            return
        if self._left <= 0:
            self._probe.left_out()
            return
        self._left -= 1
        self._reported[where, by] = now
        self._probe.event("checkpoint", path=where, by=by)


# All hooks share this object because several hooks can report the same checkpoint.
@functools.lru_cache(maxsize=1)
def _written(probe: Probe) -> Written:
    return Written(probe)
