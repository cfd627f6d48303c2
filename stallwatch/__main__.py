"""``python -m stallwatch``: the command line of this interpreter's package, whatever is on the PATH."""

from stallwatch.cli import main

main()
