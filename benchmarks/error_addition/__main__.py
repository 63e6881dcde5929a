"""Runs `python -m benchmarks.error_addition`."""

from benchmarks.error_addition.compare import main

if __name__ == "__main__":
    main()
