"""The options of a diagnosis, as one frozen value for HTTP and the command line with a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from collage.backends.numerics.comparison import Metric
from collage.diagnosis.request import DiagnoseRequest
from collage.options import TuneOptions, read_options
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target

# What a diagnosis has in common with a tuning of the same model.
COMMON = ("tolerance", "metric", "dims", "threads", "seed")
_MOST_SIZE = 2**31 - 1
_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class DiagnoseOptions(pydantic.BaseModel):
    """Options of one diagnosis: the one place of their names, defaults, limits and descriptions."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    tolerance: float = Field(default=1e-3, gt=0, le=1, description="Largest error that is right.")
    metric: Metric = Field(default="max", description="max, l2, cosine or top1.")
    dims: Mapping[_Name, Annotated[int, Field(ge=0, le=_MOST_SIZE)]] = Field(
        default={}, max_length=1000, description="Size of a free dimension, as batch=1."
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads of one call [all cores]."
    )
    seed: int = Field(default=0, ge=0, le=_MOST_SIZE, description="Seed of generated inputs.")
    against: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="The target to compare speed with [the fastest other one].",
    )
    against_environment: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="A name in COLLAGE_ENVIRONMENTS of the server, whose runtime is compared instead.",
    )
    trials: int = Field(default=40, ge=1, le=1000, description="How many runs may look for faults.")
    timeout_s: float = Field(
        default=60.0, ge=1, le=3600, description="Seconds after which a run is said to hang."
    )
    all_nodes: bool = Field(
        default=False, description="Also run nodes that the target's guard refuses."
    )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DiagnoseOptions:
        """Read options as the API sends them.

        Raises:
            OptionsError: an option is unknown or its value is not allowed; the message lists all faults.
        """
        return read_options(cls, data)

    def as_json(self) -> dict[str, Any]:
        """What was given, as `from_json` takes it."""
        return self.model_dump(mode="json", exclude_unset=True)

    def request(
        self,
        source: Path,
        target: str,
        output: Path,
        inputs: Path | None = None,
        environments: Mapping[str, str] | None = None,
    ) -> DiagnoseRequest:
        """What is asked of `diagnose`.

        Args:
            source: an ONNX file, or a zip with an ONNX file and its external data.
            target: what is looked at.
            output: folder for what is found.
            inputs: samples as .npz; None for seeded ones.
            environments: interpreters by name.

        Raises:
            BadInputError: there is no such environment.
            TargetError: a target is misspelled.
        """
        python = None
        if self.against_environment is not None:
            known = environments or {}
            if self.against_environment not in known:
                names = ", ".join(sorted(known)) or "none"
                raise BadInputError(
                    f"there is no environment {self.against_environment!r}; COLLAGE_ENVIRONMENTS names: {names}"
                )
            python = Path(known[self.against_environment])
        common = self.model_dump(mode="json", include=set(COMMON), exclude_none=True)
        return DiagnoseRequest(
            source=source,
            target=Target.parse(target),
            output=output,
            options=TuneOptions.from_json(common),
            inputs=inputs,
            against=None if self.against is None else Target.parse(self.against),
            against_python=python,
            most_trials=self.trials,
            timeout_s=self.timeout_s,
            all_nodes=self.all_nodes,
        )
