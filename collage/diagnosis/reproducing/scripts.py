"""Texts of scripts that reproduce a fault: with the runtime and numpy alone where its backend knows how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

from collage.backends.registry import backend_of
from collage.partitioner.target import Target

# For targets that only this project can open.
_THROUGH_COLLAGE = """def open_model(path):
    from collage.diagnosis.reproducing.opening import open_model

    return open_model(path, "{target}", {threads})
"""

_VALUES = """def values(kind, types, number, end=""):
    with np.load(Path(__file__).with_name(f"{kind}-{number}.npz")) as stored:
        found = [stored[f"{i}{end}"] for i in range(len(types))]
    return [v.astype(t) if t == "object" else v.view(t) for v, t in zip(found, types.values())]
"""

_COMPARE = '''"""{title}. Exit status 1 says that it still does, 0 that it does not."""

import sys
from pathlib import Path

{imports}

INPUTS, OUTPUTS = {inputs}, {outputs}


{lines}

{values}

def is_right(got, want):
    if got.shape != want.shape or not want.size or want.dtype.kind not in "fcV" and want.dtype.name not in ("int8", "uint8"):
        return {same}
    got, want = (v.astype("complex128" if v.dtype.kind == "c" else "float64") for v in (got, want))
    got = np.where(np.isnan(want) | np.isinf(want) & np.isfinite(got), want, got)  # any is right there
{close}


compute, wrong = open_model(Path(__file__).with_name("model.onnx")), False
for number in range({samples}):
    for run in range({runs}):
        made = compute(dict(zip(INPUTS, values("inputs", INPUTS, number))))
        wrong |= len(made) != len(OUTPUTS)
{each}
            wrong |= not (right := is_right(got, want))
            print(f"sample {{number}}, run {{run}}, {{name}}:", "right" if right else f"got {{got.ravel()[:8]}} for {{want.ravel()[:8]}}")
sys.exit(int(wrong))
'''

_EACH = """        for name, got, want in zip(OUTPUTS, made, values("expected", OUTPUTS, number)):"""
# What lies within the bounds of an element that rounding decides is right; of a number only what is beyond counts.
_EACH_WITH_TIES = """        ends = [values("expected", OUTPUTS, number, end) for end in ("", ".low", ".high")]
        for name, got, want, low, high in zip(OUTPUTS, made, *ends):
            if got.shape == want.shape and got.dtype.kind == "f":
                got = np.where(low < high, want + (got - np.clip(got, low, high)), got)
            elif got.shape == want.shape:
                got = np.where((low < high) & (low <= got) & (got <= high), want, got)"""

# As `collage.backends.numerics.comparison` measures errors.
_SAME = "np.array_equal(got, want)"
_SAME_LABELS = "got.shape == want.shape and np.count_nonzero(got != want) <= {tolerance} * want.size"
_FINITE = """    finite = np.isfinite(want)
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    if not same or not np.isfinite(got[finite]).all():
        return False
"""
_CLOSE = {
    "max": """    scale = np.abs(want[np.isfinite(want)]).max(initial=1e-12)
    return np.allclose(got, want, rtol=0, atol={tolerance} * scale, equal_nan=True)""",
    "l2": _FINITE
    + """    got, want = got[finite], want[finite]
    return np.linalg.norm(got - want) <= {tolerance} * max(np.linalg.norm(want), 1e-12)""",
    "cosine": _FINITE
    + """    got, want = got[finite], want[finite]
    lengths = max(np.linalg.norm(got) * np.linalg.norm(want), 1e-24)
    return np.allclose(got, want, rtol=0, atol=1e-12) or 1 - np.vdot(got, want).real / lengths <= {tolerance}""",
    "top1": _FINITE
    + """    rows = (-1, want.shape[-1] if want.ndim else 1)
    got, want = (np.where(finite, v, -np.inf).reshape(rows).argmax(1) for v in (got, want))
    return np.mean(got != want) <= {tolerance}""",
}

_TIME = '''"""{title}. Prints the median time of a call."""

import time
from pathlib import Path

{imports}

INPUTS = {inputs}


{lines}

{values}

given = dict(zip(INPUTS, values("inputs", INPUTS, 0)))
calls = {{{calls}}}
times = {{name: [] for name in calls}}
for _ in range(30):
    for name, call in calls.items():
        call(given)
        begin = time.perf_counter()
        for _ in range(10):
            call(given)
        times[name].append((time.perf_counter() - begin) / 10 * 1e6)
for name, taken in times.items():
    print(f"{{name}}: {{np.median(taken):.1f}} us")
'''


def comparing_script(
    *,
    title: str,
    target: Target,
    threads: int,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    samples: int,
    runs: int,
    tolerance: float,
    metric: str,
    ties: bool,
    alone: bool = True,
) -> str:
    """A script that runs `model.onnx` beside it and judges each output as a trial does.

    Args:
        title: what goes wrong, in one line.
        inputs: their types by name, as numpy calls them.
        outputs: the same.
        samples: how many files of inputs there are.
        runs: of each.
        tolerance: the largest error that is right.
        metric: how errors are measured.
        ties: whether files of expected values have bounds of elements that rounding decides.
        alone: use the runtime and numpy alone where the backend knows how.
    """
    told = f"{tolerance:g}"
    same = _SAME_LABELS.format(tolerance=told) if metric == "top1" else _SAME
    return _COMPARE.format(
        title=title,
        imports=_imports([*inputs.values(), *outputs.values()]),
        inputs=dict(inputs),
        outputs=dict(outputs),
        lines=opening_lines(target, threads, alone=alone),
        values=_VALUES,
        samples=samples,
        runs=runs,
        same=same,
        close=_CLOSE[metric].format(tolerance=told),
        each=_EACH_WITH_TIES if ties else _EACH,
    )


def timing_script(
    *,
    title: str,
    targets: Sequence[Target],
    threads: int,
    inputs: Mapping[str, str],
) -> str:
    """A script that times `model.onnx` beside it on one target, or on several in turn.

    Args:
        inputs: their types by name, as numpy calls them.
    """
    lines, calls = [], []
    for number, target in enumerate(targets):
        text = opening_lines(target, threads)
        lines.append(text.replace("def open_model(", f"def open_{number}(", 1))
        calls.append(f'"{target}": open_{number}(Path(__file__).with_name("model.onnx"))')
    return _TIME.format(
        title=title,
        imports=_imports(list(inputs.values())),
        inputs=dict(inputs),
        lines="\n\n".join(lines),
        values=_VALUES,
        calls=", ".join(calls),
    )


def _imports(types: Sequence[str]) -> str:
    """Lines that import numpy, and what gives it types that it lacks."""
    lacks = any(np.dtype(name).kind == "V" for name in types)
    return "import ml_dtypes\nimport numpy as np" if lacks else "import numpy as np"


def opening_lines(target: Target, threads: int, alone: bool = True) -> str:
    """Text that defines `open_model`."""
    known = backend_of(target).opening_lines(target, threads) if alone else None
    return known or _THROUGH_COLLAGE.format(target=target, threads=threads)


def is_alone(target: Target, threads: int) -> bool:
    """Whether scripts for this target import the runtime and numpy alone."""
    return backend_of(target).opening_lines(target, threads) is not None
