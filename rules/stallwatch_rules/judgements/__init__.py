"""What findings mean for this run, judged by its progress: pure functions over facts, a file per subject.

The same text can be noise or the end: a trace-cache message is harmless while steps advance, degrading when
steps become slower with it, and fatal when no step follows. Some failures have no line at all: a loss that
jumped, steps that became slower, a silence.
"""
