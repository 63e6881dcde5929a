"""`ir` is onnx_ir and `passes` is `onnx_ir.passes.common`, imported when they are first used.

They take a second to import, and a process that loads an unpacked artifact never uses them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["ir", "passes"]

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnx_ir.passes.common as passes
else:

    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(importlib.import_module(self._name), attribute)

    ir = _Lazy("onnx_ir")
    passes = _Lazy("onnx_ir.passes.common")
