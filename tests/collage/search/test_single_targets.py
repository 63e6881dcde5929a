"""Which targets are tried on a whole model, what comes of a runtime that takes more than our tables say, and blocks without a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from collage.backends.openvino import backend
from collage.backends.openvino.backend import OpenVinoBackend
from collage.deadline import Deadline
from collage.learning.advice import Advice
from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.cost import Cost, Measured
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.rules import OpPredicateRule
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.target import Target
from collage.search.single_targets import SingleTargets, may_take_all
from tests.collage.stated_world import TARGETS, StatedCosts, World
from tests.partitioner.graphs import text_model
from tests.tuning import tuned

_CHAIN = "g (float[8] x) => (float[8] e) { a = Relu(x) b = Exp(a) c = Relu(b) d = Relu(c) e = Relu(d) }"

_SOFTMAX = "g (float[8] x) => (float[8] y) { y = Softmax(x) }"


def _refusing(name: str, refused: set[str]) -> TargetSpec:
    def supports(index: GraphIndex, node: int) -> str | None:
        return "unknown" if index.nodes[node].op_type in refused else None

    return TargetSpec(Target.parse(name), "graph", supports)


def test_a_target_that_refuses_a_few_nodes_is_tried_on_all() -> None:
    model = text_model(_CHAIN)
    few, most = _refusing("few", {"Exp"}), _refusing("most", {"Relu"})
    ruled = replace(_refusing("ruled", {"Exp"}), rule=OpPredicateRule(name="node"))
    senseless = replace(
        _refusing("senseless", {"Exp"}), refuse_region=lambda index, nodes: "makes no sense"
    )
    specs = [few, most, ruled, senseless, _refusing("all", set())]
    found = enumerate_candidates(model, specs)
    assert [str(target) for target in may_take_all(model.index, specs, found)] == ["few"]


@pytest.mark.slow
def test_a_runtime_that_takes_what_its_table_lacks_is_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever times the runtimes alone would find it; the plan must not be slower than that."""
    monkeypatch.setattr(backend, "OPERATORS", backend.OPERATORS - {"Softmax"})
    body = "  ".join(f"v{i + 1} = Conv<pads = [1,1,1,1]>(v{i}, w)" for i in range(8))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[1,8,16,16] v0) => (float[1,8,16,16] y) {{ {body}  y = Softmax(v8) }}"""
    )
    weights = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32) * 0.1
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    reason = OpenVinoBackend().supports(text_model(_SOFTMAX).index, 0, Target.parse("openvino"))
    assert reason is not None
    report = tuned(model, ["onnxruntime", "openvino"], tmp_path, strategy="single").report
    assert all("latency_us" in baseline for baseline in report["baselines"])


class ProfiledCosts(StatedCosts):
    """Costs of which one target's whole model has a profile, which grows along the model."""

    def row(self, candidate: Candidate) -> SimpleNamespace | None:
        if candidate.target != TARGETS[0]:
            return None
        return SimpleNamespace(node_times_us=[float(i + 1) for i in range(24)])


@pytest.mark.parametrize("seconds", [math.inf, 3.0, 0.0])
def test_blocks_without_a_profile_run_longest_first_within_their_seconds(
    seconds: float,
) -> None:
    world = World(24, 0)
    everything = world.model.index.all_nodes
    now_s = [100.0]

    def truth(candidate: Candidate) -> Cost:
        now_s[0] += 1.0
        return Measured(100.0 * len(bits(candidate.nodes)) if candidate.nodes != everything else 300.0)

    costs = ProfiledCosts(truth, most=len(world.candidates))
    whole = SingleTargets(world.model.index, TARGETS[:2], costs, seconds)
    deadline = Deadline(clock=lambda: now_s[0])
    whole.measure(world.candidates, deadline)
    asked = [c for c in costs.asked if c.nodes != everything]
    assert {c.target for c in asked} <= {TARGETS[1]}
    assert min(len(asked), 4) == min(seconds, 4)
    took = [sum(node + 1 for node in bits(block.nodes)) for block in asked]
    assert took == sorted(took, reverse=True)
    assert whole.latencies_us() == {TARGETS[0]: 300.0, TARGETS[1]: 300.0}
    # Time that was spent stays spent when there are more targets.
    more = whole.joined_by(TARGETS[2:])
    more.measure(world.candidates, deadline)
    assert list(more.latencies_us()) == list(TARGETS)
    again = [c for c in costs.asked if c.nodes != everything]
    assert (len(again) > len(asked)) == (seconds == math.inf)


