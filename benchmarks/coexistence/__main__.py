"""Runs `python -m benchmarks.coexistence`."""

from benchmarks.coexistence.turns import main

if __name__ == "__main__":
    main()
