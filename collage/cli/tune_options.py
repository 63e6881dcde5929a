"""The options of `collage tune` that are fields of `TuneOptions`, made from them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.shapes.dim_text import parse_dim
from collage.shapes.seen import read_shapes

# A list is given by repeating an option in the singular; the help states the unit.
_FLAGS = {
    "dims": "--dim",
    "time_limit_s": "--time-limit",
    "pins": "--pin",
    "bans": "--ban",
    "wait_for_quiet_s": "--wait-for-quiet",
    "wait_for_worker_s": "--wait-for-worker",
    "p99_ms": "--p99",
    "max_latency_ms": "--max-latency",
    "memory_limit_mib": "--memory-limit",
    "pad_masks": "--pad-mask",
}
_MILLISECONDS = {"p99_ms", "max_latency_ms"}
_MEBIBYTES = {"memory_limit_mib"}
_PER_MIB = {
    "KiB": 1 / 1024,
    "MiB": 1.0,
    "GiB": 1024.0,
    "KB": 1e3 / (1 << 20),
    "MB": 1e6 / (1 << 20),
    "GB": 1e9 / (1 << 20),
}
_NO_FLAG = {"plans"}
_FILES = {"plan", "shapes"}
_SHARES = {"max_drop"}
_PLACE = "options"


def flags() -> dict[str, str]:
    """The flag of each field of `TuneOptions` that has one."""
    fields = (name for name in TuneOptions.model_fields if name not in _NO_FLAG)
    return {name: _FLAGS.get(name, "--" + name.replace("_", "-")) for name in fields}


def takes_tune_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for each field of `TuneOptions` in place of its parameter `options`.

    Args:
        command: takes `context` and `options`; the latter gets the fields that the user gave.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _parameters() if parameter.name == _PLACE else [parameter]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        context = values["context"]
        options = {
            name: _read(name, value)
            for name in flags()
            if (value := values.pop(name)) is not None and _is_given(context, name)
        }
        command(**values, options=options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _parameters() -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=Annotated[_kind(name, field), typer.Option(flag, help=field.description)],
        )
        for name, flag in flags().items()
        for field in [TuneOptions.model_fields[name]]
    ]


def _kind(name: str, field: FieldInfo) -> Any:
    """The type that typer reads a value as."""
    if name in _FILES:
        return Path | None
    if name in _SHARES | _MILLISECONDS | _MEBIBYTES:
        return str | None
    if get_origin(field.annotation) in (tuple, Mapping):
        return list[str] | None
    if get_origin(field.annotation) is Literal:
        return type(get_args(field.annotation)[0])
    return field.annotation


def _default(field: FieldInfo) -> Any:
    return None if get_origin(field.annotation) in (tuple, Mapping) else field.default


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _read(name: str, value: Any) -> Any:
    if name == "plan":
        from collage.artifact.export import read_plan_file

        return read_plan_file(value)
    if name == "shapes":
        return read_shapes(value)
    if name == "dims":
        return sizes(value)
    if name == "pad_masks":
        return masks(value)
    if name in _SHARES:
        return share(value, flags()[name])
    if name in _MILLISECONDS:
        return milliseconds(flags()[name], value)
    if name in _MEBIBYTES:
        return mebibytes(flags()[name], value)
    return tuple(value) if isinstance(value, list) else value


def milliseconds(flag: str, text: str) -> float:
    """A time given as `20ms`, `0.5s`, or a number of milliseconds.

    Raises:
        BadInputError: it is not of that form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)?", text.strip())
    if found is None:
        raise BadInputError(
            f"{flag} {text!r} is no time: write 20ms, 0.5s, or a number of milliseconds"
        )
    return float(found[1]) * (1e3 if found[2] == "s" else 1.0)


def mebibytes(flag: str, text: str) -> float:
    """Memory given as `512MiB`, `2GB`, or a number of MiB.

    Raises:
        BadInputError: it is not of that form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", text.strip())
    if found is None:
        raise BadInputError(
            f"{flag} {text!r} is no size of memory: write 512MiB, 2GB, or a number of MiB"
        )
    return float(found[1]) * _PER_MIB[found[2] or "MiB"]


def share(text: str, flag: str) -> float:
    """A share, given as `1%` or `0.01`.

    Raises:
        BadInputError: it is neither.
    """
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise BadInputError(f"{flag} {text!r} is no share: write it as 1% or 0.01") from None


def masks(texts: list[str]) -> dict[str, str]:
    """The input that masks padding of each dimension, given as `dimension=input`.

    Raises:
        BadInputError: one is not of that form.
    """
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise BadInputError(
                f"--pad-mask {text!r} is not of the form dimension=input, such as length=attention_mask"
            )
        found[name] = value
    return found


def sizes(texts: list[str]) -> dict[str, int | str]:
    """What is said of free dimensions, each given as `name=size` or another text of sizes.

    Raises:
        BadInputError: one is not of that form, or one dimension is given twice.
    """
    dims: dict[str, int | str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise BadInputError(
                f"--dim {text!r} is not of the form name=value, such as batch=1 or length=1..512"
            )
        parse_dim(name, value)
        if name in dims and str(dims[name]) != value:
            raise BadInputError(
                f"dimension {name}: both {dims[name]} and {value} are given; keep one --dim for it"
            )
        dims[name] = int(value) if value.isdigit() else value
    return dims
