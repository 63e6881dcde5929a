"""Rule files: the examples of docs/rules.md work as documented; errors name line and key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from collage.partitioner.candidate import Candidate
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.sub_graph import Limits
from collage.partitioner.rules.proposal import Scope
from collage.partitioner.rules.rule_file import load_rule, parse_rule
from collage.partitioner.rules.rules import FUSE_OPS, CombineRule, OnlyValidRule, OpKindRule
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.rules.yaml_lines import FileError
from collage.partitioner.target import Target
from tests.partitioner.graphs import TextModel, names, text_model

DOCS = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)

CONV_NET = text_model("""g (float[1,8,8,8] x, float[8,8,1,1] w) => (float[1,8,8,8] y) {
    [conv1] a = Conv(x, w) [relu1] b = Relu(a) [conv2] c = Conv(b, w) [relu2] y = Relu(c) }""")


def takes_all(index: GraphIndex, node: int) -> str | None:
    return None


def spec(name: str, text: str) -> TargetSpec:
    return TargetSpec(Target(name), "library", takes_all, rule=parse_rule(text, f"{name}.yaml"))


def offered(text: str, model: TextModel = CONV_NET, refused: str = "") -> set[str]:
    def supports(index: GraphIndex, node: int) -> str | None:
        return "refused" if index.nodes[node].name in refused.split() else None

    found = parse_rule(text).candidates(Scope(model, supports)).found
    return {names(model.index, p.nodes) for p in found}


def covers(candidates: Sequence[Candidate], all_nodes: int) -> Iterator[tuple[Candidate, ...]]:
    """Every way to cover every node exactly once."""
    if not all_nodes:
        yield ()
        return
    first = all_nodes & -all_nodes
    for candidate in candidates:
        if candidate.nodes & first and not candidate.nodes & ~all_nodes:
            for rest in covers(candidates, all_nodes & ~candidate.nodes):
                yield (candidate, *rest)


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_in_the_docs_can_be_read(text: str) -> None:
    assert offered(text)
    assert parse_rule(json.dumps(yaml.safe_load(text))) == parse_rule(text)


@pytest.mark.parametrize("text", EXAMPLES[:2])
def test_conv_relu_but_not_relu_conv(text: str) -> None:
    assert offered(text) == {"conv1", "relu1", "conv2", "relu2", "conv1 relu1", "conv2 relu2"}


def test_a_node_that_the_backend_refuses_is_never_offered() -> None:
    for text in EXAMPLES:
        assert all("relu1" not in nodes.split() for nodes in offered(text, refused="relu1"))


def test_rule_files_of_two_accelerators_give_all_valid_mixtures_alone() -> None:
    """Each accelerator fuses something else: all valid mixtures are found, and no invalid one."""
    found = enumerate_candidates(CONV_NET, [spec("first", EXAMPLES[2]), spec("second", EXAMPLES[3])])
    index = CONV_NET.index
    valid = {
        "first": {"conv1", "relu1", "conv2", "relu2", "conv1 relu1 conv2"},
        "second": {"conv1", "relu1", "conv2", "relu2", "conv1 relu1", "conv2 relu2"},
    }
    offered = {(str(c.target), names(index, c.nodes)) for c in found.candidates}
    assert offered == {(target, nodes) for target, sets in valid.items() for nodes in sets}
    plans = {
        tuple((str(c.target), names(index, c.nodes)) for c in plan)
        for plan in covers(found.candidates, index.all_nodes)
    }
    # Four nodes alone on either (16); the first's kernel, then a Relu on either (2); one of the
    # second's kernels, with two nodes alone on either (2 × 4); both of them (1).
    assert len(plans) == 16 + 2 + 8 + 1
    assert (("first", "conv1 relu1 conv2"), ("second", "relu2")) in plans
    assert (("second", "conv1 relu1"), ("second", "conv2 relu2")) in plans


def test_a_node_that_no_rule_proposes_is_explained() -> None:
    model = text_model("g (float[4] x) => (float[4] y) { [r] a = Relu(x) [s] y = Sqrt(a) }")
    found = enumerate_candidates(model, [spec("npu", EXAMPLES[0])])
    assert found.refusals == {(1, Target("npu")): "the target's rules propose nothing for it"}


def test_every_rule_of_the_algebra_can_be_written() -> None:
    text = """
version: 1
rule:
  union:
    - composite: {name: lib, rule: {pattern: {name: p, nodes: ["a, b = Split(x) {num_outputs: 2}"]}}}
    - host: {name: left}
    - regions: {max_intervals: 100}
    - kinds: {max: injective, name: small}
    - primitive: {name: kernel, rule: {ops: {names: ["*"], name: op}}}
    - only_valid: {max_exits: 1, allow_taps: false, rule: {combine: {
        with: [anything, variadic_inputs, multi_outputs, constant_inputs, fuse_ops,
               "broadcast->reduction"],
        max_depth: 3, max_candidates: 50, name: joined, rule: {kinds: {max: opaque}}}}}
