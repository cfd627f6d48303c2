"""Where the ranks of a run that stands are: stacks of three origins in one form, folded, the odd rank."""