@pytest.mark.parametrize("known", [(), (TARGETS[0],)])
def test_time_for_one_target_goes_to_one_that_may_be_returned(known: tuple[Target, ...]) -> None:
    world = World(24, 0)
    costs = ProfiledCosts(lambda candidate: Measured(300.0), most=2)
    costs.measure([Candidate(world.model.index.all_nodes, target) for target in known])
    whole = SingleTargets(world.model.index, TARGETS, costs)
    fit = (TARGETS[1],)
    whole.measure(
        world.candidates,
        deadline=Deadline(search_s=0.0, compare_s=0.0),
        may_win=lambda plan: plan.targets == fit,
    )
    assert set(whole.latencies_us()) == {*known, *fit}


class SlowCosts(ProfiledCosts):
    """Costs that take time to find out; what takes twice its limit stays unknown."""

    def __init__(self, seconds: Mapping[Target, float]) -> None:
        super().__init__(lambda candidate: Measured(300.0), most=9)
        self.now_s, self._seconds = 0.0, seconds
        self.tried: list[Target] = []

    def measure(
        self,
        candidates: Sequence[Candidate],
        stop: Callable[[], bool] = lambda: False,
        limit_s: float | None = None,
    ) -> None:
        for candidate in candidates:
            if stop():
                return
            # What was converted is kept, so that a second try is shorter.
            needed_s = self._seconds[candidate.target] / (10 if candidate.target in self.tried else 1)
            self.tried.append(candidate.target)
            if limit_s is not None and needed_s > 2 * limit_s:
                self.now_s += 2 * limit_s
            else:
                self.now_s += needed_s
                super().measure([candidate])


@pytest.mark.parametrize(
    ("seconds", "known", "tried"),
    [
        # All fit.
        ((5.0, 5.0, 5.0), (0, 1, 2), (0, 1, 2)),
        # The first needs more than its share: it waits until the others have had theirs.
        ((40.0, 5.0, 5.0), (1, 2, 0), (0, 1, 2, 0)),
        # It does not fit at all, and takes nothing from the others.
        ((500.0, 5.0, 5.0), (1, 2), (0, 1, 2, 0)),
        # None does within its share, so one is measured however late it is.
        ((500.0, 400.0, 600.0), (0,), (0, 1, 0)),
    ],
)
def test_first_timings_share_the_time(
    seconds: tuple[float, ...], known: tuple[int, ...], tried: tuple[int, ...]
) -> None:
    world = World(24, 0)
    costs = SlowCosts(dict(zip(TARGETS, seconds, strict=True)))
    whole = SingleTargets(world.model.index, TARGETS, costs, probing_s=0.0)
    deadline = Deadline(search_s=70.0, compare_s=70.0, clock=lambda: costs.now_s)
    whole.measure(world.candidates, deadline)
    assert [TARGETS.index(candidate.target) for candidate in costs.asked] == list(known)
    assert [TARGETS.index(target) for target in costs.tried] == list(tried)
    assert costs.now_s <= 70.0 or max(seconds) > 70.0


class StatedAdvice(Advice):
    """The last target first; targets that need not run beside another one."""

    def __init__(self, useless: Sequence[Target]) -> None:
        super().__init__()
        object.__setattr__(self, "useless", useless)

    def in_order(self, targets: Sequence[Target]) -> list[Target]:
        return list(reversed(targets))

    def against(self, target: Target, base: Target) -> str | None:
        assert target != base
        return "left out: it is of no use" if target in self.useless else None


@pytest.mark.parametrize("late", [False, True])
def test_advice_orders_targets_and_leaves_some_out(late: bool) -> None:
    world = World(24, 0)
    costs = SlowCosts(dict.fromkeys(TARGETS, 1.0))
    whole = SingleTargets(world.model.index, TARGETS, costs, 0.0, StatedAdvice(TARGETS))
    end_s = 0.0 if late else 70.0
    deadline = Deadline(search_s=end_s, compare_s=end_s, clock=lambda: costs.now_s)
    whole.measure(world.candidates, deadline)
    # The first one runs in any case, and the others are of no use beside it.
    assert costs.tried == [TARGETS[2]]
    assert set(whole.left_out) == set(TARGETS[:2])
    costs = SlowCosts(dict.fromkeys(TARGETS, 1.0))
    costs.measure([Candidate(world.model.index.all_nodes, TARGETS[0])])
    whole = SingleTargets(world.model.index, TARGETS, costs, 0.0, StatedAdvice(TARGETS[1:2]))
    whole.measure(world.candidates)
    assert whole.left_out == {TARGETS[1]: "left out: it is of no use"}
    assert costs.tried == [TARGETS[0], TARGETS[2]]
    assert list(whole.latencies_us()) == [TARGETS[0], TARGETS[2]]
    assert not any(str(TARGETS[1]) in said for said in whole.untried())
    assert whole.fastest_first() == [TARGETS[0], TARGETS[2]]
