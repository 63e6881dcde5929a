"""Values on a device: what is copied from one memory to another, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collage.backends.contract import CompileContext, Executable, SubModel
from collage.backends.device_memory import DeviceBuffer
from collage.backends.registry import target_spec
from collage.backends.testing.null import NullBackend, SimulatedBuffer
from collage.costs.copy_costs import copy_costs
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from collage.runtime.step import Step

Array = np.ndarray


class _Counted(SimulatedBuffer):
    """Records each copy."""

    def __init__(self, spec: TensorSpec, domain: str, told: list[str]) -> None:
        super().__init__(spec, domain)
        self._told = told

    def write(self, values: Array) -> None:
        self._told.append(f"{self.spec.name} to {self.domain}")
        super().write(values)

    def read(self, values: Array) -> None:
        self._told.append(f"{self.spec.name} from {self.domain}")
        super().read(values)


class _Sum(Executable):
    """Adds its inputs and one more, on the host or in the memory of a device."""

    def __init__(self, told: list[str], domain: str = "host") -> None:
        self._told, self._domain = told, domain
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []

    @property
    def domain(self) -> str:
        return self._domain

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        return _Counted(spec, self._domain, self._told)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        assert self._domain == "host"
        self._inputs, self._outputs = list(inputs), [o for o in outputs if o is not None]

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        assert {buffer.domain for buffer in (*inputs, *outputs)} == {self._domain}
        self._inputs = [b.content for b in inputs if isinstance(b, SimulatedBuffer)]
        self._outputs = [b.content for b in outputs if isinstance(b, SimulatedBuffer)]

    def run(self) -> None:
        total = sum(self._inputs) + np.float32(1)
        for output in self._outputs:
            np.copyto(output, total)

    @property
    def results(self) -> tuple[Array, ...]:
        return tuple(self._outputs)

    def close(self) -> None:
        self._inputs, self._outputs = [], []


def _spec(name: str) -> TensorSpec:
    return TensorSpec(name, "float32", (4,))


def _plan(domains: str, told: list[str]) -> Executor:
    """x → a → b; then c = a + b. One letter a step: `h`ost, device `p` or `q`."""
    names = {"h": "host", "p": "sim:0", "q": "sim:1"}
    wiring = [(("x",), "a"), (("a",), "b"), (("a", "b"), "c")]
    steps = [
        Step(_Sum(told, names[d]), tuple(map(_spec, reads)), (_spec(made),))
        for d, (reads, made) in zip(domains, wiring, strict=True)
    ]
    return Executor(steps, [_spec("x")], ["c"])


@pytest.mark.parametrize(
    ("domains", "copies"),
    [
        ("hhh", []),
        ("ppp", ["x to sim:0", "c from sim:0"]),
        ("hpp", ["a to sim:0", "c from sim:0"]),  # once, though two steps there read it
        ("pph", ["x to sim:0", "a from sim:0", "b from sim:0"]),
        ("php", ["x to sim:0", "a from sim:0", "b to sim:0", "c from sim:0"]),
        ("hph", ["a to sim:0", "b from sim:0"]),
        # From device to device by way of the host, and `a` has a place on both.
        (
            "pqp",
            ["x to sim:0", "a from sim:0", "a to sim:1", "b from sim:1", "b to sim:0", "c from sim:0"],
        ),
    ],
)
def test_a_value_is_copied_once_for_each_memory_that_reads_it(domains: str, copies: list[str]) -> None:
    told: list[str] = []
    executor = _plan(domains, told)
    executor.bind()
    executor.feed({"x": np.arange(4, dtype=np.float32)})
    executor.run()
    assert told == copies
    np.testing.assert_array_equal(executor.value("c"), 2 * np.arange(4) + 4)
    executor.feed({"x": np.zeros(4, np.float32)})
    assert len(executor.run_timed()) == 3
    np.testing.assert_array_equal(executor.value("c"), np.full(4, 4))


@pytest.mark.parametrize(
    ("domains", "copied"),
    [
        ("hhh", set()),
        ("ppp", set()),
        ("hpp", {("a", 1), ("a", 2)}),
        ("php", {("a", 1), ("b", 2)}),
        ("pqp", {("a", 1), ("b", 2)}),
    ],
)
def test_copies_between_memories_are_timed(domains: str, copied: set[tuple[str, int]]) -> None:
    told: list[str] = []
    executor = _plan(domains, told)
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    executor.run()
    told.clear()
    times = executor.time_copies(3)
    assert set(times) == copied and all(us > 0 for us in times.values())
    both_ways = 2 if "q" in domains else 1  # by way of the host
    assert len(told) == 3 * len(copied) * both_ways
    executor.feed({"x": np.zeros(4, np.float32)})
    executor.run()
    np.testing.assert_array_equal(executor.value("c"), np.full(4, 4))


def test_every_value_can_be_checked_wherever_it_is() -> None:
    executor = _plan("ppp", [])
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    seen: dict[str, float] = {}
    executor.check_each(lambda step, name, value: seen.update({name: float(value[0])}))
    assert seen == {"a": 1, "b": 2, "c": 4}


def test_the_null_backend_computes_in_a_memory_of_its_own(tmp_path: Path) -> None:
    x, y = _spec("x"), _spec("y")
    model = SubModel(tmp_path / "model.onnx", (x,), (y,))
    context = CompileContext(1, tmp_path)
    executable = NullBackend().compile(model, Target.parse("null -domain=sim:0"), context)
    executor = Executor([Step(executable, (x,), (y,))], [x], ["y"])
    executor.bind()
    executor.value("y")[...] = 5
    executor.feed({"x": np.ones(4, np.float32)})
    executor.run()
    assert not executor.value("y").any()


def test_copies_between_memories_are_measured_once_a_device() -> None:
    specs = [target_spec(Target.parse(f"null -domain={d}")) for d in ("sim:0", "host", "sim:1")]
    assert copy_costs(specs[1:2], threads=1) == {}
    found = copy_costs(specs, threads=1)
    assert set(found) == set(itertools.permutations(("host", "sim:0", "sim:1"), 2))
    there = found["host", "sim:0"]
    assert 0 < there.fixed_us < 1e5 and there.us(1 << 22) > there.us(1 << 10)
    assert found["sim:0", "sim:1"].fixed_us > found["sim:0", "host"].fixed_us
