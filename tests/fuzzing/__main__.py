"""The command line of the fuzzer: see `tests.fuzzing.driver`."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.fuzzing.driver import outcomes


def main() -> None:
    """Run cases and print each that did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--output", type=Path, default=None, help="a JSON line for each case")
    chosen = parser.parse_args()
    counts: Counter[str] = Counter()
    for outcome in outcomes(range(chosen.first, chosen.first + chosen.count)):
        counts[outcome.kind] += 1
        if chosen.output is not None:
            with chosen.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        if outcome.kind not in ("passed", "unusable"):
            print(f"{outcome.seed} {outcome.kind}: {outcome.reason} [{outcome.plan}]", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
