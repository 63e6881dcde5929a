"""A plan compiled several times, to run several requests at once.

Terms: an *instance* is an executor with buffers of its own. Instances share weights where a runtime can
(`Executable.another`), and each has its share of the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step


@dataclass(frozen=True)
class PlannedStep:
    """A partition before it is compiled: its name among `CompiledRegions`, its model and its target."""

    name: str
    model: SubModel
    target: Target


def executors(
    compiled: CompiledRegions,
    steps: Sequence[PlannedStep],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    *,
    lanes: int = 1,
    instances: int = 1,
) -> list[Executor]:
    """Compile a plan so many times; each executor is bound.

    Args:
        compiled: made for so many instances.
        steps: the partitions in execution order.
        inputs: of the graph.
        outputs: names of the graph's outputs that steps make.
        lanes: how many steps of one instance may run at once.
        instances: how many executors.

    Raises:
        CompileError: a runtime refused a partition.
    """
    made = []
    for instance in range(instances):
        own = [
            Step(
                compiled.another(step.name, step.model, step.target, instance),
                step.model.inputs,
                step.model.outputs,
            )
            for step in steps
        ]
        executor = Executor(own, inputs, outputs, lanes)
        executor.bind()
        made.append(executor)
    return made
