"""Runs `python -m benchmarks.prediction`."""

from benchmarks.prediction.measure import main

if __name__ == "__main__":
    main()
