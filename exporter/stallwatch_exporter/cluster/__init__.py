"""One run over many hosts: who belongs to it, what its agents send each other, and one incident of theirs."""
