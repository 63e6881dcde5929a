"""Sizes that real small models take: proposed, proven at the ends, and refused with what works."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli.tune_options import sizes
from collage.partitioner.errors import BadInputError, ModelError, OutOfTimeError
from collage.shapes.settle import Settled, settle
from tests.collage.shapes.models import FLOAT, INT, Dims, save, text_model


def _reshape(folder: Path) -> Path:
    """A Reshape with a constant: only 128 elements fit."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], "flatten"),
        helper.make_node("Relu", ["r"], ["y"], "relu"),
    ]
    return save(
        folder, nodes, {"x": (FLOAT, ["width"])}, {"y": (FLOAT, None)},  # type: ignore[dict-item]
        shape=np.array([8, 16], np.int64),
    )  # fmt: skip


def _skip(folder: Path) -> Path:
    """Halved twice and doubled twice, with a sum at the end: sizes must be multiples of four."""
    halve = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], "half", **halve),
        helper.make_node("MaxPool", ["a"], ["b"], "quarter", **halve),
        helper.make_node("Resize", ["b", "", "scales"], ["c"], "grow", mode="nearest"),
        helper.make_node("Concat", ["x", "c"], ["y"], "join", axis=1),
    ]
    image = (FLOAT, [1, 3, None, None])
    return save(
        folder, nodes, {"x": image}, {"y": (FLOAT, [1, 6, None, None])},
        scales=np.array([1, 1, 4, 4], np.float32),
    )  # fmt: skip


def _decoder(folder: Path, promised: str = "past + 1") -> Path:
    nodes = [
        helper.make_node("Concat", ["past_key", "key"], ["present_key"], "join", axis=1),
        helper.make_node("Mul", ["present_key", "mask"], ["y"], "mask_it"),
    ]
    inputs: dict[str, tuple[int, Dims]] = {
        "past_key": (FLOAT, ["batch", "past"]),
        "key": (FLOAT, ["batch", 1]),
        "mask": (FLOAT, ["batch", "past + 1"]),
    }
    outputs: dict[str, tuple[int, Dims]] = {
        "present_key": (FLOAT, ["batch", promised]),
        "y": (FLOAT, ["batch", None]),
    }
    return save(folder, nodes, inputs, outputs)


def _cached(folder: Path) -> Path:
    """A decoder whose mask is as long as past and new tokens together, which no name says."""
    nodes = [
        helper.make_node("Concat", ["past", "key"], ["present"], "join", axis=1),
        helper.make_node("Mul", ["present", "mask"], ["y"], "mask_it"),
    ]
    inputs: dict[str, tuple[int, Dims]] = {
        "key": (FLOAT, ["batch", "length"]),
        "past": (FLOAT, ["batch", "past_length"]),
        "mask": (FLOAT, ["batch", "total_length"]),
    }
    return save(folder, nodes, inputs, {"y": (FLOAT, ["batch", None])})


def _told(source: Path, dims: Mapping[str, int | str], shapes: Any = ()) -> str:
    with pytest.raises(BadInputError) as raised:
        settle(source, dims, shapes)
    return str(raised.value)


def _pasted(source: Path, dims: Mapping[str, int | str], message: str) -> Settled:
    """What comes of the flags of a message, as a shell reads them."""
    words = shlex.split(message[message.index("--dim") :])
    texts = [words[i + 1].rstrip(",;") for i, word in enumerate(words) if word == "--dim"]
    return settle(source, {**dims, **sizes(texts)})


def test_ranges_are_proposed_from_names_and_proven(tmp_path: Path) -> None:
    settled = settle(text_model(tmp_path), {})
    assert settled.proposed == {"batch": "1..8", "length": "1..256"}
    assert settled.flags == "--dim batch=1..8 --dim length=1..256"
    assert settled.fixed is None and not settled.notes and settled.usual == {"batch": 1, "length": 16}


@pytest.mark.slow
def test_steps_of_pools_are_found(tmp_path: Path) -> None:
    settled = settle(_skip(tmp_path), {})
    assert settled.proposed == {"x:2": "32..640/4", "x:3": "32..640/4"}
    assert all(size % 4 == 0 for shape in settled.space.shapes for size in shape.sizes.values())


def test_the_value_of_an_input_is_of_one_size(tmp_path: Path) -> None:
    source = save(
        tmp_path,
        [
            helper.make_node("Expand", ["x", "n"], ["wide"], "widen"),
            helper.make_node("Relu", ["wide"], ["y"], "relu"),
        ],
        {"x": (FLOAT, ["batch", 1]), "n": (INT, [1])},
        {"y": (FLOAT, ["batch", None])},
    )
    settled = settle(source, {"n": 7, "batch": "1,2"})
    assert settled.fixed is None and settled.space.dims["n"].is_fixed
    assert [dict(shape.sizes) for shape in settled.space.shapes] == [
        {"batch": 1, "n": 7},
        {"batch": 2, "n": 7},
    ]
    assert settle(source, {"n": 7, "batch": 2}).fixed == {"n": 7, "batch": 2}


