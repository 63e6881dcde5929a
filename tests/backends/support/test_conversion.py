"""The cache of conversions: made once, proven before it is used, made again when damaged."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from collage.backends.support.conversion import converted

_TEXT = '<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) { y = Relu(x) }'


class CountingConverter:
    """Copies the model and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "made").write_bytes(source.read_bytes())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(ir.from_onnx_text(_TEXT), path)
    return path


def _convert(source: Path, convert: CountingConverter, cache: Path | None) -> bytes:
    work = source.parent / f"work-{convert.calls}"
    work.mkdir(exist_ok=True)
    folder = converted(source, ["made"], "counting 1", convert, work, cache)
    return (folder / "made").read_bytes()


def test_is_converted_once(source: Path, tmp_path: Path) -> None:
    convert = CountingConverter()
    made = [_convert(source, convert, tmp_path / "cache") for _ in range(3)]
    assert convert.calls == 1
    assert made[0] == made[1] == made[2]


def test_without_a_cache_every_time(source: Path) -> None:
    convert = CountingConverter()
    for _ in range(2):
        _convert(source, convert, None)
    assert convert.calls == 2


@pytest.mark.parametrize("victim", ["made", "SHA256SUMS"])
@pytest.mark.parametrize("damage", [b"", b"something else", None])
def test_damaged_files_are_made_again(
    source: Path, tmp_path: Path, victim: str, damage: bytes | None
) -> None:
    convert = CountingConverter()
    good = _convert(source, convert, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob(victim)
    file.unlink() if damage is None else file.write_bytes(damage)
    assert _convert(source, convert, tmp_path / "cache") == good
    assert convert.calls == 2
    assert _convert(source, convert, tmp_path / "cache") == good
    assert convert.calls == 2
