"""Mixes as they are run in blocks, and as the plans that they become."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from collage.accuracy.block_search import BlockSearch
from collage.accuracy.error_model import fit_shares, mix_of, targets_of, time_us
from collage.accuracy.merged_mixes import BORDER_FACTOR, MergedMixes, flips, neighbors
from collage.accuracy.mix_partitions import MixPartition
from collage.accuracy.mix_runner import BlockSearchRequest, MixResult
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import check_options
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor

LAYERS, WIDTH = 6, 64
INFINITE = float("inf")
EXACT = Target.parse("simulated -precision=f32 -speedup=0.5")
REDUCED = Target.parse("simulated -precision=bf16 -speedup=1")


def layers(folder: Path) -> Path:
    """Matrix products with Relu, each of about the same weight in the output's error."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(LAYERS):
        values = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH / 2)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"r{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i + 1}"]))
    given, made = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, WIDTH])
        for name in ("r0", f"r{LAYERS}")
    )
    graph = helper.make_graph(nodes, "layers", [given], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "layers.onnx")
    return normalize(folder / "layers.onnx", folder / "normalized", {}).path


def convolutions(folder: Path) -> Path:
    """Convolutions with batch normalization, which runtimes fold into their weights."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    for i in range(3):
        kernel = weight(f"w{i}", rng.standard_normal((8, 8, 3, 3)) / 8)
        scale, mean = (weight(f"{n}{i}", rng.standard_normal(8)) for n in ("s", "m"))
        variance = weight(f"v{i}", rng.uniform(0.5, 2, 8))
        nodes.append(helper.make_node("Conv", [f"r{i}", kernel], [f"c{i}"], pads=[1, 1, 1, 1]))
        given = [f"c{i}", scale, mean, mean, variance]
        nodes.append(helper.make_node("BatchNormalization", given, [f"n{i}"]))
        nodes.append(helper.make_node("Relu", [f"n{i}"], [f"r{i + 1}"]))
    ends = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 16, 16])
        for name in ("r0", "r3")
    )
    graph = helper.make_graph(nodes, "convolutions", *([end] for end in ends), weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "convolutions.onnx")
    return normalize(folder / "convolutions.onnx", folder / "normalized", {}).path


def request_for(path: Path, folder: Path, targets: tuple[Target, Target]) -> BlockSearchRequest:
    """What to try with four samples."""
    model = Model.open(path)
    (given,) = (model.index.values[name] for name in model.index.inputs)
    samples = [
        {given.name: np.random.default_rng(seed).standard_normal(given.static_shape, np.float32)}
        for seed in range(4)
    ]
    session = reference_session(path)
    write_samples(folder / "samples", samples)
    outputs = list(model.index.outputs)
    write_samples(folder / "expected", [run_session(session, s, outputs) for s in samples])
    count = len(model.index.nodes)
    return BlockSearchRequest(
        model=path,
        targets=targets,
        times_us=((20.0,) * count, (10.0,) * count),
        inputs=(given,),
        samples_file=folder / "samples",
        expected_file=folder / "expected",
        used_samples=2,
        metric="max",
        counted=False,
        error_limits=(4e-3,),
        threads=1,
    )


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockSearch]:
    monkeypatch.chdir(tmp_path)
    request = request_for(layers(tmp_path), tmp_path, (EXACT, REDUCED))
    compiled = CompiledRegions(1)
    yield BlockSearch(request, Model.open(request.model), compiled)
    compiled.close()


@pytest.mark.slow
@pytest.mark.parametrize("reduced", [REDUCED, Target.parse("openvino -precision=bf16")], ids=str)
def test_the_exact_start_of_a_plan_is_computed_as_in_the_plan(
    reduced: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO folds across blocks; the last bits that this changes decide where bf16 rounds."""
    monkeypatch.chdir(tmp_path)
    if (reason := check_options(reduced).check_target(reduced)) is not None:
        pytest.skip(reason)
    request = request_for(convolutions(tmp_path), tmp_path, (Target.parse("openvino"), reduced))
    model = Model.open(request.model)
    compiled = CompiledRegions(1)
    runs = BlockSearch(replace(request, cuts=tuple(range(10))), model, compiled).runs
    mix = mix_of(runs.blocks, [0] * 6 + [1] * 3, 2)
    start, rest = (sum(block.nodes for block in part) for part in (runs.blocks[:6], runs.blocks[6:]))
    found = [made["r3"] for made in runs.outputs(mix, slice(None), joined=True)]
    steps = [
        step for part in ((start, 0), (rest, 1)) if (step := runs.step(MixPartition(*part))) is not None
    ]
    whole = Executor(steps, request.inputs, ["r3"])
    whole.bind()
    for sample, made in zip(runs.samples, found, strict=True):
        whole.feed(sample)
        whole.run()
        np.testing.assert_array_equal(whole.results()["r3"], made)
    compiled.close()


