"""The answer in one sentence, for each kind of result."""

from __future__ import annotations

from collage.report.verdict import verdict
from tests.collage.report.reports import plan, report

ORT, OV, MNN = "onnxruntime", "openvino", "mnn"
MIX = plan("searched 1", [OV, MNN], 0.9)


def test_single_wins_compares_with_onnx_runtime() -> None:
    found = verdict(report([OV], {ORT: 2.03, OV: 1.0, MNN: 3.0}, plans=[MIX]))
    assert found.sentence == "OpenVINO alone is the fastest: 2.03 × ONNX Runtime; no mix was faster."
    assert found.warning is None


def test_onnx_runtime_wins_compares_with_the_next() -> None:
    found = verdict(report([ORT], {ORT: 1.0, OV: 1.5, MNN: 1.3}))
    assert found.sentence == (
        "ONNX Runtime alone is the fastest: 1.30 × MNN, the next best; no mix is predicted to be faster."
    )


def test_single_wins_near_a_mix_says_no_mix_is_proven() -> None:
    near = plan("searched 1", [OV, MNN], 0.99, high=1.02)
    assert (
        "no mix was proven faster" in verdict(report([OV], {ORT: 2.0, OV: 1.0}, plans=[near])).sentence
    )


def test_single_wins_in_a_search_that_stopped_early() -> None:
    search = {"objective_us": 2.0, "bound_us": 1.0, "optimal": False}
    found = verdict(report([OV], {ORT: 2.0, OV: 1.0}, search=search))
    assert found.sentence.endswith("; the search found no faster mix.")


def test_partitions_of_one_target_are_no_mix() -> None:
    blocks = plan("openvino in blocks", [OV], 0.99, high=1.02)
    found = verdict(report([OV], {ORT: 2.0, OV: 1.0}, plans=[blocks]))
    assert "no mix is predicted to be faster" in found.sentence


def test_variant_of_a_target_names_its_option() -> None:
    found = verdict(report([f"{OV} -threads=1"], {ORT: 2.42, OV: 1.43}, plans=[MIX]))
    assert found.sentence == (
        "OpenVINO with -threads=1 is the fastest: 1.43 × OpenVINO as given, 2.42 × ONNX Runtime; "
        "no mix was faster."
    )
    assert found.warning is None


def test_variant_within_noise_warns() -> None:
    found = verdict(report([f"{OV} -threads=1"], {ORT: 2.0, OV: 1.005}))
    assert found.warning == "the plan is not proven faster than OpenVINO alone: 1.005 × [0.995, 1.015]"


def test_variant_alone_where_no_target_as_given_runs() -> None:
    found = verdict(report([f"{OV} -rewrite=on"], {OV: "refuses Loop"}))
    assert "no target as given ran the whole model" in found.sentence


def test_mix_wins_compares_with_best_single_and_onnx_runtime() -> None:
    found = verdict(report([OV, MNN], {ORT: 1.61, OV: 1.15, MNN: 2.0}))
    assert found.sentence == (
        "2 partitions (openvino, mnn) are the fastest: 1.15 × the best single target openvino, "
        "1.61 × ONNX Runtime."
    )
    assert found.warning is None


def test_mix_over_onnx_runtime_names_it_once() -> None:
    found = verdict(report([ORT, OV, ORT], {ORT: 1.1, OV: 1.2}))
    assert found.sentence == (
        "3 partitions (onnxruntime, openvino) are the fastest: 1.10 × the best single target onnxruntime."
    )


def test_mix_within_noise_warns() -> None:
    found = verdict(report([OV, MNN], {ORT: 1.6, OV: 1.005}))
    assert found.sentence == (
        "2 partitions (openvino, mnn) are returned: 1.00 × OpenVINO, so not proven faster."
    )
    assert found.warning == "the plan is not proven faster than OpenVINO alone: 1.005 × [0.995, 1.015]"


def test_mix_without_a_best_single_says_so() -> None:
    found = verdict(report([OV, MNN], {OV: "refuses Loop", MNN: "refuses Conv"}))
    assert found.sentence == (
        "2 partitions (openvino, mnn) are the fastest; no single target ran the whole model within the "
        "tolerance."
    )


def test_tie_of_two_singles_is_no_win() -> None:
    found = verdict(report([ORT], {ORT: 1.0, OV: 1.005, MNN: 2.0}))
    assert found.sentence == (
        "ONNX Runtime alone is returned; not proven faster than OpenVINO (1.00 ×); "
        "no mix is predicted to be faster."
    )


def test_tie_of_others_still_compares_with_onnx_runtime() -> None:
    found = verdict(report([OV], {ORT: 2.0, OV: 1.0, MNN: 1.005}))
    assert found.sentence.startswith(
        "OpenVINO alone is returned: 2.00 × ONNX Runtime; not proven faster than MNN (1.00 ×); "
    )


