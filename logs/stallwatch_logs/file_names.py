"""Which files of a folder are logs, by their names. A file that the user names is always read."""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

_LOG = lazy(
    r"""(?: .*\.(?:log|txt|out|err|stdout|stderr|console|output)   # train.log, slurm-17.out
          | .*\.log[._-][\w.:-]+                                   # train.log.1, train.log.2026-11-20
          | .*\.[oe]\d+                                            # PBS and SGE: job.o12345
          | [\w-]*(?:log|metric|history)[\w-]*\.jsonl              # trainer_log.jsonl, but no data set
          | workerlog\.\d+                                         # paddle.distributed.launch
          | trainer_state\.json
          | (?:stdout|stderr|std_out|std_err|nohup|output|console|log)[\w-]*
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_COMPRESSED = lazy(r"\.(?:gz|xz|bz2|zst)$", re.IGNORECASE)
_ARCHIVE = lazy(r"\.(?:(?P<zip>zip)|tar|tgz|txz|tbz2?|tzst|tar\.\w{1,4})$", re.IGNORECASE)
_OF_LOGS = lazy(r"log|rank|std|output|node|worker", re.IGNORECASE)
_NO_LOG = lazy(
    r"""(?: (?:requirements|readme|licen[sc]e|notice|merges|vocab|constraints|cmakelists)\b.*\.txt
          | debug(?:-[\w]+)?\.log                                  # W&B's own
          | incidents\.jsonl | stacks-\d{8}-\d{6}\.txt             # Stallwatch's own
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_OTHER_THINGS = lazy(
    r""".*\.(?:py|ipynb|sh|c|cc|cpp|cu|h|hpp|js|ts|rs|go|md|rst|html?|css|xml|svg|ya?ml|toml|ini|cfg|json|jsonl
          |csv|tsv|parquet|arrow|pt|pth|bin|safetensors|pkl|npy|npz|onnx|gguf|h5|so|a|o|whl|egg|png|jpe?g|gif|pdf
          |mp4|wav|duckdb|db|sqlite|lock|patch|diff|zip|tar|tgz|7z|rar)
        |events\.out\.tfevents\..*|Makefile|Dockerfile|LICENSE|NOTICE|README|latest""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_FOLDER = lazy(r"checkpoint-\d+|global_step_?\d+|__pycache__|node_modules|site-packages|.*\.egg-info")


def takes_name(name: str) -> bool:
    """Whether a file found in a folder or an archive is taken for a log."""
    if name.startswith("."):
        return False
    archive = _ARCHIVE.search(name)
    if archive is not None and _OF_LOGS.search(name, 0, archive.start()):
        return True
    plain = _COMPRESSED.sub("", name)
    return _LOG.fullmatch(plain) is not None and _NO_LOG.fullmatch(plain) is None


def archive_named(name: str) -> str | None:
    """What kind of archive a file's name says that it is: ``"zip"``, ``"tar"`` or none."""
    found = _ARCHIVE.search(name)
    return None if found is None else "zip" if found["zip"] else "tar"


def may_be_log(name: str) -> bool:
    """Whether a file without a log's name may be one, for where none has such a name."""
    plain = _COMPRESSED.sub("", name)
    return not (name.startswith(".") or _NO_LOG.fullmatch(plain) or _OTHER_THINGS.fullmatch(plain))


def enters_folder(name: str) -> bool:
    """Whether a folder is searched: not hidden ones, checkpoints and installed packages."""
    return (name in (".", "..") or not name.startswith(".")) and _NO_FOLDER.fullmatch(name) is None
