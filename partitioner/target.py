"""A target: one backend with options, written as in TVM.

Examples: `onnxruntime`, `openvino -precision=bf16`, `onnxruntime -ep=cuda -device=1`. Options are
sorted, so two spellings of one target compare and hash equal. Here is syntax alone; the registry knows
the options.

Source: TVM's target strings and RFC 0062 (targets as device, unit and code generator).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from collage.partitioner.errors import TargetError

HOST_MEMORY = "host"  # the memory domain of values that are on no device
_BACKEND = re.compile(r"[a-z][a-z0-9_]*\Z")
_OPTION = re.compile(r"-([a-z][a-z0-9_]*)=(.+)\Z")


@dataclass(frozen=True, order=True)
class Target:
    """A backend's name and its options as sorted (name, value) pairs of text."""

    backend: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target from its text form.

        Raises:
            TargetError: the text is empty, misspelled or names an option twice.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise TargetError(f"target {text!r}: {error}") from None
        if not words or not _BACKEND.match(words[0]):
            raise TargetError(
                f"target {text!r} does not start with a backend's name; "
                "write for example 'openvino -precision=bf16'"
            )
        options: dict[str, str] = {}
        for word in words[1:]:
            match = _OPTION.match(word)
            if match is None:
                raise TargetError(f"target {text!r}: option {word!r} is not of the form -name=value")
            if match[1] in options:
                raise TargetError(f"target {text!r} gives option -{match[1]} twice")
            options[match[1]] = match[2]
        return cls(words[0], tuple(sorted(options.items())))

    def option(self, name: str, default: str) -> str:
        """The value of an option, or the default where the target does not give it."""
        return dict(self.options).get(name, default)

    def with_options(self, **changes: str) -> Target:
        """The same backend with some options set to other values."""
        return Target(self.backend, tuple(sorted({**dict(self.options), **changes}.items())))

    def __str__(self) -> str:
        return " ".join([self.backend, *(f"-{k}={shlex.quote(v)}" for k, v in self.options)])
