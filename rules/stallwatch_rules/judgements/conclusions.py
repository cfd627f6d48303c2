"""Name the rules whose findings are inferred from the facts of a run, because no line shows them.

The page of such a rule has no patterns, or patterns that match in only some runs. The ``requires`` key of
such a page contains words that the log must contain. For example, a conclusion about a mixture-of-experts
model is possible only if the log mentions such a model.
"""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import TRACE_CACHE

SILENT_HANG = "silent-hang-no-error"
EVALUATION_HANG = "evaluation-hang"
MOE_HANG = "zero3-moe-hang"
PEER_TO_PEER = "gpu-p2p-hang"
LEFT_EARLY = "rank-left-early"
MISMATCH = "nccl-collective-mismatch"
STEP_TIME = "step-time-degraded"
STRAGGLER = "straggler-slow-node"
LOSS_NAN = "loss-nan"
#: Rules whose findings mean that a run is stalled, not that it failed.
STANDSTILLS = frozenset((TRACE_CACHE, SILENT_HANG, EVALUATION_HANG, MOE_HANG, PEER_TO_PEER, LEFT_EARLY))
