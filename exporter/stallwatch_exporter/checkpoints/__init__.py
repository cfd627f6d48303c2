"""Check whether the files of checkpoints are complete, in bounded memory and without unpickling."""
