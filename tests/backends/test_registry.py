"""The registry: targets are checked, canonical and explained, and plugins join by their entry point."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collage.backends import registry
from collage.backends.contract import Unavailable
from collage.backends.testing.null import NullBackend
from collage.partitioner.errors import BadInputError, CollageError, TargetError
from collage.partitioner.rules.regions import RegionRule
from collage.partitioner.target import Target


class WrongNameBackend(NullBackend):
    name = "other"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def use(**named: str) -> None:
        points = [EntryPoint(name, value, registry.GROUP) for name, value in named.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)

    return use


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tvm5", "unknown backend 'tvm5'; known are .*mnn.*ncnn.*null.*onnxruntime.*openvino"),
        (
            "onnxruntime -level=3",
            "no option -level in onnxruntime, only calibrate, device, ep, float, graphs, host, opt, ",
        ),
        ("onnxruntime -opt=high", "-opt is one of all, basic, extended, none, not 'high'"),
        ("openvino -threads=0", "-threads=0 is not of the form"),
        ("onnxruntime -ep=coreml", "has no CoreMLExecutionProvider"),
    ],
)
def test_unusable_target_is_refused_with_the_known_ones(target: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        registry.resolve(Target.parse(target))


def test_target_without_its_runtime_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Unavailable("MNN is not installed", "pip install 'collage-tuner[mnn]'")
    monkeypatch.setattr(type(registry.backends()["mnn"]), "probe", lambda self: missing)
    with pytest.raises(TargetError, match=r"MNN is not installed.*pip install 'collage-tuner\[mnn\]'"):
        registry.resolve(Target.parse("mnn"))


def test_canonical_targets_name_every_option_that_matters() -> None:
    short = registry.canonical(Target.parse("openvino -rules=mine.yaml"), threads=2)
    assert short == registry.canonical(Target.parse("openvino -precision=f32 -threads=2"), threads=8)
    assert "-precision=f32" in str(short) and "rules" not in str(short)
    assert registry.canonical(short) == short


def test_later_option_at_its_default_changes_no_key() -> None:
    """Costs that a team has stored stay known when it upgrades."""
    plain, kept, moved = (
        registry.canonical(Target.parse(f"openvino {text}"), threads=2)
        for text in ("", "-rewrite=off", "-rewrite=on")
    )
    assert plain == kept and "rewrite" not in str(plain)
    assert "-rewrite=on" in str(moved) and registry.canonical(moved) == moved


def test_options_of_cpus_are_not_tried_on_a_device() -> None:
    host, on_device = (
        registry.tunable_options(Target.parse(text), threads=2)
        for text in ("onnxruntime", "onnxruntime -ep=cuda")
    )
    assert host["threads"] == ("1",) and "winograd" in host["rewrite"]
    assert not on_device


def test_a_target_spec_carries_what_the_partitioner_needs() -> None:
    spec = registry.target_spec(Target.parse("openvino"))
    assert (spec.style, spec.memory_domain) == ("graph", "host")
    assert {pattern.name for pattern in spec.patterns} >= {"conv_relu"}


def test_a_target_may_name_its_own_rule_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nrule: {regions: {}}\n", encoding="utf-8")
    target = Target.parse(f"onnxruntime -rules={tmp_path / 'mine.yaml'}")
    assert registry.target_spec(target).rule == RegionRule()
    with pytest.raises(BadInputError, match=r"none\.yaml"):
        registry.target_spec(Target.parse(f"onnxruntime -rules={tmp_path / 'none.yaml'}"))


def test_plugins_are_found_by_their_entry_point(plugins) -> None:  # type: ignore[no-untyped-def]
    plugins(other="tests.backends.test_registry:WrongNameBackend")
    assert registry.backends()["other"].name == "other"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere_at_all:Backend", "No module named 'nowhere_at_all'"),
        ("tests.backends.test_registry:WrongNameBackend", "does not make a Backend named 'mine'"),
    ],
)
def test_a_plugin_that_fails_is_listed_with_its_reason(plugins, value: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    plugins(mine=value)
    found = registry.backends()["mine"].probe()
    assert isinstance(found, Unavailable) and reason in found.reason
    with pytest.raises(TargetError, match=reason):
        registry.resolve(Target.parse("mine"))


def test_two_backends_of_one_name_are_an_error(plugins) -> None:  # type: ignore[no-untyped-def]
    plugins(openvino="tests.backends.test_registry:WrongNameBackend")
    with pytest.raises(CollageError, match="two backends are named 'openvino'"):
        registry.backends()
