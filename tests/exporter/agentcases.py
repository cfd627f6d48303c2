"""Output of failing runs under the agent, and the rule of their stall."""

from __future__ import annotations

OOM = [
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/w/train.py", line 12, in <module>',
    "[rank3]:     loss.backward()",
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
    "capacity of 79.11 GiB of which 1.02 GiB is free. Process 1 has 78.09 GiB memory in use.",
]
HANG = "stall/silent-hang-no-error"
