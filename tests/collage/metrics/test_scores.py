"""Scores of the built-in metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collage.metrics.continuous import spearman
from collage.metrics.names import METRICS, is_function, parse_metric
from collage.metrics.text import ctc, edit_distance
from collage.partitioner.errors import BadInputError


def _score(text: str, outputs: list[np.ndarray], labels: list[np.ndarray] | None = None) -> float:
    metric = parse_metric(text)
    items = [
        metric.item({"y": y}, {"y": outputs[i]}, None if labels is None else {"labels": labels[i]})
        for i, y in enumerate(outputs)
    ]
    return metric.score(items)


def test_top1_and_topk_count_rows() -> None:
    scores = [np.array([[0.1, 0.7, 0.2]], np.float32), np.array([[0.5, 0.2, 0.3]], np.float32)]
    labels = [np.array(1), np.array(2)]
    assert _score("top1", scores, labels) == 0.5
    assert _score("topk=2", scores, labels) == 1.0
    assert _score("top1", scores) == 1.0


def test_equal_scores_go_to_the_first_class_as_argmax_does() -> None:
    scores = [np.array([[0.4, 0.4, 0.2]], np.float32)]
    assert _score("top1", scores, [np.array(0)]) == 1.0
    assert _score("top1", scores, [np.array(1)]) == 0.0
    assert _score("topk=2", scores, [np.array(1)]) == 1.0


def test_one_column_is_the_probability_of_yes() -> None:
    scores = [np.array([[0.7]], np.float32), np.array([[0.2]], np.float32)]
    assert _score("top1", scores, [np.array(1), np.array(1)]) == 0.5
    assert _score("top1", scores) == 1.0


def test_one_column_of_logits_is_refused() -> None:
    """Cut at one half, logits would be other labels than the model's."""
    for value in (-3.2, 1.5):
        with pytest.raises(BadInputError, match="before a sigmoid"):
            _score("top1", [np.array([[value]], np.float32)])
    reference = {"y": np.array([[1.0]], np.float32)}
    slightly_over = {"y": np.array([[1.003]], np.float32)}  # as int8 rounds
    assert parse_metric("top1").item(slightly_over, reference, None) == (1, 1)


def test_a_row_of_nan_is_wrong() -> None:
    assert _score("topk=2", [np.full((1, 3), np.nan, np.float32)], [np.array(0)]) == 0.0


def test_ctc_joins_repeats_and_leaves_the_blank_out() -> None:
    assert ctc(np.array([0, 5, 5, 0, 5, 7, 7, 0])) == [5, 5, 7]
    assert ctc(np.array([], int)) == []


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("kitten", "sitting", 3),
        ("saturday", "sunday", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("ab", "ab", 0),
    ],
)
def test_edit_distance_of_known_pairs(one: str, other: str, edits: int) -> None:
    assert edit_distance([*map(ord, one)], [*map(ord, other)]) == edits


def test_text_is_one_minus_edits_over_characters() -> None:
    tokens = [np.array([[1, 2, 3, -1]]), np.array([[4, 5, 6, 7]])]
    labels = [np.array([1, 2, 3, 3]), np.array([4, 5, 6, -1])]
    assert _score("text", tokens, labels) == pytest.approx(1 - 2 / 7)
    path = np.eye(4, dtype=np.float32)[[0, 1, 1, 0, 2]][None]
    assert _score("text", [path], [np.array([1, 2, -1])]) == 1.0


def test_perplexity_of_a_uniform_guess_is_the_number_of_tokens() -> None:
    logits = [np.zeros((1, 3, 8), np.float32)]
    assert _score("perplexity", logits, [np.array([1, -100, 7])]) == pytest.approx(8.0)
    peaked = [np.log(np.array([[[0.5, 0.25, 0.25]]], np.float32))]
    assert _score("perplexity", peaked, [np.array([1])]) == pytest.approx(4.0)
    assert _score("perplexity", peaked) == pytest.approx(2.0)


