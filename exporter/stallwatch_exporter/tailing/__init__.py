"""Follow growing files for ``stallwatch tail`` through rotation, truncation and loss."""
