"""`python -m collage` is the command line."""

from collage.cli.app import main

main()
