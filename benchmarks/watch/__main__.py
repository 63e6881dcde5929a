"""Equal environments and one with an operator that is slower, compared again and again."""

from __future__ import annotations

import argparse
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
    """Print one line for each comparison, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--equal", type=int, default=50, help="comparisons of equal environments")
    parser.add_argument("--slower", type=int, default=10, help="comparisons with the slower operator")
    parser.add_argument("--percent", type=int, default=10, help="by how much it is slower")
    parser.add_argument("--slow-us", type=int, default=2000, help="what the operator takes")
    parser.add_argument("--load", type=int, default=1, help="busy processes beside it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as owned:
        folder = Path(name)
        site = planted.install(folder / "site")
        sys.path.insert(0, str(site))
        for _ in range(given.load):
            busy = subprocess.Popen([sys.executable, "-c", _LOAD])
            owned.callback(busy.kill)
        onnx.save(long_model(20), folder / "m.onnx")
        artifact = collage.tune(
            folder / "m.onnx",
            [f"planted -slow={_SLOW_NODE} -slow_us={given.slow_us}"],
            output=folder / "tuned.onnx",
            database=f"sqlite:///{folder / 'c.db'}",
            strategy="single",
        )
        here = this_environment()
        counts = {}
        for what, percent, times in (
            ("equal", 0, given.equal),
            ("slower", given.percent, given.slower),
        ):
            variables = {planted.ENVIRONMENT: str(percent)}
            other = environment_of(interpreter(folder, what, variables, [site]))
            told = 0
            for number in range(times):
                begin = time.monotonic()
                found = compare(artifact.path, here, other, Runner())
                right = _tells_the_node(found) if what == "slower" else found.verdict != "same"
                told += right
                ratio = "" if found.ratio is None else f"{found.ratio.ratio:.3f}"
                seconds = time.monotonic() - begin
                print(f"{what} {number}: {found.verdict} {ratio} in {seconds:.0f} s", flush=True)
            counts[what] = f"{told} of {times}"
    print(f"a change told of equal environments: {counts['equal']}")
    print(f"the slower operator found: {counts['slower']}")


def _tells_the_node(found: Compared) -> bool:
    blocks = [block for block in found.blocks if _SLOW_NODE in block["nodes"]]
    return found.verdict == "slower" and any(block["ratio"] > 1 for block in blocks)


if __name__ == "__main__":
    main()
