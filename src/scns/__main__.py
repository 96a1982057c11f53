"""`python -m scns` is the command `scns`."""

from scns.cli import main

main()
