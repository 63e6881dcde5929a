"""What an artifact says of shapes, as text and back."""

from __future__ import annotations

import json

import pytest

from collage.partitioner.errors import BadInputError
from collage.shapes.classes import Proof, ServedShapes, ShapeClass, TreatedPlan, extent
from collage.shapes.space import parse_dims

_PLAN = TreatedPlan("{}", ("dynamic", "dynamic"))
_SERVED = ServedShapes(
    space=parse_dims({"batch": "1,4", "length": "8..64"}),
    axes={"x": ("batch", "length", 3), "y": ("batch", None)},
    data_dependent=("y",),
    classes=(
        ShapeClass(40, _PLAN),
        ShapeClass(None, _PLAN, TreatedPlan("{}", ("exact",)), 12),
    ),
    proofs=(Proof({"batch": 1, "length": 8}, "one"), Proof({"batch": 4, "length": 64}, "two", "three")),
    most_copies=7,
)


def test_text_keeps_everything() -> None:
    assert ServedShapes.from_text(_SERVED.to_text()) == _SERVED


def test_a_shape_belongs_to_the_class_of_its_extent() -> None:
    assert extent({"batch": 4, "length": 10}) == 40
    assert _SERVED.class_of({"batch": 4, "length": 10}) == 0
    assert _SERVED.class_of({"batch": 1, "length": 41}) == 1
    assert _SERVED.class_of({"batch": 1000, "length": 1000}) == 1


def test_another_format_is_told() -> None:
    data = {**json.loads(_SERVED.to_text()), "format": 2}
    with pytest.raises(BadInputError, match="have format 2; this version reads 1"):
        ServedShapes.from_text(json.dumps(data))


@pytest.mark.parametrize("name", ["space", "axes", "classes", "proofs", "most_copies"])
def test_damage_is_told(name: str) -> None:
    data = json.loads(_SERVED.to_text())
    del data[name]
    with pytest.raises(BadInputError, match="shapes are damaged"):
        ServedShapes.from_text(json.dumps(data))
    with pytest.raises(BadInputError, match="shapes are damaged"):
        ServedShapes.from_text("[")
