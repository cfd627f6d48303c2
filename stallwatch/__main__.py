"""Run the command line with ``python -m stallwatch``, from the package of this Python interpreter."""

from stallwatch.cli import main

main()