def test_what_is_said_stays_and_the_rest_is_proposed(tmp_path: Path) -> None:
    settled = settle(text_model(tmp_path), {"length": "16,64"})
    assert settled.proposed == {"batch": "1..8"} and settled.space.dims["length"].sizes == (16, 64)
    fixed = settle(text_model(tmp_path), {"length": 16, "ids:0": "2"})
    assert fixed.fixed == {"length": 16, "batch": 2} and not fixed.proposed


def test_the_only_size_that_runs_is_found(tmp_path: Path) -> None:
    assert settle(_reshape(tmp_path), {}).fixed == {"width": 128}


def test_shapes_seen_in_production_are_the_space(tmp_path: Path) -> None:
    settled = settle(text_model(tmp_path), {}, [({"ids": (1, 16)}, 3.0), ({"ids": (1, 64)}, 1.0)])
    assert {s.sizes["length"]: s.weight for s in settled.space.shapes} == pytest.approx(
        {16: 0.75, 64: 0.25}
    )
    assert settled.space.dims["batch"].is_fixed


_PREFILL = {"length": 16, "past_length": 0, "total_length": 16}
_DECODE = {"length": 1, "past_length": 32, "total_length": 33}


def test_dimensions_that_belong_together_are_taken_as_they_were_seen(tmp_path: Path) -> None:
    settled = settle(_cached(tmp_path), {"batch": 1}, [(_PREFILL, 1.0), (_DECODE, 9.0)])
    assert {s.weight: dict(s.sizes) for s in settled.space.shapes} == {
        0.1: {"batch": 1, **_PREFILL},
        0.9: {"batch": 1, **_DECODE},
    }
    assert settle(_cached(tmp_path), {}, [(_PREFILL, 1.0), (_DECODE, 9.0)]).proposed == {
        "batch": "1..8"
    }


def test_dimensions_that_belong_together_may_be_said_by_samples(tmp_path: Path) -> None:
    samples = [
        {"key": (1, sizes["length"]), "past": (1, sizes["past_length"]), "mask": (1, sizes["total_length"])}
        for sizes in (_PREFILL, _DECODE)
    ]  # fmt: skip
    settled = settle(_cached(tmp_path), {}, samples=samples)
    assert [dict(s.sizes) for s in settled.space.shapes] == [
        {"batch": 1, **_DECODE},
        {"batch": 1, **_PREFILL},
    ]


def test_a_shape_that_was_seen_and_does_not_run_is_told(tmp_path: Path) -> None:
    told = _told(_cached(tmp_path), {}, [(_PREFILL, 1.0), ({**_DECODE, "total_length": 34}, 9.0)])
    assert (
        "cannot take length=1, past_length=32, total_length=34, which was seen: node 'mask_it'" in told
    )
    assert told.endswith("so leave that shape out")


def test_a_sum_of_dimensions_follows(tmp_path: Path) -> None:
    settled = settle(_decoder(tmp_path), {"batch": 1})
    assert settled.proposed == {"past": "0..512"} and not settled.notes


def test_an_output_against_its_name_is_noted(tmp_path: Path) -> None:
    settled = settle(_decoder(tmp_path, promised="past + 2"), {"batch": 1, "past": "4..8"})
    assert settled.notes[0] == (
        "axis 1 of output present_key is 5 in a run where its name 'past + 2' says 6; the name is ignored"
    )


def test_a_zip_is_read(tmp_path: Path) -> None:
    source = text_model(tmp_path)
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(source, "m.onnx")
    assert settle(tmp_path / "m.zip", {"batch": 1}).proposed == {"length": "1..256"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {"batch": 1, "length": "1..512"},
            "dimension length (axis 1 of input ids): the model cannot take size 512: node 'add_positions' (Add)",
        ),
        ({"batch": "1,4", "length": "200,400"}, "it takes 300, so give --dim length=200..300"),
        ({"batch": 1, "length": "301..512"}, "it takes 16, so give --dim length=16"),
        ({"batch": 1, "length": "400"}, "cannot take size 400: node 'add_positions'"),
    ],
)
def test_a_size_beyond_the_model_is_told_with_what_works(
    tmp_path: Path, dims: dict[str, int | str], message: str
) -> None:
    source = text_model(tmp_path)
    told = _told(source, dims)
    assert message in told
    assert _pasted(source, dims, told).space.dims["length"].high <= 300


def test_a_reshape_with_a_constant_is_named(tmp_path: Path) -> None:
    source = _reshape(tmp_path)
    told = _told(source, {"width": "100..200"})
    assert "node 'flatten' (Reshape) fails" in told and "axis 0 of input x" in told
    assert _pasted(source, {}, told).fixed == {"width": 128}