"""
    model = text_model("""g (float[4] x) => (float[4] y) {
        [s] a, b = Split <num_outputs = 2> (x) [r] c = Relu(a) [k] y = Concat <axis = 0> (c, b) }""")
    found = enumerate_candidates(model, [spec("t", text)])
    assert {"s", "r", "k", "s r k", "r k"} <= {names(model.index, c.nodes) for c in found.candidates}
    assert {c.rule for c in found.candidates} >= {"lib.p", "small.Relu", "region.maximal"}


def test_a_file_is_the_same_value_as_the_rule_in_python(tmp_path: Path) -> None:
    fused = next(text for text in EXAMPLES if "fuse_ops" in text)
    path = tmp_path / "r.yaml"
    path.write_text(fused, encoding="utf-8")
    limits = Limits(max_exits=1, allow_taps=False)
    assert load_rule(path) == OnlyValidRule(limits, CombineRule(OpKindRule(), FUSE_OPS))


def pattern(*lines: str, where: str = "{}") -> str:
    nodes = "\n".join(f"      - '{line}'" for line in lines)
    return f"version: 1\nrule:\n  pattern:\n    name: p\n    nodes:\n{nodes}\n    where: {where}\n"


def test_attributes_in_a_pattern_and_their_defaults() -> None:
    model = text_model("""g (float[1,4,8,8] x, float[4,1,1,1] w, float[4,4,1,1] v)
        => (float[1,4,8,8] y) {
        [grouped] a = Conv <group = 4> (x, w) [plain] y = Conv(a, v) }""")
    assert offered(pattern("y = Conv(x, ...) {group: 1}"), model) == {"plain"}
    assert offered(pattern("y = Conv(x, ...) {group: 4}"), model) == {"grouped"}
    assert offered(pattern("y = Conv(x, ...)", where="{attributes: {group: 4}}"), model) == {"grouped"}


def test_types_rank_and_known_shapes() -> None:
    model = text_model("""g (float[4] x, double[4] d, float[N,4] n)
        => (float[4] p, double[4] q, float[N,4] r) {
        [f] p = Relu(x) [d] q = Relu(d) [n] r = Relu(n) }""")
    assert offered(pattern("y = Relu(x)", where="{dtypes: [float32]}"), model) == {"f", "n"}
    assert offered(pattern("y = Relu(x)", where="{max_rank: 1}"), model) == {"f", "d"}
    assert offered(pattern("y = Relu(x)", where="{static: true}"), model) == {"f", "d"}


def test_names_underscores_and_dots_in_patterns() -> None:
    model = text_model("""g (float[4] x, float[4] b) => (float[4] p, float[4] q) {
        [same] p = Add(x, x) [two] q = Add(x, b) }""")
    assert offered(pattern("y = Add(a, a)"), model) == {"same"}
    assert offered(pattern("y = Add(_, _)"), model) == {"same", "two"}
    assert offered(pattern("y = Add(a, ...)"), model) == {"same", "two"}
    assert offered(pattern("y = Add(a)"), model) == set()


def test_operators_of_other_domains_in_patterns() -> None:
    model = text_model("""g (float[4] x) => (float[4] z) {
        [own] y = Gelu(x) [other] z = com.microsoft.Gelu(y) }""")
    assert offered(pattern("y = com.microsoft::Gelu(x)"), model) == {"other"}
    assert offered(pattern("y = ai.onnx::Gelu(x)"), model) == {"own"}


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        (
            "version: 1\nrule:\n  union:\n    - patern: {}\n",
            4,
            "rule.union[0]",
            "'patern' was unexpected",
        ),
        ("version: 2\nrule: {host: {}}\n", 1, "version", "1 was expected"),
        ("version: 1\n", 1, "", "'rule' is a required property"),
        ("version: 1\nrule:\n  kinds:\n    max: big\n", 4, "rule.kinds.max", "'big' is not one of"),
        (
            "version: 1\nrule:\n  combine:\n    rule: {host: {}}\n    with: [a->b]\n",
            5,
            "rule.combine.with[0]",
            "a->b",
        ),
        (
            "version: 1\nrule:\n  ops:\n    names:\n      - Conv\n      - Rellu\n",
            6,
            "rule.ops.names[1]",
            "mean Relu",
        ),
        (pattern("c = Conv(x, ...)", "y = Rellu(c)"), 7, "rule.pattern.nodes[1]", "did you mean Relu?"),
        (pattern("y = Relu x"), 6, "rule.pattern.nodes[0]", "is not of the form"),
        (pattern("y = Relu(x-1)"), 6, "rule.pattern.nodes[0]", "'x-1' is not a name"),
        (pattern("y = Relu(y)"), 6, "rule.pattern.nodes[0]", "read before it is made"),
        (pattern("y = Relu(x)", "y = Abs(x)"), 7, "rule.pattern.nodes[1]", "made twice"),
        (pattern("y = Relu(x) {a: [}"), 6, "rule.pattern.nodes[0]", "does not list attributes"),
        ("version: 1\nversion: 1\n", 2, "version", "stands twice"),
        ("version: 1\nrule: [\n", 3, "", "not YAML or JSON"),
        ("version: 1\nrule: !!python/name:os.system x\n", 2, "", "the tag"),
        ("a: &x [1]\nb: *x\n", 2, "", "alias *x"),
        ("", 1, "", "empty"),
        ("[" * 3000 + "]" * 3000, 1, "", "nested too deeply"),
        ('{"version": 1,\n "rule": {"host": 3}}', 2, "rule.host", "is not of type 'object'"),
    ],
)
def test_errors_name_line_and_key(text: str, line: int, key: str, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_rule(text, "npu.yaml")
    assert (caught.value.line, caught.value.key) == (line, key)
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"npu.yaml, line {line}")


def test_the_error_shown_in_the_docs_is_what_is_said() -> None:
    wrong = EXAMPLES[0].replace("about:", "# ").replace("y = Relu(c)", "y = Rellu(c)")
    with pytest.raises(
        FileError, match=re.escape("nodes[1]: ai.onnx has no operator 'Rellu'; did you mean Relu?")
    ):
        parse_rule(wrong)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.yaml cannot be read"):
        load_rule(tmp_path / "none.yaml")
