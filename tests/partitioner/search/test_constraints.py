"""Pins, bans and limits: their text forms, what they mean, and their contradictions."""

from __future__ import annotations

import pytest

from collage.partitioner.candidate import Candidate
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.search.constraints import Budget, Constraints
from collage.partitioner.search.selection import ConstraintError, Placement, Selection, TargetGlob
from collage.partitioner.target import Target
from tests.partitioner.graphs import names, text_model
from tests.partitioner.search.search_cases import search

ORT = Target.parse("onnxruntime")
OV = Target.parse("openvino")
BF16 = Target.parse("openvino -precision=bf16 -threads=2")
MNN = Target.parse("mnn")

MODEL = text_model(
    """g (float[4] x) => (float[4] e, float[4] f) {
    [enc_a] a = Relu(x)  [enc_b] b = Exp(a)  [side] s = Neg(a)  [dec_d] d = Add(b, s)
    [dec_e] e = Relu(d)  [dec_f] f = com.microsoft.Gelu(d) }"""
)
INDEX = MODEL.index


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("Relu", "enc_a dec_e"),
        ("com.microsoft::Gelu", "dec_f"),
        ("Gelu", "dec_f"),
        ("dec_d", "dec_d"),
        ("enc_*", "enc_a enc_b"),
        ("*_[de]", "dec_d dec_e"),
        ("a..d", "enc_b side dec_d"),
        ("x..b", "enc_a enc_b"),
        ("b..", "dec_d dec_e dec_f"),
        ("..s", "enc_a side"),
    ],
)
def test_nodes_of_a_text(text: str, nodes: str) -> None:
    assert names(INDEX, Selection(text).resolve(INDEX)) == nodes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Rleu", "did you mean 'Relu'"),
        ("encoder/*", "no operator type"),
        ("nothing..d", "no value 'nothing'"),
        ("e..a", "no way leads"),
        ("..", "is empty"),
        ("d..x", "no way leads"),
    ],
)
def test_a_text_that_means_nothing(text: str, said: str) -> None:
    with pytest.raises(ConstraintError, match=said) as error:
        Selection(text).resolve(INDEX)
    assert isinstance(error.value, BadInputError)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("openvino", [OV, BF16]),
        ("openvino -precision=bf16", [BF16]),
        ("* -threads=*", [BF16]),
        ("o*", [ORT, OV, BF16]),
        ("tvm", []),
    ],
)
def test_targets_of_a_text(text: str, targets: list[Target]) -> None:
    glob = TargetGlob.parse(text)
    assert [target for target in (ORT, OV, BF16, MNN) if target in glob] == targets


@pytest.mark.parametrize(
    "text", ["Conv", "=mnn", "Conv=", "Conv=-x=1", "Conv=mnn threads", "Conv=mnn -x"]
)
def test_a_misspelled_pin_is_an_error(text: str) -> None:
    with pytest.raises(ConstraintError):
        Constraints.parse(pins=[text])


def test_a_rule_reads_back() -> None:
    assert (
        str(Placement.parse(" /encoder/* = openvino -precision=bf16"))
        == "/encoder/*=openvino -precision=bf16"
    )


@pytest.mark.parametrize(
    ("text", "nodes", "target"),
    [
        ("a=b=openvino", "a=b", "openvino"),
        ("layer=1/Conv=openvino -precision=bf16", "layer=1/Conv", "openvino -precision=bf16"),
        ("k=v x=* -device=cuda:*", "k=v x", "* -device=cuda:*"),
        ("Conv=mnn -x=A=B", "Conv", "mnn -x=A=B"),
        ("a=..b=o*", "a=..b", "o*"),
        ("a==mnn", "a=", "mnn"),
    ],
)
def test_names_of_nodes_may_have_equal_signs(text: str, nodes: str, target: str) -> None:
    placement = Placement.parse(text)
    assert (placement.selection.text, str(placement.target)) == (nodes, target)
    assert Placement.parse(str(placement)) == placement


