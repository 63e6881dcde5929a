"""What backends with `-quant` and `-float` have in common."""

from __future__ import annotations

from collage.backends.contract import Backend, CompileContext, Preparation, PreparedParts, SubModel
from collage.backends.quantization import kinds, quantize
from collage.backends.quantization.float_nodes import keeping, kept_nodes, without_float
from collage.backends.quantization.smoothing import is_smooth
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target


class QuantizingBackend(Backend):
    """Writes int8 into sub-models, in which some nodes may stay float."""

    kernels = quantize.Kernels()

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        return kinds.refuse_region(index, nodes, target)

    def preparation(self, target: Target) -> Preparation | None:
        return quantize.preparation(target, self.kernels)

    def prepare(self, model: SubModel, target: Target, context: CompileContext) -> SubModel:
        return quantize.quantize(model, target, context, self.kernels)

    def mixes_rows(self, target: Target) -> bool:
        return kinds.kind_of(target) == kinds.DYNAMIC

    def unprepared(self, target: Target) -> Target:
        return kinds.without_quant(target)

    def mixes_with(self, target: Target, other: Target) -> bool:
        return _may_keep_float(target) and other == kinds.without_quant(target)

    def mix(self, target: Target, nodes: int, others: int) -> Target:
        return keeping(target, nodes, others) if _may_keep_float(target) else target

    def unmix(self, target: Target, nodes: int) -> tuple[Target, int]:
        return without_float(target), kept_nodes(target, nodes)

    def prepared_parts(self, model: SubModel, prepared: SubModel) -> PreparedParts | None:
        return quantize.Int8Parts(prepared, model)


def _may_keep_float(target: Target) -> bool:
    return kinds.kind_of(target) in kinds.MIXED and not is_smooth(target)
