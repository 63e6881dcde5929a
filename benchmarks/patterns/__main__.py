"""Runs `python -m benchmarks.patterns`."""

from benchmarks.patterns.measure import main

if __name__ == "__main__":
    main()
