"""Assess the impact of findings on a run by its progress, with pure functions: one file per subject.

The same text can be noise or a fatal sign: a trace-cache message is harmless while steps advance, degrading
if steps become slower with it, and fatal if no step follows. Some failures are not reported on any line: a
loss that jumps, steps that become slower, or a silence.
"""
