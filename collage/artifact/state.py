"""What a session keeps from one call for the next: outputs that feed inputs, such as a decoder's cache.

Terms: an output is *bound to* an input when its value feeds that input at the next call. The *state* is
the values that wait. At the start it is empty: zeros, or size 0 along free dimensions.

Invariants: an input has at most one output, and an output feeds at most one input. A value stays in the
array that its runtime made; nobody else writes to it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec

# From the names of outputs and all inputs to the outputs.
Compute = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[np.ndarray]]


class State:
    """The bound pairs of a session and the values that wait for the next call.

    Args:
        inputs: the model's inputs.
        outputs: the model's outputs.
        dims: by input the names of its free dimensions, by axis; an axis without a name has size 0 at the
            start, as has one whose name no fed input has.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        dims: Mapping[str, Mapping[int, str]] | None = None,
    ) -> None:
        self._inputs = {spec.name: spec for spec in inputs}
        self._dims = dims or {}
        self._outputs = {spec.name: spec for spec in outputs}
        self._lock = threading.Lock()
        self.pairs: dict[str, str] = {}  # from output to input
        self._values: dict[str, np.ndarray] = {}  # by input

    @property
    def names(self) -> set[str]:
        """The names of bound outputs and inputs."""
        return {*self.pairs, *self.pairs.values()}

    def bind(self, outputs: str, inputs: str) -> dict[str, str]:
        """Bind outputs to inputs; see `Session.bind_output_to_input`. Returns the new pairs."""
        pairs = _pairs(outputs, inputs, self._outputs)
        for output, given in pairs.items():
            _check(output, given, self._outputs, self._inputs)
            taken = [o for o, i in {**self.pairs, **pairs}.items() if i == given and o != output]
            if taken:
                raise BadInputError(
                    f"input {given!r} is bound to output {taken[0]!r} already; an input has one output"
                )
        with self._alone():
            self.pairs |= pairs
            self._values.clear()
        return pairs

    def reset(self) -> None:
        """Forget the values, so that the next call starts anew."""
        with self._alone():
            self._values.clear()

    def run(
        self, compute: Compute, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Compute outputs with the state, and keep those that are bound.

        Args:
            compute: makes outputs from all inputs; bound ones are new arrays.
            output_names: None for all that are not bound.
            feed: bound inputs may be left out.

        Raises:
            BadInputError: another call is running, or `compute` raises it; the state is then as before.
        """
        with self._alone():
            names = [n for n in self._outputs if n not in self.pairs]
            names = names if output_names is None else list(output_names)
            asked = list(dict.fromkeys((*names, *self.pairs)))
            whole = self.complete(feed)
            made = dict(zip(asked, compute(asked, whole), strict=True))
            self.keep(made, whole)
        return [made[name].copy() if name in self.pairs else made[name] for name in names]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise BadInputError(
                "this session keeps the state of one sequence, and another call is running; load a session "
                "for each sequence"
            )
        try:
            yield
        finally:
            self._lock.release()

    def complete(self, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The feed with the inputs that the caller leaves out, from the call before or as they start."""
        missing = [name for name in self.pairs.values() if name not in feed]
        if not missing:
            return feed
        return {
            **feed,
            **{n: self._values[n] if n in self._values else self._start(n, feed) for n in missing},
        }

    def keep(self, made: Mapping[str, np.ndarray], feed: Mapping[str, np.ndarray]) -> None:
        """Keep the outputs of a call, which are new arrays, for the next one.

        Args:
            feed: of this call.
        """
        fed = {id(array) for array in feed.values()}
        values = {given: made[output] for output, given in self.pairs.items()}
        # An output may be an input that passes through, whose array is the caller's.
        self._values = {name: a.copy() if id(a) in fed else a for name, a in values.items()}

    def _start(self, name: str, feed: Mapping[str, np.ndarray]) -> np.ndarray:
        """The value of an input before the first call."""
        spec, own = self._inputs[name], self._dims.get(name, {})
        if spec.shape is None or spec.dtype == "unknown":
            raise BadInputError(
                f"the rank of input {name!r} is not known, so the first call must be given its value"
            )
        sizes = {
            dim: np.shape(feed[other])[axis]
            for other, dims in self._dims.items()
            if other in feed
            for axis, dim in dims.items()
            if axis < np.ndim(feed[other])
        }
        shape = [sizes.get(own.get(i, ""), 0) if d is None else d for i, d in enumerate(spec.shape)]
        if spec.dtype == "object":
            return np.full(shape, "", dtype=object)
        return np.zeros(shape, np.dtype(spec.dtype))


def _pairs(outputs: str, inputs: str, known: Iterable[str]) -> dict[str, str]:
    stars = outputs.count("*")
    if stars != inputs.count("*"):
        raise BadInputError(
            f"{outputs!r} and {inputs!r} must have the same number of *: each stands for the same text"
        )
    pattern = re.compile("(.+)".join(map(re.escape, outputs.split("*"))))
    pairs = {}
    for output in known:
        found = pattern.fullmatch(output)
        if found is not None:
            texts = iter((*found.groups(), ""))
            pairs[output] = "".join(part + next(texts, "") for part in inputs.split("*"))
    if not pairs:
        raise BadInputError(f"no output is called {outputs!r}; the model has {_listed(known)}")
    return pairs


def _check(
    output: str, given: str, outputs: Mapping[str, TensorSpec], inputs: Mapping[str, TensorSpec]
) -> None:
    if given not in inputs:
        raise BadInputError(
            f"output {output!r} would feed the input {given!r}, and the model has {_listed(inputs)}"
        )
    made, taken = outputs[output], inputs[given]
    if made.dtype != taken.dtype:
        raise BadInputError(
            f"output {output!r} is {made.dtype}, and input {given!r} takes {taken.dtype}"
        )
    if made.shape is None or taken.shape is None:
        return
    fits = len(made.shape) == len(taken.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(made.shape, taken.shape, strict=True)
    )
    if not fits:
        raise BadInputError(
            f"output {output!r} has shape {made.shape}, which never fits input {given!r} of shape "
            f"{taken.shape}"
        )


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(map(repr, listed[:8])) + more
