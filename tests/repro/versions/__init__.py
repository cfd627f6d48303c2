"""The five failures on old and new DeepSpeed and TRL, each stack in its own environment."""
