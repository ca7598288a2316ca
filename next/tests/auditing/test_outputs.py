"""Outputs: what each column means is stated by names, positions or options, and never guessed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import deconfound as dc
from deconfound.auditing import Audit, audit
from deconfound.errors import DeconfoundError
from deconfound.metrics import Resampling

N = 40
RANDOM = np.random.default_rng(0)
CODES = np.arange(N) % 3
IS_CN = np.arange(N) % 2
# Higher for CN than for AD, for "1" than for "0", and so on.
SCORE = 2.0 * IS_CN - 1 + RANDOM.normal(scale=0.4, size=N)
PROBABILITY = 1 / (1 + np.exp(-SCORE))
# What a softmax ignores, because both logits have it.
OFFSET = RANDOM.normal(scale=9, size=N)
THREE = 2.0 * np.eye(3)[CODES] + RANDOM.normal(scale=0.4, size=(N, 3))
TABLE = {
    "age": RANDOM.normal(70, 5, N),
    "dx": np.array(["AD", "CN"])[IS_CN],
    "ill": IS_CN == 1,
    "hiv": 1 - IS_CN,
    "stage": np.array(["AD", "CN", "MCI"])[CODES],
    "score": SCORE + RANDOM.normal(size=N),
}


def run(outputs: Any, labels: list[str], **options: Any) -> Audit:
    """Audit with the fewest permutations, because only the reading of the outputs is tested."""
    fast = {"resampling": Resampling(19, 0), "planted": None, "probes": False}
    return audit(outputs, TABLE, confounds=["age"], labels=labels, **(fast | options))


def auc(outputs: Any, label: str, **options: Any) -> float:
    return run(outputs, [label], **options).performance[0].honest.plain.value


GOOD = auc(SCORE, "ill")


def test_the_score_is_good():
    """The control of the tests below, which tell a right reading from a turned one by it."""
    assert GOOD > 0.9


@pytest.mark.parametrize(
    ("outputs", "label", "options"),
    [
        (SCORE, "ill", {}),
        (SCORE, "dx", {"positive": "CN"}),
        (-SCORE, "dx", {"positive": "AD"}),
        (SCORE, "dx", {"classes": ["AD", "CN"]}),
        (-SCORE, "dx", {"classes": ["CN", "AD"]}),
        (-SCORE, "hiv", {}),
        (SCORE, "hiv", {"positive": 0}),
        (SCORE, "hiv", {"classes": [1, 0]}),
        (np.column_stack([-SCORE, SCORE]), "dx", {}),
        (np.column_stack([OFFSET, OFFSET + SCORE]), "dx", {}),
        (np.column_stack([SCORE, -SCORE]), "dx", {"classes": ["CN", "AD"]}),
        (np.column_stack([1 - PROBABILITY, PROBABILITY]), "dx", {"positive": "AD"}),
        (pd.DataFrame({"score_CN": SCORE}), "dx", {}),
        (pd.DataFrame({"score_AD": -SCORE}), "dx", {}),
        (pd.DataFrame({"prob_CN": PROBABILITY, "prob_AD": 1 - PROBABILITY}), "dx", {}),
        (pd.DataFrame({"CN": SCORE, "AD": -SCORE}), "dx", {}),
        (pd.DataFrame({"score_ill": SCORE}), "ill", {}),
        (pd.DataFrame({"score_False": -SCORE}), "ill", {}),
        (pd.DataFrame({"prob_dx": PROBABILITY}), "dx", {"positive": "CN"}),
        (pd.DataFrame({"any name": SCORE}), "dx", {"positive": "CN"}),
        (pd.DataFrame(SCORE), "ill", {}),
        (pd.Series(SCORE, name="score_CN"), "dx", {}),
    ],
)
def test_ways_to_state_which_class_a_score_is_for(outputs, label, options):
    assert auc(outputs, label, **options) == pytest.approx(GOOD, abs=1e-12)


@pytest.mark.parametrize(
    "outputs",
    [
        SCORE.tolist(),
        SCORE[:, None],
        torch.from_numpy(SCORE).requires_grad_(),
        torch.from_numpy(SCORE)[:, None],
        pd.Series(SCORE),
        np.ma.masked_array(SCORE),
        SCORE.astype(object),
        pl.DataFrame({"score_ill": SCORE}),
        pa.table({"score_ill": SCORE}),
        pd.DataFrame({"score_ill": SCORE.astype(str)}),
    ],
)
def test_kinds_of_arrays(outputs):
    assert auc(outputs, "ill") == GOOD


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_of_few_digits(dtype):
    values = torch.from_numpy(PROBABILITY).to(dtype)
    rounded = values.double().numpy()
    assert auc(values, "ill") == auc(rounded, "ill")


def test_whole_numbers_and_truth_values_are_numbers():
    assert auc(IS_CN, "ill") == auc(IS_CN == 1, "ill") == 1


def test_several_labels_are_columns_in_their_order():
    both = np.column_stack([SCORE, -SCORE])
    rows = run(both, ["ill", "hiv"]).performance
    assert [row.honest.plain.value for row in rows] == pytest.approx([GOOD, GOOD])
    turned = run(both, ["hiv", "ill"]).performance
    assert [row.honest.plain.value for row in turned] == pytest.approx([1 - GOOD, 1 - GOOD])


def test_names_of_labels_decide_and_not_the_order():
    named = pd.DataFrame({"score_hiv": -SCORE, "score_ill": SCORE})
    rows = run(named, ["ill", "hiv"]).performance
    assert [row.label for row in rows] == ["ill", "hiv"]
    assert [row.honest.plain.value for row in rows] == pytest.approx([GOOD, GOOD])


def test_numeric_label_beside_a_binary_one():
    rows = run(np.column_stack([SCORE, SCORE]), ["score", "ill"]).performance
    expected = 1 - np.square(TABLE["score"] - SCORE).sum() / (N * np.var(TABLE["score"]))
    assert rows[0].classes == ()
    assert rows[0].honest.plain.value == pytest.approx(expected)


def test_several_classes_follow_their_names():
    by_position = run(THREE, ["stage"]).performance[0]
    turned = pd.DataFrame(THREE[:, ::-1], columns=["prob_MCI", "prob_CN", "prob_AD"])
    by_name = run(turned, ["stage"]).performance[0]
    assert by_name.honest.plain.value == pytest.approx(by_position.honest.plain.value)
    assert by_position.honest.plain.value > 0.9


def test_a_class_that_the_table_lacks_is_taken_with_classes():
    four = np.column_stack([THREE, np.full(N, -9.0)])
    row = run(four, ["stage"], classes=["AD", "CN", "MCI", "FTD"]).performance[0]
    assert row.honest.plain.value == run(THREE, ["stage"]).performance[0].honest.plain.value


@pytest.mark.parametrize(
    ("outputs", "label", "reading"),
    [
        (
            PROBABILITY,
            "ill",
            "the probability that 'ill' is 'True' in 'column 0'; 'True' is .* 0.5",
        ),
        (PROBABILITY + 1e-8, "ill", "the probability"),
        (IS_CN * 1.0000001, "ill", "the probability"),
        (
            SCORE,
            "ill",
            "the score that 'ill' is 'True' in 'column 0'; 'True' is predicted from 0 on",
        ),
        (np.column_stack([PROBABILITY, PROBABILITY]), "dx", "the score .* from 0 on"),
        (np.column_stack([1 - PROBABILITY, PROBABILITY]).round(2), "dx", "the probability"),
        (THREE, "stage", "a score of each class of 'stage' .*; the highest is predicted"),
        (torch.from_numpy(THREE).softmax(1).numpy().round(2), "stage", "a probability of each"),
        (SCORE, "score", "the number 'score' in 'column 0'"),
    ],
)
def test_the_reading_is_stated(outputs, label, reading):
    sentence = run(outputs, [label]).about.reading[0]
    assert re.search(f"^Model 'model' gives {reading}", sentence), sentence


def test_probabilities_have_a_calibration_and_other_scores_have_none():
    assert run(PROBABILITY, ["ill"]).performance[0].calibration is not None
    assert run(SCORE, ["ill"]).performance[0].calibration is None


def test_models_by_name():
    report = run({"plain": SCORE, "turned": -SCORE}, ["ill"])
    assert report.about.models == ("plain", "turned")
    assert report.performance[1].honest.plain.value == pytest.approx(1 - GOOD)


def test_without_labels_any_columns_are_outputs():
    report = run(pd.DataFrame(THREE, columns=["a", "b", "c"]), [])
    assert report.performance == ()
    assert len(report.verdicts) == 1


def test_constant_outputs_are_an_answer_and_no_error():
    assert run(np.ones(N), ["ill"]).verdicts[0].answer == "no answer"


NAN = np.where(np.arange(N) % 20 == 7, np.nan, SCORE)
SECRET = np.where(np.arange(N) == 3, "Mrs Smith", "0.5")


@pytest.mark.parametrize(
    ("outputs", "label", "options", "parts"),
    [
        (SCORE, "dx", {}, ["'dx' with 'AD', 'CN'", "positive='CN'", "score_AD"]),
        (SCORE, "stage", {}, ["'AD', 'CN', 'MCI'", "classes=['AD', 'CN', 'MCI']"]),
        (THREE, "dx", {}, ["3 columns", "'column 2'", "classes=['AD', 'CN']"]),
        (THREE[:, :2], "stage", {}, ["2 columns", "'column 1'"]),
        (THREE[:, :2], "score", {}, ["2 columns", "'score' with numbers", "'score_score'"]),
        (SCORE, "dx", {"positive": "MCI"}, ["positive='MCI' is no level", "'AD', 'CN'"]),
        (THREE, "stage", {"positive": "AD"}, ["positive='AD' is no level of a label with two"]),
        (SCORE, "dx", {"classes": ["AD", "MCI"]}, ["classes=['AD', 'MCI'] do not name"]),
        (THREE, "stage", {"classes": ["AD", "CN", "AD"]}, ["do not name each column"]),
        (THREE, "stage", {"classes": ["AD", "CN"]}, ["do not name each column"]),
        (SCORE, "dx", {"classes": "AD"}, ["classes must be a list", "classes=['AD', …]"]),
        (SCORE, "score", {"classes": ["AD", "CN"]}, ["Label 'score' lacks"]),
        (
            pd.DataFrame({"score_CN": SCORE, "score_AD": -SCORE}),
            "dx",
            {"classes": ["AD", "CN"]},
            ["The name of 'score_CN' contradicts the class 'AD'"],
        ),
        (pd.DataFrame({"score_AD": SCORE}), "dx", {"positive": "CN"}, ["stands for 'AD'"]),
        (
            pd.DataFrame({"pred_cnn": SCORE, "pred_rf": SCORE}),
            "ill",
            {},
            ["'pred_cnn', 'pred_rf'", "outputs={'pred_cnn': …}"],
        ),
        (pd.DataFrame({"score_AD": SCORE, "prob_AD": SCORE}), "dx", {}, ["It is not clear"]),
        (pd.DataFrame({"score_AD": SCORE, "age": SCORE}), "dx", {}, ["'age' stands for"]),
        (pd.DataFrame({"score_AD": SCORE, "score_CN": SCORE}), "stage", {}, ["lacks the column"]),
        (pd.DataFrame([[1, 2]] * N, columns=["a", "a"]), "dx", {}, ["2 columns 'a'"]),
        (SCORE[:30], "ill", {}, ["30 rows", "table has 40"]),
        (SCORE[:30], None, {}, ["30 rows", "40"]),
        (NAN, "ill", {}, ["missing, NaN or beyond 1e+100 in rows 7, 27", "Leave these rows out"]),
        (np.where(np.isnan(NAN), np.inf, NAN), "ill", {}, ["other cells in rows 7, 27"]),
        (np.ma.masked_array(SCORE, np.isnan(NAN)), "ill", {}, ["rows 7, 27"]),
        (pd.DataFrame({"name": SECRET}), "ill", {}, ["Column 'name' has other cells in row 3"]),
        (SECRET, "ill", {}, ["other cells in row 3"]),
        (THREE.reshape(N, 3, 1), "ill", {}, ["(40, 3, 1)", "shape (n,) or (n, d)"]),
        (SCORE * 1j, "ill", {}, ["complex"]),
        (SCORE[0], "ill", {}, ["finite real numbers"]),
        (torch.eye(N).to_sparse(), "ill", {}, ["finite real numbers"]),
        (list(torch.ones(N, requires_grad=True)), "ill", {}, ["of type list"]),
        ([10**400] * N, "ill", {}, ["rows 0, 1"]),
        (b"bytes", "ill", {}, ["of type bytes"]),
        (object(), "ill", {}, ["of type object"]),
        ([[1, 2], [3]], "ill", {}, ["of type list"]),
        ([], "ill", {}, ["no rows"]),
        (np.empty((N, 0)), "ill", {}, ["no columns"]),
        ("scores.csv", "ill", {}, ["path of a file", "audit_files"]),
        ({}, "ill", {}, ["outputs must map names"]),
        ({1: SCORE}, "ill", {}, ["outputs must map names"]),
        ({" ": SCORE}, "ill", {}, ["outputs must map names"]),
        ({"a": SCORE, "b": NAN, "c": SCORE[:9]}, "ill", {}, ["model 'b'", "model 'c'"]),
    ],
)
def test_what_is_not_clear_is_an_error_that_shows_what_to_write(outputs, label, options, parts):
    with pytest.raises(DeconfoundError) as error:
        run(outputs, [label] if label else [], **options)
    message = str(error.value)
    for part in parts:
        assert part in message
    assert "Smith" not in message


def test_a_level_with_markup_is_text():
    table = {**TABLE, "dx": np.array(["<script>", "[bold]"])[IS_CN]}
    options = {"confounds": ["age"], "labels": ["dx"], "resampling": Resampling(19, 0)}
    report = audit(SCORE, table, positive="[bold]", planted=None, probes=False, **options)
    assert "'[bold]' is predicted" in report.about.reading[0]


def test_features_are_read_like_outputs():
    features = torch.from_numpy(THREE).half()
    report = run(None, [], features={"fc1": features, "fc2": THREE.tolist()})
    assert report.about.features == ("fc1", "fc2")
    with pytest.raises(DeconfoundError, match=r"Features 'fc1' have 9 rows and the table has 40"):
        run(None, [], features={"fc1": features[:9]})


def test_a_real_table_has_the_score_of_its_rows():
    """A wide table keeps its columns: the audit of a model's logits on the heart data."""
    features, target, people = dc.example("heart")
    report = audit(
        features[:200, :1],
        people[:200],
        confounds=["hospital"],
        labels=["ill"],
        resampling=Resampling(19, 0),
        planted=None,
        probes=False,
    )
    pairs = features[:200, 0][target[:200] == 1, None] - features[:200, 0][target[:200] == 0]
    expected = ((pairs > 0).double() + (pairs == 0).double() / 2).mean().item()
    assert report.performance[0].honest.plain.value == pytest.approx(expected)
