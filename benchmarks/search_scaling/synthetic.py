"""Synthetic models of any size, with candidates and costs, to time the search on.

Every family repeats one block, as real networks do. Costs follow a seeded rule and are no measurements.
A target is good at some kinds of operators, a partition costs something to call, and long partitions
gain from fusing. Every candidate has its own random factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.regions import RegionRule
from collage.partitioner.rules.rules import OpPredicateRule, UnionRule
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.target import Target

_SHAPE = ir.Shape((1, 64, 56, 56))
_FLOAT = ir.TensorType(ir.DataType.FLOAT)
_CALL_US = 8.0
_LUCK = 0.2
_FUSED = 4


@dataclass(frozen=True)
class SyntheticModel:
    """A model as rules want it."""

    ir: ir.Model
    index: GraphIndex


@dataclass(frozen=True)
class Instance:
    """What a search is given."""

    index: GraphIndex
    candidates: tuple[Candidate, ...]
    cost_us: tuple[float, ...]


class Builder:
    """Adds nodes one by one."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.input = self._value("x")

    def _value(self, name: str) -> ir.Value:
        return ir.Value(name=name, shape=_SHAPE, type=_FLOAT)

    def op(self, kind: str, *inputs: ir.Value) -> ir.Value:
        """A node with one output, which is returned."""
        number = len(self.nodes)
        output = self._value(f"v{number}")
        self.nodes.append(ir.Node("", kind, list(inputs), outputs=[output], name=f"{kind}{number}"))
        return output

    def model(self, output: ir.Value) -> SyntheticModel:
        """The model so far."""
        graph = ir.Graph([self.input], [output], nodes=self.nodes, opset_imports={"": 20}, name="g")
        model = ir.Model(graph, ir_version=10)
        return SyntheticModel(model, GraphIndex.from_ir(model))


Block = Callable[[Builder, list[ir.Value]], ir.Value]
"""Adds one block to a builder; sees the outputs of all blocks before."""


def _chain(b: Builder, before: list[ir.Value]) -> ir.Value:
    x = b.op("Conv", before[-1])
    return b.op("Relu", b.op("BatchNormalization", x))


def _resnet(b: Builder, before: list[ir.Value]) -> ir.Value:
    x = b.op("Relu", b.op("Conv", before[-1]))
    x = b.op("Relu", b.op("Conv", x))
    return b.op("Relu", b.op("Add", b.op("Conv", x), before[-1]))


def _inception(b: Builder, before: list[ir.Value]) -> ir.Value:
    x = before[-1]
    branches = []
    for length in (1, 2, 3):
        y = x
        for _ in range(length):
            y = b.op("Relu", b.op("Conv", y))
        branches.append(y)
    branches.append(b.op("Relu", b.op("Conv", b.op("MaxPool", x))))
    return b.op("Concat", *branches)


def _densenet(b: Builder, before: list[ir.Value]) -> ir.Value:
    made = [before[-1]]
    for _ in range(8):
        x = b.op("Concat", *made) if len(made) > 1 else made[0]
        x = b.op("Conv", b.op("Relu", b.op("BatchNormalization", x)))
        made.append(b.op("Conv", b.op("Relu", x)))
    return b.op("AveragePool", b.op("Conv", b.op("Concat", *made)))


def _nasnet(b: Builder, before: list[ir.Value]) -> ir.Value:
    left, right = before[-2:] if len(before) > 1 else (before[-1], before[-1])
    left, right = b.op("Conv", b.op("Relu", left)), b.op("Conv", b.op("Relu", right))
    sums: list[ir.Value] = []
    for one, other in ((left, right), (right, right), (left, left), (left, right), (right, left)):
        a = b.op("Conv", b.op("Conv", b.op("Relu", one)))
        c = b.op("AveragePool", other) if len(sums) % 2 else b.op("Conv", b.op("Relu", other))
        sums.append(b.op("Add", a, c))
    return b.op("Concat", *sums, left)