def test_a_node_is_pinned_by_a_name_with_equal_signs() -> None:
    model = text_model("g (float[4] x) => (float[4] z) { y = Relu(x)  z = Relu(y) }").ir
    model.graph[0].name = "scope=1/relu=a"
    pins = Constraints.parse(pins=["scope=1/relu=a=openvino"])
    kept = pins.forbidden_nodes(GraphIndex.from_ir(model), [ORT, OV])
    assert kept == {ORT: 0b01, OV: 0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pins": ["Relu=tvm"]}, "none of the targets given"),
        ({"pins": ["Relu=mnn", "enc_a=openvino"]}, "enc_a .Relu. is left without a target by pin"),
        (
            {"pins": ["Relu=mnn"], "bans": ["dec_*=mnn"]},
            "dec_e .* by pin 'Relu=mnn' and ban 'dec_\\*=mnn'",
        ),
        ({"pins": ["side=mnn"]}, "mnn refuses it: no Neg here"),
        ({"bans": ["*=onnxruntime", "*=openvino"]}, "side .Neg. is left without a target"),
        ({"pins": ["enc_a=mnn", "enc_b=openvino"], "max_partitions": 1}, "at least 2 partitions"),
        ({"pins": ["enc_a=mnn", "enc_b=openvino"], "max_devices": 1}, "at least 2 devices"),
        ({"bans": ["Conv=mnn"]}, "no operator type"),
    ],
)
def test_contradictions_are_found_without_costs(options: dict, said: str) -> None:
    refusals = {(2, MNN): "no Neg here"}
    with pytest.raises(ConstraintError, match=said):
        Constraints.parse(**options).check(INDEX, [ORT, OV, MNN], refusals, {MNN: "phone"})


def test_node_without_any_target_is_not_blamed_on_pins() -> None:
    """The search reports that, with every target's reason."""
    refusals = {(2, target): "no" for target in (ORT, MNN)}
    Constraints.parse(pins=["enc_a=mnn"]).check(INDEX, [ORT, MNN], refusals)


@pytest.mark.parametrize("name", ["max_partitions", "max_devices", "min_partition_nodes"])
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ConstraintError, match=name):
        Constraints.parse(**{name: 0})


def test_a_budget_is_for_the_candidates_at_hand() -> None:
    budget = Budget("error", (0.0,), 1.0)
    with pytest.raises(ConstraintError, match="1 amounts for 2 candidates"):
        Constraints(budgets=(budget,)).allowed(INDEX, [Candidate(1, ORT), Candidate(2, ORT)])
    with pytest.raises(ConstraintError, match="negative"):
        Budget("error", (-1.0,), 1.0)
    three = [Candidate(1, ORT), Candidate(2, ORT), Candidate(2, OV)]
    among = Budget("error", (0.1, 0.2, 0.3), 1.0).among(three, [three[2], three[0]])
    assert among == Budget("error", (0.3, 0.1), 1.0)


def plan_of(**options: object) -> list[tuple[str, str]]:
    """The best plan when onnxruntime is cheapest everywhere and every interval is offered."""
    masks = [m for m in range(1, INDEX.all_nodes + 1) if INDEX.is_convex(m)]
    candidates = [Candidate(m, target) for target in (ORT, OV, MNN) for m in masks]
    factor = {ORT: 1.0, OV: 2.0, MNN: 3.0}
    costs = [factor[c.target] * (1 + c.nodes.bit_count()) for c in candidates]
    constraints = Constraints.parse(**options)  # type: ignore[arg-type]
    plan = search(INDEX, candidates, costs, constraints=constraints).plans[0].plan
    return [(names(INDEX, p.nodes), str(p.target)) for p in plan.partitions]


def test_plans_keep_to_pins_and_bans() -> None:
    everything = "enc_a enc_b side dec_d dec_e dec_f"
    assert plan_of() == [(everything, "onnxruntime")]
    assert plan_of(bans=["*=onnxruntime"]) == [(everything, "openvino")]
    assert plan_of(pins=["dec_f=mnn"]) == [
        ("enc_a enc_b side dec_d dec_e", "onnxruntime"),
        ("dec_f", "mnn"),
    ]
    assert plan_of(bans=["a..d=onnxruntime"], max_partitions=1) == [(everything, "openvino")]
    assert plan_of(pins=["enc_*=openvino"], min_partition_nodes=3) == [
        ("enc_a enc_b side", "openvino"),
        ("dec_d dec_e dec_f", "onnxruntime"),
    ]