def test_neighbors_of_one_target_are_joined(trials: BlockSearch) -> None:
    blocks = [block.nodes for block in trials.blocks]
    assert len(blocks) == 2 * LAYERS
    chosen = [0, 1, 1, 0, 0, 0, 1, *[0] * (len(blocks) - 7)]
    mix = mix_of(trials.blocks, chosen, 2)
    apart = [MixPartition(*block) for block in zip(blocks[1:], chosen[1:], strict=True)]
    assert trials.runs.parts(mix, joined=False) == apart
    assert trials.runs.parts(mix, joined=True) == [
        MixPartition(blocks[1] | blocks[2], 1),
        MixPartition(blocks[3] | blocks[4] | blocks[5], 0),
        MixPartition(blocks[6], 1),
        MixPartition(sum(blocks[7:]), 0),
    ]


@pytest.fixture
def int8_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockSearch]:
    """Three blocks of a convolution with its normalization, on OpenVINO in fp32 and int8."""
    monkeypatch.chdir(tmp_path)
    targets = (Target.parse("openvino"), Target.parse("openvino -quant=static_int8"))
    request = replace(request_for(convolutions(tmp_path), tmp_path, targets), error_limits=(0.05,))
    compiled = CompiledRegions(1)
    yield BlockSearch(replace(request, cuts=(0, 3, 6, 9)), Model.open(request.model), compiled)
    compiled.close()


@pytest.mark.slow
def test_int8_and_float_of_one_runtime_are_compiled_as_one(int8_trials: BlockSearch) -> None:
    trials = int8_trials
    mix = mix_of(trials.blocks, [0, 1, 0], 2)
    (part,) = trials.runs.parts(mix, joined=True)
    first, second, third = (block.nodes for block in trials.blocks)
    assert part == MixPartition(first | second | third, 1, others=first | third)
    assert str(part.on(trials.request.targets)) == "openvino -float=0-2,6-8 -quant=static_int8"
    error, everything = trials.runs.joined_error(mix), trials.runs.joined_error((part.nodes,))
    assert 1e-5 < error < everything
    in_blocks = max(trials.error(mix), trials.runs.held_out_error(mix))
    assert error == pytest.approx(in_blocks, rel=0.3)
    (proposed,) = trials.go().best
    assert proposed and all(mix.error <= 0.05 for mix in proposed)


@pytest.mark.slow
def test_blocks_are_tried_before_what_must_be_compiled(int8_trials: BlockSearch) -> None:
    trials = int8_trials
    pieces = MergedMixes(trials.runs, trials.blocks, trials.shares(0.02), INFINITE, in_blocks=True)
    found = pieces.seek(0.02, [])
    assert not trials.runs.joined_errors
    assert found and all(trials.error(mix.reduced) <= 0.02 for mix in found)
    times = [time_us(trials.blocks, targets_of(trials.blocks, m.reduced), BORDER_FACTOR) for m in found]
    assert times == sorted(times)


@pytest.mark.slow
def test_proposed_mix_keeps_the_goal_on_every_sample(trials: BlockSearch) -> None:
    """As a whole plan."""
    (goal,) = trials.request.error_limits
    (proposed,) = trials.go().best
    whole = mix_of(trials.blocks, [1] * len(trials.blocks), 2)
    assert trials.error(whole) > goal  # else nothing had to be chosen
    assert proposed
    for mix in proposed:
        found = [trials.runs.step(part) for part in trials.runs.parts(mix.reduced, not mix.apart)]
        steps = [step for step in found if step is not None]
        assert len(steps) == len(found)
        executor = Executor(steps, steps[0].inputs, list(trials.model.index.outputs))
        executor.bind()
        known = zip(trials.runs.samples, trials.runs.known_values, trials.runs.expected, strict=True)
        for sample, values, expected in known:
            executor.feed({**sample, **values})
            executor.run()
            made = executor.results()
            error = output_error("max", [made[name] for name in expected], list(expected.values()))
            assert error <= goal


def test_a_goal_bounds_the_speed_that_a_mix_is_promised(trials: BlockSearch) -> None:
    (goal,) = trials.request.error_limits
    found = trials.go()
    exact_us = sum(block.times_us[0] for block in trials.blocks)
    everything = exact_us / sum(block.times_us[1] for block in trials.blocks)
    assert trials.bound(1e-9) == 1.0
    assert trials.bound(1.0) == pytest.approx(everything)
    assert found.bounds == (trials.bound(goal),)
    assert 1.0 < trials.bound(goal) < everything


