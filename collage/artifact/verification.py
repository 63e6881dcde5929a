"""Reference values small enough to travel in the artifact, by which `load` verifies every partition.

For seeded inputs the artifact keeps some hundred elements, the mean and the root mean square of every
output and every value between partitions. Several seeds are used, since one input can hide a wrong
kernel.

Invariant: the elements kept depend on the value's size alone, never on chance or on a library.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collage.backends.numerics.comparison import (
    Expected,
    Ranged,
    is_beyond,
    is_measured,
)
from collage.backends.numerics.tensor_files import content
from collage.partitioner.errors import CollageError

VERIFICATION_KEY = "collage.verification"
_ELEMENTS = 256
# Knuth's multiplier for hashing: coprime to every size below it, so no element comes twice early.
_STRIDE = 2654435761
_SMALLEST_SCALE = 1e-30
# A value that rounding moves everywhere alike differs by a thousandth of so many times that at the most.
_ROUNDED_SCALE = 1e3


class VerificationError(CollageError):
    """A plan cannot be compared with the reference values of its artifact."""


@dataclass(frozen=True)
class ValueDigest:
    """What is kept of one value for one seed."""

    shape: tuple[int, ...]  # of the value
    elements: np.ndarray  # some hundred of its elements
    mean: float  # of all finite elements
    rms: float  # root mean square of all finite elements
    scale: float  # largest magnitude of all finite elements; errors are relative to it
    # positions among `elements` that are numeric ties (`collage.model.numeric_ties`); None where the
    # value has none
    undecided: tuple[int, ...] | None = None
    # how many elements are finite, and how many NaN; None in older artifacts
    counts: tuple[int, int] | None = None

    @classmethod
    def of(cls, reference: Expected) -> ValueDigest:
        value = reference.value if isinstance(reference, Ranged) else reference
        flat = np.ascontiguousarray(value).reshape(-1)
        count = min(flat.size, _ELEMENTS)
        positions = (np.arange(count, dtype=np.uint64) * _STRIDE) % max(flat.size, 1)
        wide = np.zeros(1) if flat.dtype == object or not flat.size else flat.astype(np.float64)
        is_finite = np.isfinite(wide)
        finite = wide[is_finite] if is_finite.any() else np.zeros(1)
        undecided = None
        scale = float(np.abs(finite).max())
        if isinstance(reference, Ranged) and (moved := reference.rounding):
            scale = max(scale, _ROUNDED_SCALE * moved)
        elif isinstance(reference, Ranged):
            kept = reference.undecided.reshape(-1)[positions.astype(np.int64)]
            undecided = tuple(np.flatnonzero(kept).tolist())
        return cls(
            tuple(value.shape),
            _storable(flat[positions.astype(np.int64)]),
            float(finite.mean()),
            float(np.sqrt(np.mean(finite**2))),
            scale,
            undecided,
            (int(np.count_nonzero(is_finite)), int(np.count_nonzero(np.isnan(wide)))),
        )

    def error_of(self, value: np.ndarray) -> float:
        """Relative error of another value against this digest; infinite where they cannot be compared.

        For integers (8-bit ones apart), booleans and text it is the share of elements that differ; of another shape of
        the same rank it is 1, which only a tolerance of 1 allows.
        """
        other = ValueDigest.of(value)
        if other.elements.dtype != self.elements.dtype:
            return float("inf")
        if other.shape != self.shape:
            return 1.0 if len(other.shape) == len(self.shape) else float("inf")
        elements, others = (np.delete(e, self.undecided or ()) for e in (self.elements, other.elements))
        scale = max(self.scale, _SMALLEST_SCALE)
        moments = 0.0
        is_same_set = True  # of finite elements
        if self.counts is not None and other.counts is not None:
            is_same_set = other.counts[0] == self.counts[0]
            if other.counts[0] < self.counts[0] or other.counts[1] > self.counts[1]:
                return float("inf")
        if self.undecided is None and is_same_set:
            moments = max(abs(other.rms - self.rms), abs(other.mean - self.mean)) / scale
        if not elements.size:
            return moments
        if self.is_exact:
            return max(moments, float(np.mean(others != elements)))
        finite = np.isfinite(elements)
        if is_beyond(others, elements).any():
            return float("inf")
        differences = np.abs(others[finite].astype(complex) - elements[finite])
        return max(moments, float(differences.max(initial=0.0)) / scale)

    @property
    def is_exact(self) -> bool:
        """Whether its elements are compared for equality."""
        return not is_measured(self.elements.dtype)

    def as_json(self) -> dict[str, Any]:
        """The digest as JSON-ready data."""
        return {
            "shape": list(self.shape),
            "dtype": self.elements.dtype.name,
            "elements": base64.b64encode(self.elements.tobytes()).decode("ascii"),
            "mean": self.mean,
            "rms": self.rms,
            "scale": self.scale,
            **({} if self.undecided is None else {"undecided": list(self.undecided)}),
            **({} if self.counts is None else {"counts": list(self.counts)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ValueDigest:
        """Read what `as_json` wrote."""
        elements = np.frombuffer(base64.b64decode(data["elements"]), dtype=np.dtype(data["dtype"]))
        mean, rms, scale = (float(data[name]) for name in ("mean", "rms", "scale"))
        undecided = data.get("undecided")
        known = None if undecided is None else tuple(map(int, undecided))
        counts = data.get("counts")
        both = None if counts is None else (int(counts[0]), int(counts[1]))
        return cls(tuple(data["shape"]), elements, mean, rms, scale, known, both)


@dataclass(frozen=True)
class Verification:
    """Digests of one or more seeded runs."""

    seeds: tuple[int, ...]  # of the inputs
    inputs: tuple[Mapping[str, str], ...]  # per seed the SHA-256 of each input's bytes
    values: tuple[Mapping[str, ValueDigest], ...]  # per seed the digest of each value, by name
    tolerance: Mapping[str, float]  # the relative error that each value may have, by name
    # what the seeded values of integer inputs stay below, where a short table says so
    bounds: Mapping[str, int] = field(default_factory=dict)
    # the inputs themselves, where the model cannot run on seeded ones; empty where it can
    given: tuple[Mapping[str, np.ndarray], ...] = ()

    def error_of(self, seed_position: int, name: str, value: np.ndarray) -> float:
        """The error of a value; 0 for one that was not kept."""
        digest = self.values[seed_position].get(name)
        return 0.0 if digest is None else digest.error_of(value)

    @property
    def of_one_sample(self) -> Verification:
        """The same for the first sample alone."""
        return replace(
            self,
            seeds=self.seeds[:1],
            inputs=self.inputs[:1],
            values=self.values[:1],
            given=self.given[:1],
        )

    def to_text(self) -> str:
        """As JSON text for the artifact's metadata."""
        return json.dumps(
            {
                "seeds": list(self.seeds),
                "inputs": [dict(hashes) for hashes in self.inputs],
                "values": [{n: d.as_json() for n, d in values.items()} for values in self.values],
                "tolerance": dict(self.tolerance),
                "bounds": dict(self.bounds),
                **({"given": [_as_json(sample) for sample in self.given]} if self.given else {}),
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Verification:
        """Read what `to_text` wrote.

        Raises:
            VerificationError: the text is damaged.
        """
        try:
            data = json.loads(text)
            values = tuple(
                {name: ValueDigest.from_json(digest) for name, digest in seed.items()}
                for seed in data["values"]
            )
            return cls(
                seeds=tuple(data["seeds"]),
                inputs=tuple(data["inputs"]),
                values=values,
                tolerance=data["tolerance"],
                bounds=data.get("bounds", {}),
                given=tuple(map(_from_json, data.get("given", ()))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise VerificationError(f"the artifact's reference values are damaged: {error}") from None


def _as_json(sample: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {
            "shape": list(value.shape),
            "dtype": value.dtype.name,
            "data": [str(text) for text in value.reshape(-1)]
            if value.dtype == object
            else base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii"),
        }
        for name, value in sample.items()
    }


def _from_json(sample: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    found = {}
    for name, value in sample.items():
        if value["dtype"] == "object":
            flat = np.array(value["data"], dtype=object)
        else:
            flat = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"])).copy()
        found[name] = flat.reshape(value["shape"])
    return found


def input_hashes(sample: Mapping[str, np.ndarray]) -> dict[str, str]:
    """SHA-256 of each input's bytes."""
    return {name: hashlib.sha256(content(value)).hexdigest() for name, value in sample.items()}


def digest_values(runs: Sequence[Mapping[str, Expected]]) -> tuple[dict[str, ValueDigest], ...]:
    return tuple({name: ValueDigest.of(value) for name, value in run.items()} for run in runs)


def _storable(elements: np.ndarray) -> np.ndarray:
    # Text has no fixed size, and small floats have no portable bytes: keep hashes and float32.
    if elements.dtype == object:
        hashes = [hashlib.sha256(str(e).encode()).digest()[:8] for e in elements]
        return np.array([int.from_bytes(h, "little") for h in hashes], dtype=np.uint64)
    if elements.dtype.kind == "V" or elements.dtype.name.startswith(("bfloat", "float8")):
        return elements.astype(np.float32)
    return elements