def test_a_model_that_runs_nowhere_lists_its_dimensions(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], "cut"),
        helper.make_node("Mul", ["r", "n"], ["y"], "scale"),
    ]
    source = save(
        tmp_path, nodes, {"x": (FLOAT, ["n_items", 3]), "n": (FLOAT, [1])}, {"y": (FLOAT, [17, 3])},
        shape=np.array([17, 3], np.int64),
    )  # fmt: skip
    with pytest.raises(ModelError) as raised:
        settle(source, {})
    assert "n_items (axis 0 of input x); no sizes were found that the model takes (node 'cut'" in str(
        raised.value
    )
    assert settle(source, {"n_items": 17}).fixed == {"n_items": 17}


def test_a_dimension_that_the_model_computes_is_told(tmp_path: Path) -> None:
    source = save(
        tmp_path,
        [helper.make_node("NonZero", ["x"], ["y"], "find")],
        {"x": (FLOAT, ["n"])},
        {"y": (INT, [1, "found"])},
    )
    assert "found is axis 1 of output y: it depends on what the model computes" in _told(
        source, {"found": 3}
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [({"ids": (1, 16, 2)}, 1.0)],
            "input ids has rank 2 (batch, length), but the shape [1, 16, 2]",
        ),
        ([({"length": 9}, 1.0)], "dimension length: a shape has size 9, which is outside of 16..64"),
    ],
)
def test_shapes_that_do_not_fit_are_told_before_a_run(
    tmp_path: Path, shapes: Any, message: str
) -> None:
    assert message in _told(text_model(tmp_path), {"length": "16..64"}, shapes)


def test_without_time_what_is_said_is_believed_and_told(tmp_path: Path) -> None:
    source = text_model(tmp_path)
    settled = settle(source, {"batch": 1, "length": "1..512"}, trials_s=0.0)
    assert settled.space.dims["length"].high == 512
    assert settled.notes == ("the model was not run at all ends of batch=1, length=1..512: it is slow",)
    with pytest.raises(
        ModelError, match="no sizes of the free dimensions at which the model runs were found"
    ):
        settle(source, {}, trials_s=0.0)


def test_trying_sizes_ends_when_the_time_is_up_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError, match=r"ends of its sizes was not done.*--time-limit.*--dim"):
        settle(text_model(tmp_path), {"length": "1..512"}, limit_s=0.0)


def test_a_model_without_free_dimensions_is_not_run(tmp_path: Path) -> None:
    source = save(
        tmp_path,
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "cut")],
        {"x": (FLOAT, [4])},
        {"y": (FLOAT, [3])},
        shape=np.array([3], np.int64),
    )
    assert settle(source, {}, [({"x": (4,)}, 1.0)]).fixed == {}


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    assert "is not an ONNX model" in _told(tmp_path / "m.onnx", {"a": "1..2"})
    assert "there is no model file" in _told(tmp_path / "none.onnx", {"a": "1..2"})


def test_a_model_that_the_reference_cannot_load_is_told_why(tmp_path: Path) -> None:
    kind, relu = TensorProto.BFLOAT16, helper.make_node("Relu", ["x"], ["y"], "relu")
    source = save(tmp_path, [relu], {"x": (kind, ["n"])}, {"y": (kind, ["n"])})
    with pytest.raises(ModelError) as raised:
        settle(source, {"n": "1..4"})
    assert str(raised.value) == (
        "ONNX Runtime, whose results are the reference, cannot load the model: Could not find an "
        "implementation for Relu(14) node with name 'relu'"
    )


def test_a_model_of_a_newer_version_has_ranges_too(tmp_path: Path) -> None:
    source = text_model(tmp_path)
    model = onnx.load(source)
    model.ir_version, model.opset_import[0].version = 14, onnx.defs.onnx_opset_version()
    onnx.save(model, source)
    assert settle(source, {"batch": 1, "length": "1..4"}).space.dims["length"].text == "1..4"


def test_ids_of_a_short_table_are_tried_within_it(tmp_path: Path) -> None:
    """Nodes of models as they come may have no name."""
    nodes = [
        helper.make_node("Cast", ["kind"], ["i"], to=INT),
        helper.make_node("Gather", ["kinds", "i"], ["y"]),
    ]
    kind, table = {"kind": (TensorProto.INT32, ["n"])}, np.ones((2, 4), np.float32)
    path = save(tmp_path, nodes, kind, {"y": (FLOAT, ["n", 4])}, kinds=table)
    assert settle(path, {"n": "1..16"}).space.dims["n"].high == 16


def test_output_that_is_there_twice_is_tried(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    path = save(tmp_path, nodes, {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 2])})
    proto = onnx.load(path)
    proto.graph.output.append(proto.graph.output[0])
    onnx.save(proto, path)
    assert settle(path, {"n": "1..16"}).space.dims["n"].high == 16
