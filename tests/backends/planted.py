"""A backend that computes as ONNX Runtime does, but for a fault at stated nodes.

It stands where a runtime stands: children find it through the entry-point group, and are really killed or
told wrong numbers by it. It knows nodes by the names that they have in the model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.backends.contract import (
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    SubModel,
)
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.options import Option
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target

ENVIRONMENT = "PLANTED_SLOWER"
"""Percent by which calls are slower where this variable says so: another version of the runtime."""
WRONG, CRASH = "PLANTED_WRONG", "PLANTED_CRASH"
"""A node that another version computes wrongly; whether another version crashes."""


class PlantedBackend(Backend):
    name = "planted"
    style = "graph"
    summary = "Right but for a planted fault; for tests."
    options = (
        Option(
            "fault",
            "none",
            "wrong, second, crash, hang, large, small, refuse or none.",
            pattern="[a-z]+",
        ),
        Option("at", "none", "Nodes that have the fault, with commas.", pattern=".+"),
        Option("beyond", "0", "The fault of large: sub-models of more nodes.", pattern="[0-9]+"),
        Option("least", "0", "The fault of small: refused are sub-models of fewer.", pattern="[0-9]+"),
        Option("slow", "none", "Nodes that take long, with commas.", pattern=".+"),
        Option("slow_us", "0", "How long.", pattern="[0-9]+"),
        Option("heavy", "none", "A node that takes long to compile.", pattern=".+"),
        Option("heavy_s", "0", "How long.", pattern="[0-9]+"),
        Option("refuses", "none", "Operators that the guard refuses.", pattern=".+"),
    )

    def probe(self) -> Available:
        return Available(f"1.{os.environ.get(ENVIRONMENT, '0')}")

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        op = index.nodes[node].op
        return f"no {op}" if op in _list(target, "refuses") else None

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        return PlantedExecutable(model, target, context)


class PlantedExecutable(Executable):
    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        proto = onnx.load(model.path)
        names = {node.name for node in proto.graph.node}
        self._fault = target.option("fault", "none")
        hit = names & set(_list(target, "at"))
        if os.environ.get(WRONG) in names:
            self._fault, hit = "wrong", {os.environ[WRONG]}
        if os.environ.get(CRASH):
            self._fault, hit = "crash", names
        if self._fault == "large":
            hit = (
                {proto.graph.node[-1].name} if len(names) > int(target.option("beyond", "0")) else set()
            )
        if self._fault == "small":
            hit = names if len(names) < int(target.option("least", "0")) else set()
        if names & set(_list(target, "heavy")):
            time.sleep(int(target.option("heavy_s", "0")))
        if not hit:
            self._fault = "none"
        if self._fault in ("refuse", "small"):
            raise RuntimeError("no kernel here")
        if self._fault in ("wrong", "large"):
            for node in [n for n in proto.graph.node if n.name in hit]:
                _spoil(proto, node)
        slow = len(names & set(_list(target, "slow")))
        percent = float(os.environ.get(ENVIRONMENT, "0"))
        self._wait_s = slow * int(target.option("slow_us", "0")) * 1e-6 * (1 + percent / 100)
        path = Path(context.work_dir) / "planted.onnx"
        onnx.save(proto, path)
        self._session: Any = reference_session(path)
        self._model, self._runs = model, 0
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def run(self) -> None:
        self._runs += 1
        if self._fault == "crash":
            os.abort()
        if self._fault == "hang":
            time.sleep(600)
        begin = time.perf_counter()
        given = {s.name: a for s, a in zip(self._model.inputs, self._inputs, strict=True)}
        names = [spec.name for spec in self._model.outputs]
        made = run_session(self._session, given, names)
        results = [made[name] for name in names]
        if self._fault == "second" and self._runs > 1:
            results = [value * np.asarray(1.5, value.dtype) for value in results]
        for bound, value in zip(self._outputs, results, strict=True):
            if bound is not None:
                np.copyto(bound, value)
        self._results = tuple(
            value if bound is None else bound
            for bound, value in zip(self._outputs, results, strict=True)
        )
        end = begin + (time.perf_counter() - begin) + self._wait_s
        while self._wait_s and time.perf_counter() < end:
            pass

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def close(self) -> None:
        self._session = None


def _list(target: Target, name: str) -> list[str]:
    return target.option(name, "none").split(",")


def _spoil(proto: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Make the node's first output 1.5 times as large and a bit more."""
    value = node.output[0]
    node.output[0] = f"{value}_right"
    position = list(proto.graph.node).index(node)
    factor, more = f"{value}_factor", f"{value}_more"
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1.5), factor))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.25), more))
    proto.graph.node.insert(
        position + 1, helper.make_node("Mul", [f"{value}_right", factor], [f"{value}_times"])
    )
    proto.graph.node.insert(position + 2, helper.make_node("Add", [f"{value}_times", more], [value]))


def install(folder: Path) -> Path:
    """Describe the backend as a plugin; the folder belongs on `sys.path`."""
    info = folder / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[collage.backends]\nplanted = tests.backends.planted:PlantedBackend\n", encoding="utf-8"
    )
    return folder
