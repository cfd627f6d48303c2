"""Handle runs on several hosts: identify the runs, exchange reports between agents, and merge incidents."""
