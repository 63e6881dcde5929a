"""Compiles sub-models for their targets and owns the executables until it is closed."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

from collage.backends.contract import CompileContext, Executable, SubModel, ready
from collage.backends.machine.process_policy import apply_environment, caller_kept
from collage.backends.registry import resolve
from collage.backends.sandbox.native_output import one_line
from collage.partitioner.errors import CollageError
from collage.partitioner.target import Target


class CompileError(CollageError):
    """A runtime refused a partition; the message names the target and quotes the runtime."""


class CompiledRegions:
    """Executables by (name, target); each sub-model is compiled once for a target.

    Args:
        threads: of one call.
        cache_dir: folder for compiled blobs of this machine, or None.
        instances: how many executables of a sub-model will run at once.
    """

    def __init__(self, threads: int, cache_dir: Path | None = None, instances: int = 1) -> None:
        apply_environment()
        self._threads = threads
        self._instances = instances
        self._cache_dir = cache_dir
        self._work_dir = Path(tempfile.mkdtemp(prefix="collage-"))
        # Called by `close`, or when this is collected or Python ends.
        self._remove = weakref.finalize(self, shutil.rmtree, self._work_dir, ignore_errors=True)
        self._made: dict[tuple[str, Target], Executable] = {}
        self._folders: dict[tuple[str, Target], Path] = {}

    def get(
        self,
        name: str,
        model: SubModel,
        target: Target,
        lasting: bool = True,
    ) -> Executable:
        """Compile a sub-model, or return what was compiled under this name before.

        Args:
            name: identifies the sub-model.
            lasting: False for what runs a few times only and is not cached.

        Raises:
            CompileError: the runtime refused it.
        """
        key = (name, target)
        if key not in self._made:
            folder = Path(tempfile.mkdtemp(dir=self._work_dir))
            context = CompileContext(self._threads, folder, self._cache_dir, self._instances)
            try:
                backend = resolve(target)
                with caller_kept():
                    prepared = ready(backend, model, target, context)
                    compiling = context if lasting else replace(context, cache_dir=None)
                    self._made[key] = backend.compile(prepared, target, compiling)
                    self._folders[key] = folder
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, CollageError) or not isinstance(error, Exception):
                    raise
                raise CompileError(f"{target} refused partition {name}: {in_short(error)}") from error
        return self._made[key]

    def another(self, name: str, model: SubModel, target: Target, instance: int) -> Executable:
        """One more executable of a sub-model, which shares the weights of the first where its runtime can.

        Args:
            name: as in `get`.
            instance: its number; 0 is what `get` returns.

        Raises:
            CompileError: the runtime refused it.
        """
        first = self.get(name, model, target)
        if instance == 0:
            return first
        key = (f"{name} instance {instance}", target)
        if key not in self._made:
            made = first.another()
            if made is None:
                return self.get(key[0], model, target)
            self._made[key] = made
        return self._made[key]

    def kept_files(self) -> list[Path] | None:
        """The files in the cache that all executables were loaded from; None where one was not."""
        found: set[Path] = set()
        for executable in self._made.values():
            files = executable.kept_files()
            if files is None:
                return None
            found.update(files)
        return sorted(found)

    @property
    def loads_differ(self) -> bool:
        """True where another load of the same files may compute something else."""
        return any(executable.loads_differ for executable in self._made.values())

    def drop(self, name: str, target: Target) -> None:
        """Close what was compiled under a name, if anything was."""
        executable = self._made.pop((name, target), None)
        if executable is not None:
            executable.close()
            shutil.rmtree(self._folders.pop((name, target)), ignore_errors=True)

    def close(self) -> None:
        """Close every executable and remove their files; may be called twice."""
        for executable in self._made.values():
            executable.close()
        self._made.clear()
        self._remove()


def in_short(error: BaseException) -> str:
    """An exception's message in one line, or its type; without the lines on where OpenVINO raised."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("Exception from ")]
    return one_line(" ".join(said)) or type(error).__name__
