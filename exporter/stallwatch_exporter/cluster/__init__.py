"""Handle runs across several hosts: their identity, the exchange between agents, and merged incidents."""
