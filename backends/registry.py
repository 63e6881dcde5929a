"""Which backends exist, and whether a target can be used here.

Built-in backends are an explicit table of names and classes; a file is imported when its backend is first
asked for, a runtime only inside its backend's functions. Packages add backends by the entry-point group
`collage.backends` (docs/write-a-backend.md). A name that occurs twice is an error. A plugin that cannot
be imported stays in the table as an unavailable backend with the reason.

Source: xdsl `universe.py` (explicit lazy registration), optuna `_imports.py`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from collage.backends.contract import Backend, CompileContext, Executable, SubModel, Unavailable
from collage.backends.options import HOST_LABEL, RULES, THREADS, Option
from collage.partitioner.errors import CollageError, TargetError
from collage.partitioner.target import HOST_MEMORY, Target

if TYPE_CHECKING:  # an artifact is loaded without what finds partitions
    from collage.partitioner.graph.graph_index import GraphIndex
    from collage.partitioner.rules.target_spec import TargetSpec

GROUP = "collage.backends"

_BUILT_IN: Mapping[str, str] = {
    "onnxruntime": "collage.backends.onnxruntime.backend:OnnxRuntimeBackend",
    "openvino": "collage.backends.openvino.backend:OpenVinoBackend",
    "mnn": "collage.backends.mnn.backend:MnnBackend",
    "ncnn": "collage.backends.ncnn.backend:NcnnBackend",
    "torch": "collage.backends.torch.backend:TorchBackend",
    "simulated": "collage.backends.testing.simulated:SimulatedBackend",
    "null": "collage.backends.testing.null:NullBackend",
}


class BrokenBackend(Backend):
    """Stands for a plugin that could not be loaded; it refuses everything with the reason."""

    style = "library"
    options = ()

    def __init__(self, name: str, reason: str, distribution: str) -> None:
        self.name = name
        self.summary = f"could not be loaded: {reason}"
        self._unavailable = Unavailable(reason, f"repair or uninstall the package {distribution}")

    def probe(self) -> Unavailable:
        return self._unavailable

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return self._unavailable.reason

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        raise TargetError(f"backend {self.name}: {self._unavailable.reason}")


def backends() -> Mapping[str, Backend]:
    """All known backends by name, available or not; built-in ones first.

    Raises:
        CollageError: two backends have one name, or a plugin's name is not its backend's.
    """
    return _load(_plugins(entry_points, tuple(sys.path)))


def for_tests(name: str) -> bool:
    """Whether a backend exists for tests only."""
    return type(backends()[name]).__module__.startswith("collage.backends.testing.")


def installed() -> list[str]:
    """The runtimes that can be used on this machine, by name; those for tests are left out."""
    found = {name: backend for name, backend in backends().items() if not for_tests(name)}
    return [name for name, backend in found.items() if not isinstance(backend.probe(), Unavailable)]


def warm_up() -> None:
    """Import all built-in backends, but no plugin and no runtime; a process that forks others calls it once for all."""
    _plugins(entry_points, tuple(sys.path))
    for where in _BUILT_IN.values():
        importlib.import_module(where.partition(":")[0])


def resolve(target: Target) -> Backend:
    """The backend of a target that can be used on this machine.

    Raises:
        TargetError: the backend, an option or a value is unknown (the known ones are listed), the
            runtime is not installed (the command is given), or the machine lacks what it needs.
    """
    backend = check_options(target)
    found = backend.probe()
    if isinstance(found, Unavailable):
        raise TargetError(
            f"target {str(target)!r}: {found.reason}; to install it: {found.how_to_install}"
        )
    reason = backend.check_target(target)
    if reason is not None:
        raise TargetError(f"target {str(target)!r} cannot be used here: {reason}")
    return backend


def check_options(target: Target) -> Backend:
    """The backend of a target, installed or not, once every option and value is known to it.

    Raises:
        TargetError: the backend, an option or a value is unknown.
    """
    backend = backend_of(target)
    options = {option.name: option for option in options_of(backend)}
    for name, value in target.options:
        option = options.get(name)
        if option is None:
            raise TargetError(
                f"target {str(target)!r}: no option -{name} in {backend.name}, only {_names(options)}"
            )
        if option.choices and value not in option.choices:
            raise TargetError(
                f"target {str(target)!r}: -{name} is one of {_names(option.choices)}, not {value!r}"
            )
        if not option.choices and not re.fullmatch(option.pattern, value):
            raise TargetError(
                f"target {str(target)!r}: -{name}={value} is not of the form {option.pattern}"
            )
    return backend


def on_gpus(targets: Iterable[Target]) -> bool:
    """True when one of the targets has its values on a GPU, so that a child needs its devices."""
    return any(check_options(target).memory_domain(target) != HOST_MEMORY for target in targets)


def backend_of(target: Target) -> Backend:
    """The backend of a target, installed or not; options are not checked.

    Raises:
        TargetError: the backend is unknown.
    """
    known = backends()
    backend = known.get(target.backend)
    if backend is None:
        raise TargetError(
            f"target {str(target)!r}: unknown backend {target.backend!r}; known are {_names(known)}"
        )
    return backend


def options_of(backend: Backend) -> tuple[Option, ...]:
    """A backend's options, with those that every backend has."""
    return (*backend.options, RULES, HOST_LABEL)