def test_snr_is_in_decibels_and_bounded() -> None:
    made = [np.array([[1.0, 1.1]], np.float32)]
    assert _score("snr", made, [np.array([1.0, 1.0])]) == pytest.approx(
        10 * math.log10(2 / 0.01), abs=1e-4
    )
    assert _score("snr", made) == 100.0
    assert _score("snr", [np.array([[np.nan, 1.0]], np.float32)], [np.array([1.0, 1.0])]) == -100.0


def test_spearman_matches_the_example_of_scipy() -> None:
    found = spearman(np.array([1, 2, 3, 4, 5]), np.array([5, 6, 7, 8, 7]))
    assert found == pytest.approx(0.8207826816681233)


def test_embedding_ranks_pairs() -> None:
    random = np.random.default_rng(0)
    vectors = [random.normal(size=(1, 8)).astype(np.float32) for _ in range(6)]
    assert _score("embedding", vectors) == pytest.approx(1.0)
    assert _score("embedding", vectors, [2 * v[0] for v in vectors]) == pytest.approx(1.0)
    others = [random.normal(size=8) for _ in vectors]
    assert abs(_score("embedding", vectors, others)) < 0.9
    with pytest.raises(BadInputError, match="at least three"):
        _score("embedding", vectors[:2])


def test_an_embedding_after_global_pooling_is_a_vector() -> None:
    random = np.random.default_rng(0)
    vectors = [random.normal(size=(1, 512)).astype(np.float32) for _ in range(6)]
    noisy = [v + random.normal(size=v.shape) for v in vectors]
    wanted = _score("embedding", vectors, [v[0] for v in noisy])
    for shape in ((1, 512, 1, 1), (1, 512, 1), (1, 1, 1, 512)):
        shaped = [v.reshape(shape) for v in vectors]
        assert _score("embedding", shaped) == pytest.approx(1.0)
        assert _score("embedding", shaped, [v[0] for v in noisy]) == pytest.approx(wanted)


@pytest.mark.parametrize("shape", [(1, 512, 7, 7), (1, 1), (1, 1, 1, 1)])
def test_an_output_that_is_no_embedding_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="embedding@OUTPUT"):
        _score("embedding", [np.ones(shape, np.float32)] * 4)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("top2", "known are top1"),
        ("topk=0", "from 1 to"),
        ("topk=x", "from 1 to"),
        ("top1=3", "takes no number"),
        ("", "no built-in metric"),
    ],
)
def test_unknown_names_are_refused(text: str, match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        parse_metric(text)


def test_functions_are_told_from_names() -> None:
    assert is_function("my_check:accuracy")
    assert not any(is_function(name) for name in [*METRICS, "topk=5", "top1@x:0", "map@out"])


def test_the_output_is_chosen_by_name_or_by_type() -> None:
    outputs = {"ids": np.array([[3]]), "a": np.array([[0.0, 1.0]]), "b": np.array([[1.0, 0.0]])}
    assert parse_metric("top1").item(outputs, outputs, {"labels": np.array(1)}) == (1, 1)
    assert parse_metric("top1@b").item(outputs, outputs, {"labels": np.array(1)}) == (0, 1)
    with pytest.raises(BadInputError, match="no output 'c'"):
        parse_metric("top1@c").item(outputs, outputs, None)
    with pytest.raises(BadInputError, match="@OUTPUT"):
        parse_metric("top1").item({"ids": np.array([[3]])}, {}, {"labels": np.array(1)})


@pytest.mark.parametrize(
    ("text", "label", "match"),
    [
        ("top1", np.array([0.5]), "one whole number"),
        ("top1", np.array([0, 1]), "one whole number"),
        ("top1", np.array([9]), "2 classes"),
        ("snr", np.zeros(7), "compares an output"),
        ("text", np.array([1]), "scores of shape"),
        ("text", np.array([0.5]), "scores of shape"),
        ("perplexity", np.array([9]), "there are 2 tokens"),
    ],
)
def test_labels_of_another_form_are_refused(text: str, label: np.ndarray, match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        _score(text, [np.array([[0.0, 1.0]], np.float32)], [label])
