"""A backend that fails in every way a runtime can, as its option states. It computes y = x + x.

It stands where a runtime stands: children find it through the entry-point group, and are really
killed, starved or told wrong numbers by it.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collage.backends.contract import (
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    OpTime,
    SubModel,
)
from collage.backends.options import Option
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.backends.sandbox.attacks import Around, all_attacks


class FaultyBackend(Backend):
    name = "faulty"
    style = "library"
    summary = "Fails as asked; for tests."
    options = (
        Option("fault", "none", "What goes wrong.", pattern=".+"),
        Option("once", "none", "The fault happens only while this file is absent.", pattern=".+"),
        Option("sleep_us", "100", "Time of one call.", pattern="[0-9]+"),
    )

    def probe(self) -> Available:
        return Available("6.66")

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return None

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        fault = target.option("fault", "none")
        once = target.option("once", "none")
        if once != "none":
            if Path(once).exists():
                fault = "none"
            Path(once).touch()
        if fault == "refuse":
            raise RuntimeError("no kernel\nfor this operator")
        if fault == "crash-compile":
            ctypes.string_at(0)
        if fault == "attack":
            found = json.loads((model.path.parent / "around.json").read_text(encoding="utf-8"))
            got = [name for name, text in all_attacks(Around(**found)).items() if "GOT" in text]
            raise RuntimeError(f"attacks that worked: {', '.join(got) or 'none'}")
        if fault == "killed":
            os.kill(os.getpid(), 9)
        return FaultyExecutable(fault, int(target.option("sleep_us", "100")))


class FaultyExecutable(Executable):
    def __init__(self, fault: str, sleep_us: int) -> None:
        self._fault, self._sleep_s, self._runs = fault, sleep_us / 1e6, 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        (self._x,), (self._y,) = inputs, outputs

    def run(self) -> None:
        self._runs += 1
        if self._fault == "hang":
            time.sleep(600)
        if self._fault == "crash-run":
            os.abort()
        if self._fault == "memory":
            np.ones(1 << 40)
        if self._fault == "silent":
            return
        time.sleep(self._sleep_s)
        assert self._y is not None
        np.add(self._x, self._x, out=self._y)
        if self._fault == "wrong" or (self._fault == "wrong-later" and self._runs > 3):
            self._y[0] += 1
        if self._fault == "wrong-second" and self._runs == 2:
            self._y *= 3

    @property
    def results(self) -> tuple[Array, ...]:
        assert self._y is not None
        return (self._y,)

    def profile(self, runs: int) -> list[OpTime]:
        if self._fault == "no-profile":
            raise RuntimeError("no profiler here")
        if self._fault == "crash-profile":
            ctypes.string_at(0)
        return [OpTime(("n",), "Add", 1.0)] * runs

    def close(self) -> None:
        if self._fault == "crash-close":
            ctypes.string_at(0)
