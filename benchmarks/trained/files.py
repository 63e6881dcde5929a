"""Files of the Python installation by their kinds, for a model that tells what a file is."""

from __future__ import annotations

import json
import random
import site
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.trained.case import Case
from benchmarks.trained.packages import package

_MAGIKA = "magika==1.0.3"
_KINDS = {
    **{".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".txt": "txt", ".json": "json", ".html": "html"},
    **{".css": "css", ".js": "javascript", ".so": "elf", ".md": "markdown", ".png": "png", ".gif": "gif"},
    **{".xml": "xml", ".toml": "toml", ".csv": "csv", ".svg": "svg", ".ini": "ini", ".sh": "shell", ".zip": "zip"},
    **{".pyc": "pythonbytecode", ".yaml": "yaml", ".yml": "yaml", ".rst": "rst", ".exe": "pebin", ".pdf": "pdf"},
    **{".ttf": "ttf", ".whl": "zip", ".bat": "batch", ".tex": "latex", ".jpg": "jpeg", ".wav": "wav", ".a": "ar"},
}  # fmt: skip
_LEAST_BYTES, _MOST_BYTES = 64, 1 << 20


def kinds_of_files(samples: int) -> Case:
    """Files, about as many of each kind as there are."""
    folder = package(_MAGIKA) / "magika" / "models" / "standard_v3_3"
    config = json.loads((folder / "config.min.json").read_text(encoding="utf-8"))
    classes = {name: number for number, name in enumerate(config["target_labels_space"])}
    by_kind: dict[str, list[Path]] = defaultdict(list)
    for root in {Path(sysconfig.get_paths()["stdlib"]), *map(Path, site.getsitepackages())}:
        for path in sorted(root.rglob("*")):
            kind = _KINDS.get(path.suffix)
            if kind in classes and path.is_file() and _LEAST_BYTES < path.stat().st_size < _MOST_BYTES:
                by_kind[kind].append(path)
    draw = random.Random(0)
    for paths in by_kind.values():
        draw.shuffle(paths)
    chosen: list[tuple[str, Path]] = []
    while len(chosen) < samples and any(by_kind.values()):
        for kind in sorted(by_kind):
            if by_kind[kind]:
                chosen.append((kind, by_kind[kind].pop()))
    draw.shuffle(chosen)
    chosen = chosen[:samples]
    return Case(
        model=folder / "model.onnx",
        inputs={"bytes": np.stack([_features(path, config)[None] for _, path in chosen])},
        evaluate="top1",
        labels={"labels": np.array([classes[kind] for kind, _ in chosen])},
        dims={"bytes:0": 1},
        about=f"{len(chosen)} files of {len({kind for kind, _ in chosen})} kinds",
    )


def _features(path: Path, config: dict[str, int]) -> np.ndarray:
    """The beginning and the end of a file, without white space around, padded; as magika reads it."""
    content, block = path.read_bytes(), config["block_size"]
    begin = content[:block].lstrip()[: config["beg_size"]]
    end = content[-block:].rstrip()[-config["end_size"] :]
    pad = config["padding_token"]
    return np.array(
        [
            *begin,
            *[pad] * (config["beg_size"] - len(begin)),
            *[pad] * (config["end_size"] - len(end)),
            *end,
        ],
        dtype=np.int32,
    )
