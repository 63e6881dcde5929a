"""Runs `python -m benchmarks.other_runtimes`."""

from benchmarks.other_runtimes.compare import main

if __name__ == "__main__":
    main()