def _transformer(b: Builder, before: list[ir.Value]) -> ir.Value:
    x = before[-1]
    normed = b.op("LayerNormalization", x)
    heads = [b.op("Transpose", b.op("Reshape", b.op("Add", b.op("MatMul", normed), x))) for _ in "qkv"]
    scores = b.op("Softmax", b.op("Add", b.op("Div", b.op("MatMul", heads[0], heads[1])), b.input))
    mixed = b.op("Reshape", b.op("Transpose", b.op("MatMul", scores, heads[2])))
    x = b.op("Add", b.op("Add", b.op("MatMul", mixed)), x)
    hidden = b.op("Gelu", b.op("Add", b.op("MatMul", b.op("LayerNormalization", x))))
    return b.op("Add", b.op("Add", b.op("MatMul", hidden)), x)


def _gpt2(b: Builder, before: list[ir.Value]) -> ir.Value:
    """A decoder's layer as exporters write it: projections sliced apart, a mask for all, a Gelu in pieces."""
    x = before[-1]
    joint = b.op("Add", b.op("MatMul", b.op("LayerNormalization", x)))
    heads = [b.op("Transpose", b.op("Reshape", b.op("Slice", joint))) for _ in "qkv"]
    scores = b.op("Div", b.op("MatMul", heads[0], heads[1]))
    scores = b.op("Softmax", b.op("Add", b.op("Where", b.input, scores), b.input))
    mixed = b.op("Reshape", b.op("Transpose", b.op("MatMul", scores, heads[2])))
    x = b.op("Add", b.op("Add", b.op("MatMul", mixed)), x)
    h = b.op("Add", b.op("MatMul", b.op("LayerNormalization", x)))
    inner = b.op("Mul", b.op("Add", h, b.op("Mul", b.op("Pow", h))))
    h = b.op("Mul", b.op("Mul", h), b.op("Add", b.op("Tanh", inner)))
    return b.op("Add", b.op("Add", b.op("MatMul", h)), x)


def _wide(b: Builder, before: list[ir.Value]) -> ir.Value:
    """Thirty-two branches side by side."""
    return b.op("Concat", *(b.op("Relu", b.op("Conv", before[-1])) for _ in range(32)))


BLOCKS: dict[str, Block] = {
    "chain": _chain,
    "resnet": _resnet,
    "inception": _inception,
    "densenet": _densenet,
    "nasnet": _nasnet,
    "transformer": _transformer,
    "gpt2": _gpt2,
    "wide": _wide,
}


def model_of(family: str, nodes: int) -> SyntheticModel:
    """A model of at least so many nodes, one block over at the most."""
    builder = Builder()
    made = [builder.input]
    while len(builder.nodes) < nodes:
        made.append(BLOCKS[family](builder, made))
    return builder.model(made[-1])


def instance(family: str, nodes: int, candidates: int, targets: int = 3, seed: int = 0) -> Instance:
    """A model with about so many candidates (single nodes and regions at every scale), and costs."""
    model = model_of(family, nodes)
    count = len(model.index.nodes)
    intervals = max(16, candidates // targets - 2 * count)
    rule = UnionRule((OpPredicateRule(name="node"), RegionRule(max_intervals=intervals)))
    named = [Target(f"runtime{i}") for i in range(targets)]
    specs = [TargetSpec(t, "graph", lambda index, node: None, rule=rule) for t in named]
    found = enumerate_candidates(model, specs).candidates
    return Instance(model.index, found, _costs(model.index, found, seed))


def _costs(index: GraphIndex, candidates: tuple[Candidate, ...], seed: int) -> tuple[float, ...]:
    random = np.random.default_rng(seed)
    kinds = sorted({node.op_type for node in index.nodes})
    targets = sorted({candidate.target for candidate in candidates})
    base = {kind: random.uniform(3, 150) for kind in kinds}
    skill = {(t, kind): random.uniform(0.6, 1.6) for t in targets for kind in kinds}
    node_us = {
        t: np.array([base[n.op_type] * skill[t, n.op_type] for n in index.nodes]) for t in targets
    }
    luck = random.uniform(-_LUCK, _LUCK, len(candidates))
    costs = []
    for candidate, own_luck in zip(candidates, luck, strict=True):
        inside = bits(candidate.nodes)
        work = node_us[candidate.target][inside].sum()
        fused = 0.8 + 0.2 / min(len(inside), _FUSED)
        costs.append(float(_CALL_US + work * fused * (1 + own_luck / math.sqrt(len(inside)))))
    return tuple(costs)
