"""Run the command line with ``python -m stallwatch``: this interpreter's package, regardless of the PATH."""

from stallwatch.cli import main

main()
