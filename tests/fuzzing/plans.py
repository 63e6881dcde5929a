"""A random plan: each node on a target that says it takes it, neighbors of one target joined at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from collage.backends.registry import resolve, target_spec
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.plan_check import PlanError, check_plan, execution_order, quotient
from collage.partitioner.target import Target

# How likely each is in a plan beside ONNX Runtime; ncnn's converter takes long.
_OTHERS = {"openvino": 0.8, "mnn": 0.5, "ncnn": 0.12}
HOME = Target("onnxruntime")
# Other forms of targets: those that our own passes rewrite must be right, too.
_FORMS = {
    "onnxruntime": ("-rewrite=on", "-rewrite=winograd", "-opt=basic"),
    "openvino": ("-rewrite=on",),
    "mnn": ("-rewrite=on", "-winograd=large"),
    "ncnn": ("-rewrite=on", "-winograd=off"),
}


def random_targets(rng: random.Random, installed: Sequence[str]) -> list[Target]:
    """ONNX Runtime, which takes what the others refuse, and one or two others."""
    drawn = [name for name, share in _OTHERS.items() if name in installed and rng.random() < share]
    known = [name for name in _OTHERS if name in installed]
    others = [_form(rng, name, 0.2) for name in (drawn or known[:1])[:2]]
    return list(dict.fromkeys([HOME, _form(rng, HOME.backend, 0.3), *others]))


def _form(rng: random.Random, name: str, share: float) -> Target:
    option = f" {rng.choice(_FORMS[name])}" if rng.random() < share else ""
    return Target.parse(name + option)


def random_plan(index: GraphIndex, targets: Sequence[Target], rng: random.Random) -> Plan:
    """A plan that covers the graph."""
    specs = [target_spec(target) for target in targets]
    sets: list[int] = []
    owners: list[Target] = []
    for node in range(len(index.nodes)):
        able = [spec.target for spec in specs if spec.supports(index, node) is None]
        sets.append(1 << node)
        owners.append(rng.choice(able) if able else HOME)
    _join_sequences(index, sets, owners)
    joining = rng.choice([0.0, 0.5, 0.9, 1.0])
    for _ in range(2 * len(sets)):
        pairs = [
            (maker, reader)
            for maker, readers in enumerate(quotient(index, sets))
            for reader in readers
            if owners[maker] == owners[reader]
        ]
        if not pairs or rng.random() > joining:
            break
        one, other = rng.choice(sorted(pairs))
        whole = [s for i, s in enumerate(sets) if i not in (one, other)] + [sets[one] | sets[other]]
        try:
            execution_order(index, whole)
        except PlanError:
            continue
        owners = [t for i, t in enumerate(owners) if i not in (one, other)] + [owners[one]]
        sets = whole
    for position, (nodes, target) in enumerate(zip(sets, owners, strict=True)):
        if resolve(target).refuse_region(index, nodes, target) is not None:
            owners[position] = HOME
    return ordered(index, dict(zip(sets, owners, strict=True)), lanes=rng.choice([1, 1, 2]))


def _join_sequences(index: GraphIndex, sets: list[int], owners: list[Target]) -> None:
    """Put the nodes that hand a sequence on into one partition of ONNX Runtime: no other value than a tensor crosses."""
    for name, maker in index.producer.items():
        if index.values[name].dtype != "unknown":
            continue
        linked = 1 << maker | index.consumers.get(name, 0)
        joined = linked
        for position in reversed(range(len(sets))):
            if sets[position] & linked:
                joined |= sets.pop(position)
                owners.pop(position)
        sets.append(joined)
        owners.append(HOME)


def ordered(index: GraphIndex, placed: Mapping[int, Target], lanes: int = 1) -> Plan:
    """The plan of these node sets."""
    sets = list(placed)
    parts = tuple(Candidate(sets[i], placed[sets[i]], "random") for i in execution_order(index, sets))
    plan = Plan(parts, lanes)
    check_plan(index, plan)
    return plan


def moved_home(plan: Plan, position: int) -> Plan:
    """The plan with one partition on ONNX Runtime."""
    parts = list(plan.partitions)
    parts[position] = Candidate(parts[position].nodes, HOME, "moved")
    return Plan(tuple(parts), plan.lanes)


def described(index: GraphIndex, plan: Plan) -> str:
    """The plan in one line: the operators of each partition, and its target."""
    return " | ".join(
        f"{part.target}: {' '.join(index.nodes[i].op for i in bits(part.nodes))}"
        for part in plan.partitions
    )
