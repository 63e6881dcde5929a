"""`python -m collage` is the command line."""

from collage.cli import main

main()
