"""Assess the impact of findings, based on a run's progress. Each file has pure functions on one subject.

The same message can be harmless or fatal. For example, a trace-cache message is harmless while steps
advance, degrading if steps become slower as the message becomes more frequent, and fatal if no step
follows. Some failures are not reported on any line, such as a loss that jumps, steps that become slower, or
a run that stops printing.
"""