def test_accuracy_budget_tells_the_error() -> None:
    bf16 = f"{OV} -precision=bf16"
    found = verdict(report([bf16], {ORT: 3.0, bf16: 1.0}, tolerance=1e-2, max_relative_error=0.004))
    assert found.sentence == (
        "OpenVINO with -precision=bf16 alone is the fastest: 3.00 × ONNX Runtime; "
        "no mix is predicted to be faster; its error is 0.004 of 0.01 allowed."
    )


def test_target_over_the_tolerance_is_not_compared_with() -> None:
    bf16 = f"{OV} -precision=bf16"
    made = report([ORT, OV], {ORT: 1.2, OV: 1.3, bf16: 0.5})
    made["baselines"][2]["exceeds_tolerance"] = 0.1
    assert "1.20 × the best single target onnxruntime" in verdict(made).sentence


def test_one_target_given_says_nothing_faster_was_found() -> None:
    found = verdict(report([OV], {OV: 1.0}))
    assert found.sentence == "OpenVINO is the only target given, and nothing faster was found."


def test_only_one_target_runs_the_whole_model() -> None:
    found = verdict(report([ORT], {ORT: 1.0, MNN: "refuses Loop"}, plans=[MIX]))
    assert found.sentence == (
        "ONNX Runtime alone is returned: no other target ran the whole model within the tolerance; "
        "no mix was faster."
    )


def test_single_strategy_says_mixes_were_not_searched() -> None:
    found = verdict(
        report([OV], {ORT: 2.0, OV: 1.0}, search=None, plans=[plan(f"single {OV}", [OV], 1.0)])
    )
    assert found.sentence == (
        "OpenVINO is the fastest single target: 2.00 × ONNX Runtime; mixes were not searched."
    )


def test_given_plan_is_compared_but_not_called_the_fastest() -> None:
    given = plan("given plan", [OV, MNN], 1.2)
    found = verdict(report([OV, MNN], {ORT: 1.6, OV: 1.2}, search=None, plans=[given]))
    assert found.sentence == (
        "The given plan, 2 partitions (openvino, mnn), is returned: 1.20 × OpenVINO, 1.60 × ONNX Runtime."
    )


def test_greedy_plan_slower_than_a_single_target_warns() -> None:
    greedy = plan("greedy", [OV, MNN], 0.8)
    found = verdict(report([OV, MNN], {ORT: 1.6, OV: 0.8}, search=None, plans=[greedy]))
    assert found.sentence == (
        "The greedy plan, 2 partitions (openvino, mnn), is returned: 0.80 × OpenVINO, so slower."
    )
    assert found.warning == "the plan is slower than OpenVINO alone: 0.800 × [0.792, 0.808]"


def test_greedy_plan_that_failed_is_not_the_returned_one() -> None:
    """A target that claims every node crashes, and another one is so far ahead that nothing is searched."""
    failed = {"name": "greedy", "partitions": 1, "targets": [MNN], "infeasible": "crash: SIGFPE"}
    found = verdict(report([OV], {ORT: 1.6, OV: 1.0, MNN: "crash"}, search=None, plans=[failed]))
    assert found.sentence == (
        "OpenVINO is the fastest single target: 1.60 × ONNX Runtime; mixes were not searched."
    )
    timed = plan("greedy", [OV, MNN], 0.8)
    found = verdict(report([OV], {ORT: 1.6, OV: 1.0, MNN: "crash"}, search=None, plans=[timed]))
    assert found.sentence.startswith("OpenVINO is the fastest single target")


def test_mix_that_wins_without_a_search_is_no_single_target() -> None:
    found = verdict(report([OV, MNN], {ORT: 1.6, OV: 1.2}, search=None))
    assert found.sentence == (
        "2 partitions (openvino, mnn) are the fastest: 1.20 × the best single target openvino, 1.60 × ONNX Runtime; "
        "other mixes were not searched."
    )
    near = verdict(report([OV, MNN], {ORT: 1.6, OV: 1.005}, search=None))
    assert near.sentence.endswith("so not proven faster; other mixes were not searched.")
    assert near.warning == "the plan is not proven faster than OpenVINO alone: 1.005 × [0.995, 1.015]"


def test_single_target_without_a_search_is_the_fastest_only_if_proven() -> None:
    found = verdict(report([OV], {ORT: 2.0, OV: 1.0, MNN: 1.005}, search=None))
    assert found.sentence == (
        "OpenVINO is returned: 2.00 × ONNX Runtime; not proven faster than MNN (1.00 ×); mixes were not searched."
    )
    slower = verdict(report([OV], {ORT: 0.8, OV: 1.0}, search=None))
    assert slower.sentence == (
        "OpenVINO is returned: 0.80 × ONNX Runtime, so slower; mixes were not searched."
    )
    assert slower.warning == "the plan is slower than ONNX Runtime alone: 0.800 × [0.792, 0.808]"
