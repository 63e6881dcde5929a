"""Runs a package in Triton's Python backend: `collage package --triton` copies it to `<model>/1/model.py`.

Triton calls one object of this class for each instance, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

PACKAGE = Path(__file__).resolve().parent / "package"


class TritonPythonModel:
    """A package's session behind Triton's calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the package; Triton does not load the model where that fails."""
        sys.path.insert(0, str(PACKAGE))
        import runner

        try:
            self._session = runner.Session(PACKAGE)
        except runner.PackageError as error:
            raise triton.TritonModelException(str(error)) from None
        triton.Logger.log_info(
            f"{args['model_name']}: variant {self._session.variant}, {self._session.why}"
        )
        self._inputs = [spec.name for spec in self._session.get_inputs()]
        self._scalars = {spec.name for spec in self._session.get_inputs() if not spec.shape}

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; a wrong one gets an error of its own."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        names = list(request.requested_output_names())
        tensors = {name: triton.get_input_tensor_by_name(request, name) for name in self._inputs}
        try:
            for name, tensor in tensors.items():
                if tensor is None:
                    raise ValueError(f"input {name!r} is missing")
            feed = {name: tensor.as_numpy() for name, tensor in tensors.items()}
            for name in self._scalars:  # in Triton they have one dimension
                feed[name] = feed[name].reshape(())
            made = [np.atleast_1d(array) for array in self._session.run(names, feed)]
        except Exception as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)))
        return triton.InferenceResponse(
            [triton.Tensor(*pair) for pair in zip(names, made, strict=True)]
        )

    def finalize(self) -> None:
        """Give back memory."""
        self._session.close()
