"""Runs `python -m benchmarks.search_scaling`."""

from benchmarks.search_scaling.scaling import main

if __name__ == "__main__":
    main()
