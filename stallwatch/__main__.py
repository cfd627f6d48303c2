"""Run the command line of this interpreter's package by ``python -m stallwatch``, independent of the PATH."""

from stallwatch.cli import main

main()