@pytest.mark.slow
def test_a_faster_mix_of_few_pieces_is_found_than_of_blocks(trials: BlockSearch) -> None:
    """All blocks err about the same, so that what keeps the goal may stand together."""
    (goal,) = trials.request.error_limits
    count = len(trials.blocks)
    blocks = [replace(block, border_us=2.0) for block in trials.blocks]
    # Every second block keeps the goal too, with a border on each side.
    scattered = mix_of(blocks, [i % 2 for i in range(count)], 2)
    pieces = MergedMixes(trials.runs, blocks, trials.shares(goal), INFINITE)
    found = pieces.seek(goal, [MixResult(scattered, 0.0)])
    chosen = targets_of(blocks, found[0].reduced)
    assert 0 < sum(a != b for a, b in itertools.pairwise(chosen)) <= 4
    assert sum(chosen) > 1
    in_blocks = time_us(blocks, targets_of(blocks, scattered), BORDER_FACTOR)
    assert time_us(blocks, chosen, BORDER_FACTOR) < in_blocks
    assert all(trials.runs.joined_errors[mix.reduced] <= goal for mix in found)
    # The fastest, for none of its neighbors is faster and keeps the goal.
    faster = [
        mix
        for other in neighbors(chosen)
        if time_us(blocks, other, BORDER_FACTOR) < time_us(blocks, chosen, BORDER_FACTOR)
        and trials.runs.joined_errors.get(mix := mix_of(blocks, other, 2), INFINITE) <= goal
    ]
    assert not faster


def test_neighbors_of_a_mix_that_keeps_the_goal_are_tried(
    trials: BlockSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.accuracy.merged_mixes._AMBITIONS", ())
    (goal,) = trials.request.error_limits
    blocks = [replace(block, border_us=2.0) for block in trials.blocks]
    first = mix_of(blocks, [0] * (len(blocks) - 1) + [1], 2)
    assert trials.runs.joined_error(first) <= goal
    pieces = MergedMixes(trials.runs, blocks, trials.shares(goal), INFINITE)
    # Measured times of mixes this short do not show which is the fastest.
    monkeypatch.setattr(
        pieces, "_pace", lambda mix: time_us(blocks, targets_of(blocks, mix), BORDER_FACTOR)
    )
    best = pieces.seek(goal, [])[0].reduced
    assert best != first
    best_us = time_us(blocks, targets_of(blocks, best), BORDER_FACTOR)
    errors = trials.runs.joined_errors
    shares = fit_shares(blocks, trials.shares(goal), errors, goal)
    promising = [
        other
        for mix, error in errors.items()
        if error <= goal
        for other in neighbors(targets_of(blocks, mix))
        if time_us(blocks, other, BORDER_FACTOR) < best_us
        and sum(shares[i, t] for i, t in enumerate(other)) <= goal**2
    ]
    assert all(mix_of(blocks, other, 2) in errors for other in promising)


@pytest.mark.slow
def test_few_pieces_stay_compiled(trials: BlockSearch) -> None:
    count = len(trials.blocks)
    for start in range(count - 1):
        chosen = [1 if start <= i <= start + 1 else 0 for i in range(count)]
        trials.runs.joined_error(mix_of(trials.blocks, chosen, 2))
    blocks = {block.nodes for block in trials.blocks}
    assert sum(part.nodes not in blocks for part in trials.runs.steps) <= 6
    first = mix_of(trials.blocks, [1, 1] + [0] * (count - 2), 2)
    known = trials.runs.joined_errors.pop(first)
    assert trials.runs.joined_error(first) == known  # compiled anew


def test_neighbors_shift_a_border_or_give_a_piece_away() -> None:
    found = set(neighbors((0, 0, 0, 1, 1, 0)))
    assert (0, 0, 1, 1, 1, 0) in found
    assert (0, 1, 1, 1, 1, 0) in found
    assert (1, 1, 1, 1, 1, 0) in found
    assert (0, 0, 0, 0, 1, 0) in found
    assert (0, 0, 0, 0, 0, 0) in found
    assert (0, 0, 0, 1, 1, 1) in found
    assert all(len(mix) == 6 for mix in found)
    assert not set(neighbors((1, 1, 1)))


def test_a_plan_that_a_runtime_refuses_keeps_no_goal(trials: BlockSearch) -> None:
    """Each block may be reduced, but not all in one partition."""
    whole = mix_of(trials.blocks, [1] * len(trials.blocks), 2)
    trials.runs.refused.add(MixPartition(sum(block.nodes for block in trials.blocks), 1))
    assert trials.runs.joined_error(whole) == float("inf")
    assert trials.error(whole) < float("inf")


def test_single_blocks_are_flipped_inside_partitions_alone() -> None:
    inside = frozenset({(0, 1), (1, 0)})
    assert set(flips((0, 1, 2), inside)) == {(1, 1, 2), (0, 0, 2)}
    assert not set(flips((0, 1, 2), frozenset()))


@pytest.mark.slow
def test_no_block_begins_with_a_normalization(int8_trials: BlockSearch) -> None:
    ops = [int8_trials.model.index.nodes[node].op_type for node in int8_trials.laid.order]
    assert "BatchNormalization" in ops
    assert all(ops[cut] != "BatchNormalization" for cut in int8_trials.laid.cuts[:-1])


@pytest.mark.slow
def test_a_mix_that_is_one_partition_is_not_proposed_in_blocks(int8_trials: BlockSearch) -> None:
    first = int8_trials.blocks[0].nodes
    assert int8_trials.all_inside(MixResult((first,), 0.0))
    int8_trials.runs.inside = frozenset()
    assert not int8_trials.all_inside(MixResult((first,), 0.0))
