"""Equal environments and one with an operator that is slower, compared again and again."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import onnx

import collage
from collage.environments.environment import environment_of, this_environment
from collage.runner import Runner
from collage.watch.comparison import Compared, compare
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.collage.environments.wrappers import interpreter

_SLOW_NODE = "n7"
_LOAD = "while True: sum(range(100_000))"


def main() -> None:
    """Print one line for each comparison, and the counts with 95 % intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--equal", type=int, default=50, help="comparisons of equal environments")
    parser.add_argument("--slower", type=int, default=10, help="comparisons with the slower operator")
    parser.add_argument("--percent", type=int, default=10, help="by how much it is slower")
    parser.add_argument("--slow-us", type=int, default=2000, help="what the operator takes")
    parser.add_argument("--load", type=int, default=1, help="busy processes beside it")
    parser.add_argument(
        "--model", type=Path, help="compare this model instead, whose operators are all as fast"
    )
    parser.add_argument("--targets", nargs="+", default=["onnxruntime"], help="of that model")
    parser.add_argument("--minutes", type=float, help="begin no comparison that would end later")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as owned:
        folder = Path(name)
        site = planted.install(folder / "site")
        sys.path.insert(0, str(site))
        for _ in range(given.load):
            busy = subprocess.Popen([sys.executable, "-c", _LOAD])
            owned.callback(busy.kill)
        onnx.save(long_model(20), folder / "m.onnx")
        planted_target = f"planted -slow={_SLOW_NODE} -slow_us={given.slow_us}"
        artifact = collage.tune(
            given.model or folder / "m.onnx",
            given.targets if given.model else [planted_target],
            output=folder / "tuned.onnx",
            database=f"sqlite:///{folder / 'c.db'}",
            strategy="single",
        )
        runner = Runner()
        here = this_environment(runner)
        environments = {
            what: environment_of(interpreter(folder, what, {planted.ENVIRONMENT: str(percent)}, [site]))
            for what, percent in (("equal", 0), ("slower", given.percent))
        }
        told, done = {"equal": 0, "slower": 0}, {"equal": 0, "slower": 0}
        end = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes
        longest_s = 0.0
        for what in _order(given.equal, 0 if given.model else given.slower):
            begin = time.monotonic()
            if begin + longest_s > end:
                print(f"the {given.minutes:g} minutes are up", flush=True)
                break
            found = compare(artifact.path, here, environments[what], runner)
            told[what] += _tells_the_node(found) if what == "slower" else found.verdict != "same"
            done[what] += 1
            ratio = "" if found.ratio is None else f"{found.ratio.ratio:.3f}"
            seconds = time.monotonic() - begin
            longest_s = max(longest_s, seconds)
            print(f"{what} {done[what]}: {found.verdict} {ratio} in {seconds:.0f} s", flush=True)
    print(f"a change told of equal environments: {_share(told['equal'], done['equal'])}")
    print(f"the slower operator found: {_share(told['slower'], done['slower'])}")


def _order(equal: int, slower: int) -> list[str]:
    """Both kinds mixed evenly, so that a run which is cut short says something of both."""
    places = [((i + 0.5) / equal, "equal") for i in range(equal)]
    places += [((i + 0.5) / slower, "slower") for i in range(slower)]
    return [what for _, what in sorted(places)]


def _share(told: int, done: int) -> str:
    """A count with the 95 % interval of its share (Wilson)."""
    if not done:
        return "not compared"
    share, z = told / done, 1.96
    middle = (share + z * z / (2 * done)) / (1 + z * z / done)
    off = z * math.sqrt(share * (1 - share) / done + z * z / (4 * done * done)) / (1 + z * z / done)
    return f"{told} of {done}, {max(0.0, middle - off):.0%} to {min(1.0, middle + off):.0%}"


def _tells_the_node(found: Compared) -> bool:
    blocks = [block for block in found.blocks if _SLOW_NODE in block["nodes"]]
    return found.verdict == "slower" and any(block["ratio"] > 1 for block in blocks)


if __name__ == "__main__":
    main()
