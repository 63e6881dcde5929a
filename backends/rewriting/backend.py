"""What backends with `-rewrite` have in common."""

from __future__ import annotations

from collage.backends.contract import Backend, Rewriting
from collage.backends.rewriting import rewrite
from collage.backends.rewriting.promising import promising
from collage.backends.rewriting.table import passes_of
from collage.backends.whole_model import WholeModel
from collage.partitioner.target import Target


class RewritingBackend(Backend):
    """Rewrites sub-models by graph passes while it compiles them (`-rewrite`)."""

    def rewriting(self, target: Target) -> Rewriting | None:
        return Rewriting(rewrite.EDITION, rewrite.REWRITER) if passes_of(target) else None

    def variants(self, target: Target, model: WholeModel) -> tuple[Target, ...]:
        """Those of the contract, and the whole model rewritten where that changes much."""
        found = promising(target, model)
        usable = [variant for variant in found if self.check_target(variant) is None]
        return (*super().variants(target, model), *usable)
