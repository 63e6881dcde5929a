"""The machine, as far as it decides costs.

Machines of one digest are expected to have the same costs. The digest covers the CPU's model and
features, the cores given to this process, memory, caches, and GPUs with their driver. It covers a label
that an operator may set, but not the host's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from collage.backends.machine.process_policy import cores_given, memory_given

# What runtimes choose kernels by; other flags (mitigations, virtualisation) change with the kernel.
_FEATURES = (
    *("sse4_2", "avx", "avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver names it."""

    name: str
    memory_mib: int
    driver: str


@dataclass(frozen=True)
class Hardware:
    """A kind of machine."""

    architecture: str  # e.g. `x86_64`.
    cpu: str  # the CPU's model name
    features: tuple[str, ...]  # instruction sets that kernels are chosen by, sorted
    cores: int  # physical cores that this process may use (equal to `threads` where that is not known)
    threads: int  # logical cores that this process may use, after affinity and container quota
    memory_gib: int  # memory of the machine or the container, rounded
    last_level_cache_bytes: int  # size of the largest cache
    gpus: tuple[Gpu, ...] = ()  # in the driver's order
    label: str = ""  # set by the operator, empty otherwise

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def describe(self) -> str:
        """One line for people."""
        cores = f"{self.cores} cores" if self.cores == self.threads else f"{self.threads} threads"
        parts = [self.cpu or self.architecture, cores, f"{self.memory_gib} GiB"]
        parts += [f"{gpu.name} (driver {gpu.driver})" for gpu in self.gpus]
        parts += [f"label {self.label}"] if self.label else []
        return ", ".join(parts)


def hardware(label: str | None = None) -> Hardware:
    """This machine.

    Args:
        label: tells machines apart that look alike; default is the environment's
            COLLAGE_HOST_LABEL, or none.
    """
    if label is None:
        label = os.environ.get("COLLAGE_HOST_LABEL", "")
    cpu, features = _cpu()
    threads = cores_given()
    return Hardware(
        architecture=platform.machine(),
        cpu=cpu,
        features=features,
        cores=_physical_cores(threads),
        threads=threads,
        memory_gib=_memory_gib(),
        last_level_cache_bytes=last_level_cache_bytes(),
        gpus=_gpus(),
        label=label,
    )


@lru_cache(maxsize=1)
def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first core; 32 MiB where the platform does not say."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = file.read_text(encoding="utf-8").strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes, default=32 << 20)


@lru_cache(maxsize=1)
def _cpu() -> tuple[str, tuple[str, ...]]:
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    except OSError:
        return platform.processor(), ()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name")
    if model is None:  # Arm kernels print numbers instead of names
        model = " ".join(f"{n} {fields[n]}" for n in ("CPU implementer", "CPU part") if n in fields)
    # Virtual machines hide the model behind a family name; the numbers tell generations apart.
    numbers = [fields.get(n, "") for n in ("cpu family", "model", "stepping")]
    if all(numbers):
        model = f"{model} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"
    return model, tuple(sorted(flags & set(_FEATURES)))


def _physical_cores(threads: int) -> int:
    try:
        given = os.sched_getaffinity(0)
    except AttributeError:
        return threads
    siblings = set()
    for number in given:
        file = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            siblings.add(file.read_text(encoding="utf-8").strip())
        except OSError:
            return threads
    return min(threads, len(siblings))


def _memory_gib() -> int:
    return max(1, round(memory_given() / (1 << 30)))


@lru_cache(maxsize=1)
def _gpus() -> tuple[Gpu, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, encoding="utf-8", timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in done.stdout.strip().splitlines():
        name, memory, driver = (part.strip() for part in line.split(","))
        gpus.append(Gpu(name, int(float(memory)), driver))
    return tuple(gpus)
