"""The rules that no single line shows: concluded from the run's facts, each by its own judgement.

A page of such a rule has no patterns, or some that show it in part of the runs. Its ``requires`` name words
that must stand somewhere in the log for the conclusion to make sense (a mixture-of-experts model, GPUs that
talk directly).
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
#: Rules that say that a run stands, rather than that it died.
STANDSTILLS = frozenset((TRACE_CACHE, SILENT_HANG, EVALUATION_HANG, MOE_HANG, PEER_TO_PEER, LEFT_EARLY))
