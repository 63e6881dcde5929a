"""Texts of scripts that reproduce a fault: with the runtime and numpy alone where its backend knows how."""

from __future__ import annotations

from collections.abc import Sequence

from collage.backends.registry import backend_of
from collage.partitioner.target import Target

# For targets that only this project can open.
_THROUGH_COLLAGE = """def open_model(path):
    from collage.diagnosis.reproducing.opening import open_model

    return open_model(path, "{target}", {threads})
"""

_COMPARE = '''"""{title}. Exit status 1 says that it still does, 0 that it does not."""

import sys
from pathlib import Path

import numpy as np

INPUTS, OUTPUTS = {inputs}, {outputs}
HERE = Path(__file__).resolve().parent


{lines}

def values(kind, names, number):
    with np.load(HERE / f"{{kind}}-{{number}}.npz") as stored:
        found = [stored[str(i)] for i in range(len(names))]
    return [v.astype(object) if v.dtype.kind == "U" else v for v in found]


compute = open_model(HERE / "model.onnx")
wrong = False
for number in range({samples}):
    for run in range({runs}):
        made = compute(dict(zip(INPUTS, values("inputs", INPUTS, number))))
        for name, got, want in zip(OUTPUTS, made, values("expected", OUTPUTS, number)):
            same = got.shape == want.shape and {close}
            wrong |= not same
            print(f"sample {{number}}, run {{run}}, {{name}}:", "right" if same else f"got {{got.ravel()[:8]}} for {{want.ravel()[:8]}}")
sys.exit(int(wrong))
'''

_CLOSE = (
    "np.allclose(got, want, rtol=0, atol={tolerance} * np.abs(want).max(initial=1e-12), equal_nan=True)"
)
_SAME = "np.array_equal(got, want)"

_TIME = '''"""{title}. Prints the median time of a call."""

import sys
import time
from pathlib import Path

import numpy as np

INPUTS, OUTPUTS = {inputs}, {outputs}
HERE = Path(__file__).resolve().parent


{lines}

with np.load(HERE / "inputs-0.npz") as stored:
    values = {{name: stored[str(i)] for i, name in enumerate(INPUTS)}}
calls = {{{calls}}}
times = {{name: [] for name in calls}}
for _ in range(30):
    for name, call in calls.items():
        call(values)
        begin = time.perf_counter()
        for _ in range(10):
            call(values)
        times[name].append((time.perf_counter() - begin) / 10 * 1e6)
for name, taken in times.items():
    print(f"{{name}}: {{np.median(taken):.1f}} us")
'''


def comparing_script(
    *,
    title: str,
    target: Target,
    threads: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    samples: int,
    runs: int,
    tolerance: float,
    numbers: bool,
    alone: bool = True,
) -> str:
    """A script that runs `model.onnx` beside it and compares with what was expected.

    Args:
        title: what goes wrong, in one line.
        samples: how many files of inputs there are.
        runs: of each.
        numbers: whether outputs are compared within the tolerance; else they must be equal.
        alone: use the runtime and numpy alone where the backend knows how.
    """
    return _COMPARE.format(
        title=title,
        inputs=list(inputs),
        outputs=list(outputs),
        lines=opening_lines(target, threads, alone=alone),
        samples=samples,
        runs=runs,
        close=_CLOSE.format(tolerance=f"{tolerance:g}") if numbers else _SAME,
    )


def timing_script(
    *,
    title: str,
    targets: Sequence[Target],
    threads: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> str:
    """A script that times `model.onnx` beside it on one target, or on several in turn."""
    lines, calls = [], []
    for number, target in enumerate(targets):
        text = opening_lines(target, threads)
        lines.append(text.replace("def open_model(", f"def open_{number}(", 1))
        calls.append(f'"{target}": open_{number}(HERE / "model.onnx")')
    return _TIME.format(
        title=title,
        inputs=list(inputs),
        outputs=list(outputs),
        lines="\n\n".join(lines),
        calls=", ".join(calls),
    )


def opening_lines(target: Target, threads: int, alone: bool = True) -> str:
    """Text that defines `open_model`."""
    known = backend_of(target).opening_lines(target, threads) if alone else None
    return known or _THROUGH_COLLAGE.format(target=target, threads=threads)


def is_alone(target: Target, threads: int) -> bool:
    """Whether scripts for this target import the runtime and numpy alone."""
    return backend_of(target).opening_lines(target, threads) is not None
