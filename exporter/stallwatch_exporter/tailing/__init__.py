"""``stallwatch tail``: following growing files through rotation, truncation and loss."""
