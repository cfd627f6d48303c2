"""The five failures on old and new DeepSpeed and TRL, each stack in an environment of its own."""
