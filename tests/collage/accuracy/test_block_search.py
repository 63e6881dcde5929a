"""The search of blocks looks at the clock, and begins where most is to be gained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from collage.accuracy.block_search import BlockSearch
from collage.accuracy.mix_partitions import MixPartition
from collage.accuracy.mix_runner import MixRunner
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.step import Step
from tests.collage.accuracy.test_mix_runner import EXACT, LAYERS, REDUCED, layers, request_for

FASTER = Target.parse("simulated -precision=f16 -speedup=2")
COUNT = 2 * LAYERS
# Of each node on the reduced target; the model is a chain, and each node a block.
REDUCED_US = tuple(float(us) for us in (7, 19, 3, 11, 2, 13, 17, 5, 18, 1, 12, 9))


class Clock:
    """Stands until somebody moves it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@contextmanager
def _search(folder: Path, budget_s: float) -> Iterator[BlockSearch]:
    request = replace(
        request_for(layers(folder), folder, (EXACT, REDUCED)),
        targets=(EXACT, REDUCED, FASTER),
        times_us=((20.0,) * COUNT, REDUCED_US, (1.0,) * COUNT),
        budget_s=budget_s,
    )
    compiled = CompiledRegions(1)
    yield BlockSearch(request, Model.open(request.model), compiled)
    compiled.close()


def test_first_blocks_are_compiled_until_their_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve exact blocks take 12 s of 40, and the reduced ones have a quarter after that, the other target none."""
    clock, made = Clock(), []
    compile_one = MixRunner.step

    def slow(runs: MixRunner, part: MixPartition, joined: bool = False) -> Step | None:
        if part not in runs.steps:
            clock.now_s += 1.0
            made.append(part)
        return compile_one(runs, part, joined)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("collage.accuracy.block_search.time", clock)
    monkeypatch.setattr(MixRunner, "step", slow)
    with _search(tmp_path, budget_s=40.0) as search:
        reduced = [part for part in made if part.target]
        assert [part.target for part in reduced] == [1] * 10
        # Where it saves most comes first.
        by_saving = sorted(range(COUNT), key=REDUCED_US.__getitem__)
        assert [part.nodes for part in reduced] == [search.blocks[i].nodes for i in by_saving[:10]]
        usable = [i for i, block in enumerate(search.blocks) if block.times_us[1] < 20.0]
        assert usable == sorted(by_saving[:10])
        assert all(block.times_us[2] == float("inf") for block in search.blocks)


def test_without_time_no_mix_is_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with _search(tmp_path, budget_s=0.0) as search:
        found = search.go()
    assert (found.best, found.tried, found.bounds) == (((),), (), (1.0,))
