"""`python -m mixwise` is the command line."""

from mixwise.cli import main

main()
