"""Run the command line of this interpreter's package: ``python -m stallwatch``, whatever is on the PATH."""

from stallwatch.cli import main

main()
