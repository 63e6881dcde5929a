"""Control by the user, the same from Python and the command line: pins, bans, strategies, limits, levels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

import collage
from benchmarks.support.zero_model import FAST_CONV, FAST_POOL, zero_model
from collage.cli.app import app
from collage.events import Event
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.errors import BadInputError, CollageError
from collage.tuning.run import Run, TuneRequest

TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[1, 64] x) => (float[1, 64] f) {
    a = Relu(x)  b = Exp(a)  c = Tanh(b)  d = Sigmoid(c)  e = Neg(d)  f = Abs(e)
}"""
ORT, OV, ORT1 = "onnxruntime", "openvino", "onnxruntime -threads=1"
WHOLE = "null -latency_us=9000 -ops=Conv,Relu,MaxPool,Tanh"
Tune = Callable[..., list[tuple[str, str]]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control")
    onnx.save(control_model(), folder / "m.onnx")
    return folder


def control_model() -> onnx.ModelProto:
    """A chain of six nodes: three in the encoder, three in the head."""
    model = onnx.parser.parse_model(TEXT)
    for node in model.graph.node:
        node.name = (
            f"/{'encoder' if node.op_type in ('Relu', 'Exp', 'Tanh') else 'head'}/{node.op_type}"
        )
    return model


def _python(home: Path, targets: Sequence[str], options: dict[str, Any]) -> Path:
    made = collage.tune(
        home / "m.onnx",
        targets,
        output=home / "python.onnx",
        database=f"sqlite:///{home / 'c.db'}",
        **options,
    )
    return made.path


def _command(home: Path, targets: Sequence[str], options: dict[str, Any]) -> Path:
    words = ["tune", str(home / "m.onnx"), "-o", str(home / "cli.onnx")]
    words += ["--database", f"sqlite:///{home / 'c.db'}"]
    words += [word for target in targets for word in ("-t", target)]
    for name, value in options.items():
        flag = "--" + {"pins": "pin", "bans": "ban", "time_limit_s": "time-limit"}.get(
            name, name.replace("_", "-")
        )
        for one in value if isinstance(value, list) else [value]:
            words += [flag, str(one)]
    app(words, standalone_mode=False)
    return home / "cli.onnx"


WAYS = pytest.mark.parametrize("way", [_python, _command], ids=["python", "cli"])


def placed(artifact: Path) -> str:
    """The targets of the nodes in order, one letter each: o(nnxruntime), v(openvino), 1 (one thread)."""
    return placed_in(onnx.load(artifact))


def placed_in(model: onnx.ModelProto) -> str:
    """The same, of a model in memory."""
    letters = {ORT: "o", OV: "v", ORT1: "1", "onnxruntime -threads=2": "2"}
    letters["onnxruntime -device=0 -threads=2"] = "2"
    marks = [{p.key: p.value for p in node.metadata_props} for node in model.graph.node]
    # Options of a partition may be tuned after the search: then its backend is what counts.
    texts = [mark["collage.target"] for mark in marks]
    return "".join(letters.get(text) or letters[text.split()[0]] for text in texts)


CASES: list[tuple[list[str], dict[str, Any], str]] = [
    (
        [ORT, OV],
        {
            "strategy": "manual",
            "pins": ["Exp=openvino", "/encoder/[!E]*=onnxruntime", "/head/*=onnxruntime"],
        },
        "ovoooo",
    ),
    ([ORT, OV], {"strategy": "manual", "pins": ["/encoder/*=openvino", "/head/*=o*x*"]}, "vvvooo"),
    (
        [ORT, OV],
        {"strategy": "manual", "pins": ["a..d=openvino", "..a=onnxruntime", "d..=onnxruntime"]},
        "ovvvoo",
    ),
    ([ORT, OV], {"strategy": "manual", "bans": ["Abs=onnxruntime", "/*/[!A]*=openvino"]}, "ooooov"),
    ([OV, ORT], {"strategy": "priority", "bans": ["Sigmoid=openvino"]}, "vvvovv"),
    (
        [OV, ORT],
        {"strategy": "priority", "bans": ["Sigmoid=openvino", "Abs=onnxruntime"]},
        "vvvovv",
    ),
    (
        [ORT1, "onnxruntime -threads=2"],
        {"strategy": "manual", "pins": ["/encoder/*=* -threads=1", "/head/*=* -threads=2"]},
        "111222",
    ),
    # Three levels at once: the device, a unit of it (how many threads) and the compiler.
    (
        [ORT1, "onnxruntime -device=0 -threads=2", "openvino -threads=1", "openvino -threads=2"],
        {
            "strategy": "manual",
            "pins": [
                "/*=* -threads=*",
                "/encoder/*=* -threads=1",
                "/head/*=* -threads=2",
                "Exp=openvino",
                "/encoder/[!E]*=onnxruntime",
                "/head/*=onnxruntime -device=0",
            ],
        },
        "1v1222",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("targets", "options", "expected"), CASES)
def test_control_options_decide_the_target_of_each_node(
    home: Path, targets: list[str], options: dict[str, Any], expected: str
) -> None:
    assert placed(_python(home, targets, options)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("targets", "options"), [case[:2] for case in CASES])
def test_the_command_line_says_the_same(
    home: Path, targets: list[str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is real tunings from Python that show where this puts the nodes."""
    said = []

    def noted(request: TuneRequest, run: Run) -> None:
        said.append((request.targets, request.options))
        raise CollageError("that is all")

    monkeypatch.setattr("collage.api.run_tuning", noted)
    for way in (_python, _command):
        with pytest.raises(CollageError, match="that is all"):
            way(home, targets, options)
    assert said[0] == said[1]


@pytest.mark.slow
@WAYS
def test_limits_bind_the_plan(home: Path, way: Any) -> None:
    """A pin in the middle would make three partitions; two are allowed, so that it grows to an end."""
    options = {"pins": ["Tanh=openvino", "Relu=onnxruntime"], "max_partitions": 2, "time_limit_s": 4.0}
    found = placed(way(home, [ORT, OV], options))
    assert found[0] in "o12" and found[2:] == "vvvv"
    options = {"pins": ["Tanh=openvino"], "min_partition_nodes": 3, "time_limit_s": 4.0}
    parts = read_plan(way(home, [ORT, OV], options)).plan.partitions
    assert min(part.nodes.bit_count() for part in parts) >= 3
    options = {"pins": ["Tanh=openvino"], "max_devices": 1, "strategy": "greedy"}
    assert placed(way(home, [OV, ORT], options)) == "vvvvvv"


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize(
    ("targets", "options", "said"),
    [
        (
            [ORT, OV],
            {"pins": ["Exp=openvino", "/encoder/*=onnxruntime"]},
            "left without a target by pin",
        ),
        ([ORT, OV], {"pins": ["Exp=mnn"]}, "none of the targets given"),
        ([ORT, OV], {"pins": ["Conv=openvino"]}, "no operator type"),
        ([ORT, OV], {"bans": ["Exp=*"]}, "left without a target"),
        ([ORT, OV], {"pins": ["Exp=openvino", "Abs=onnxruntime"], "max_partitions": 1}, "at least 2"),
        ([ORT, OV], {"pins": ["nowhere..d=openvino"]}, "nowhere"),
        ([ORT, OV], {"strategy": "best"}, "optimal"),
    ],
)
def test_contradictions_are_said_before_anything_is_measured(
    home: Path, way: Any, targets: list[str], options: dict[str, Any], said: str, monkeypatch: Any
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("collage.runner.measure", never)
    with pytest.raises(BadInputError, match=said):
        way(home, targets, options)


def test_a_pin_to_a_target_that_refuses_the_node_says_its_reason(tmp_path: Path) -> None:
    text = (
        """<ir_version: 10, opset_import: ["" : 21]> g (double[4] x) => (double[4] y) { y = Det2(x) }"""
    )
    text = text.replace("Det2(x)", "Exp(x)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    events: list[Event] = []
    with pytest.raises(CollageError, match="mnn refuses it"):
        collage.tune(
            tmp_path / "m.onnx",
            ["onnxruntime", "mnn"],
            database=f"sqlite:///{tmp_path / 'c.db'}",
            pins=["Exp=mnn"],
            on_event=events.append,
        )
    assert all(event.stage != "measure" for event in events)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [(ORT, OV), (WHOLE, FAST_CONV, FAST_POOL)], ids=["real", "stated"])
def test_any_time_limit_gives_a_plan_and_an_honest_bound(
    targets: Sequence[str], home: Path, tmp_path: Path
) -> None:
    model = home / "m.onnx"
    if WHOLE in targets:
        model = tmp_path / "zero.onnx"
        model.write_bytes(zero_model())
    known, searches = [], []
    for seconds in (0.01, 1.0, 24.0):
        made = collage.tune(
            model,
            targets,
            output=tmp_path / "t.onnx",
            database=f"sqlite:///{tmp_path / 'c.db'}",
            time_limit_s=seconds,
        )
        search, warnings = made.report["search"], made.report["warnings"]
        if search is None:  # docs/time.md: the time was up, or one of several runtimes is far ahead
            left_out = [text for text in warnings if "left out" in text and "the search" in text]
            ended_early = [text for text in warnings if "ended early" in text]
            assert (left_out and seconds < 24) or (ended_early and OV in targets), warnings
        else:
            assert search["bound_us"] <= search["objective_us"] * (1 + 1e-9)
        searches.append(search)
        assert made.report["partitions"] and json.dumps(search)
        # First timings may take longer than a short limit. What did not fit is named, and is known by the last.
        late = [text for text in warnings if "time was up" in text]
        assert len(late) <= (seconds < 24)
        assert all(f"'{targets[0]}'" not in text for text in late)
        assert all(any(f"'{target}'" in text for target in targets[1:]) for text in late)
        counts = made.report["candidates"]
        known.append(counts["measured"] + counts["from_cache"])
    # With more time at least as much is known. (What is promised may change either way: how whole models compare is
    # timed anew.)
    assert known == sorted(known)
    if WHOLE in targets:  # no runtime is beside it, so the last is a search
        assert searches[-1] is not None and known[-1] > known[0]