def canonical(target: Target, threads: int | None = None) -> Target:
    """The target with defaults made explicit, as cost keys name it.

    Options that cannot change a cost are left out, and so are defaults of later options
    (`Option.is_later`); `-threads=auto` becomes the number that the caller gives to `compile`.

    Raises:
        TargetError: the backend, an option or a value is unknown.
    """
    backend = check_options(target)
    given = {o: target.option(o.name, o.default) for o in options_of(backend) if o.affects_cost}
    full = {o.name: value for o, value in given.items() if not (o.is_later and value == o.default)}
    if threads is not None and full.get("threads") == "auto":
        full["threads"] = str(threads)
    return Target(backend.name, tuple(sorted(full.items())))


def editions(target: Target) -> str:
    """What a cost key has beside the runtime's version: later editions of options that are not at their default.

    Raises:
        TargetError: the backend, an option or a value is unknown.
    """
    changed = [
        option
        for option in options_of(check_options(target))
        if option.edition > 1 and target.option(option.name, option.default) != option.default
    ]
    return "".join(f"; -{option.name} ({option.edition})" for option in changed)


def tunable_options(target: Target, threads: int) -> dict[str, tuple[str, ...]]:
    """Values that may replace a target's defaults, by option that the user left open; none for targets on a device.

    Args:
        target: as the user gave it.
        threads: the meaning of `-threads=auto`; only fewer are tunable.

    Raises:
        TargetError: the backend, an option or a value is unknown.
    """
    stated = dict(target.options)
    found: dict[str, tuple[str, ...]] = {}
    backend = check_options(target)
    if backend.memory_domain(target) != HOST_MEMORY:
        return found
    for option in options_of(backend):
        values = option.tunable
        if option.name == THREADS.name:
            values = tuple(value for value in values if int(value) < threads)
        if values and option.name not in stated:
            found[option.name] = values
    return found


def target_spec(target: Target) -> TargetSpec:
    """A target as the partitioner sees it; its runtime need not be installed.

    Raises:
        TargetError: the backend, an option or a value is unknown.
        BadInputError: the rule file that it names cannot be used.
    """
    from collage.partitioner.rules.rule_file import load_rule
    from collage.partitioner.rules.target_spec import TargetSpec

    backend = check_options(target)

    def supports(index: GraphIndex, node: int) -> str | None:
        return backend.supports(index, node, target)

    def refuse_region(index: GraphIndex, nodes: int) -> str | None:
        return backend.refuse_region(index, nodes, target)

    rules = target.option(RULES.name, RULES.default)
    return TargetSpec(
        target=target,
        style=backend.style,
        supports=supports,
        patterns=backend.patterns(target),
        memory_domain=backend.memory_domain(target),
        rule=None if rules == RULES.default else load_rule(Path(rules)),
        refuse_region=refuse_region,
    )


@lru_cache(maxsize=4)
def _plugins(
    find: Callable[..., Iterable[EntryPoint]], where: tuple[str, ...]
) -> tuple[EntryPoint, ...]:
    # Kept for each search path: it reads the description of every installed package.
    return tuple(find(group=GROUP))


@lru_cache(maxsize=4)
def _load(plugins: tuple[EntryPoint, ...]) -> Mapping[str, Backend]:
    found: dict[str, EntryPoint] = {}
    for plugin in plugins:
        if plugin.name in found or plugin.name in _BUILT_IN:
            raise CollageError(
                f"two backends are named {plugin.name!r}; the second one is {plugin.value} "
                f"of package {_distribution(plugin)}: uninstall one of them"
            )
        found[plugin.name] = plugin
    return _Table(found)


class _Table(Mapping[str, Backend]):
    """Backends by name; each is imported when it is first asked for, since an artifact needs few of them."""

    def __init__(self, plugins: Mapping[str, EntryPoint]) -> None:
        self._plugins = plugins
        self._loaded: dict[str, Backend] = {}

    def __getitem__(self, name: str) -> Backend:
        if name not in self._loaded:
            if name in _BUILT_IN:
                module, _, attribute = _BUILT_IN[name].partition(":")
                self._loaded[name] = getattr(importlib.import_module(module), attribute)()
            else:
                self._loaded[name] = _load_plugin(self._plugins[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*_BUILT_IN, *self._plugins])

    def __len__(self) -> int:
        return len(_BUILT_IN) + len(self._plugins)


def _load_plugin(plugin: EntryPoint) -> Backend:
    try:
        backend = plugin.load()()
    except Exception as error:  # a plugin may raise anything; the reason is kept and shown
        reason = f"plugin {plugin.value} fails with {type(error).__name__}: {error}"
        return BrokenBackend(plugin.name, reason, _distribution(plugin))
    if not isinstance(backend, Backend) or backend.name != plugin.name:
        reason = f"plugin {plugin.value} does not make a Backend named {plugin.name!r}"
        return BrokenBackend(plugin.name, reason, _distribution(plugin))
    return backend


def _distribution(plugin: EntryPoint) -> str:
    return plugin.dist.name if plugin.dist is not None else "of unknown name"


def _names(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"
