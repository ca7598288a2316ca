"""`audit`: it finds what is planted, its numbers are those of the metrics, and it says when it cannot know."""

import csv
import io
import json
import warnings

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.auditing import audit
from deconfound.auditing.answers import answers, read_outputs
from deconfound.auditing.performance import measures
from deconfound.auditing.verdicts import LEVEL, PROBE_LEVEL
from deconfound.auditing.words import STATISTICS
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError, TableError
from tests.auditing.cohort import cohort

QUICK = {"permutations": 99, "bootstraps": 60, "embedding": False}
ROLES = {"confounds": ["age", "sex", "site"], "labels": ["dx"]}


@pytest.fixture(scope="module")
def found():
    outputs, table = cohort()
    return audit(outputs, table, **ROLES, permutations=99, bootstraps=60)


def grade(result, model, confound):
    return next(item.grade for item in result.verdicts if (item.model, item.confound) == (model, confound))


def test_it_finds_the_confound_that_a_model_leans_on_and_no_other(found):
    planted = {("by site", "site"), ("by age", "age")}
    for row in found.where(statistic="within_group_dcor_sqr"):
        if (row.model, row.confound) in planted:
            assert grade(found, row.model, row.confound) in ("clear", "strong")
            assert row.value > 0.1
        else:  # one in twenty of these is called "left" by chance, never with a value that matters
            assert row.value < 0.04


def test_every_number_is_that_of_its_metric(found):
    outputs, table = cohort()
    dx = (table["dx"] == "patient").astype(int)
    site = (table["site"][:, None] == ["SRI", "UCSD", "UCSF"]).astype(float)
    for model, x in outputs.items():
        row = found.where(model=model, confound="site", statistic="within_group_dcor_sqr")[0]
        assert row.value == pytest.approx(float(metrics.within_group_dcor_sqr(x, site, dx)))
        assert row.low <= row.value <= row.high
        assert row.n == 240
        row = found.where(model=model, confound="age", statistic="paper_abs_pearson")[0]
        assert row.value == pytest.approx(abs(np.corrcoef(x, table["age"])[0, 1]))
        row = found.where(model=model, confound="", statistic="accuracy")[0]
        assert row.value == pytest.approx(np.mean((x > 0) == dx))
        women = table["sex"] == "F"
        row = found.where(model=model, confound="sex", statistic="auc", level="F")[0]
        assert (row.value, row.n) == (pytest.approx(float(metrics.auc(x[women], dx[women]))), women.sum())
    row = found.where(space="table", confound="age", level="dx")[0]
    assert row.value == pytest.approx(abs(np.corrcoef(table["age"], dx)[0, 1]))


def test_numeric_confounds_are_stratified_in_thirds(found):
    rows = found.where(model="clean", confound="age", statistic="accuracy")
    assert [row.n for row in rows] == [80, 80, 80]


def test_the_same_seed_gives_the_same_audit_and_one_model_alone_its_own_rows(found):
    outputs, table = cohort()
    alone = audit({"clean": outputs["clean"]}, table, **ROLES, permutations=99, bootstraps=60)
    assert [row for row in found.rows if row.model == "clean"] == [row for row in alone.rows if row.model == "clean"]


def test_json_and_csv_hold_the_rows_and_no_nan(found, tmp_path):
    read = json.loads(found.to_json(tmp_path / "a.json"), parse_constant=pytest.fail)
    assert json.loads((tmp_path / "a.json").read_text()) == read
    assert len(read["rows"]) == len(found.rows)
    assert read["rows"][0]["value"] == found.rows[0].value
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [line["statistic"] for line in lines] == [row.statistic for row in found.rows]
    assert float(lines[0]["value"]) == found.rows[0].value
    assert "nan" not in found.to_csv().lower()


def test_save_writes_by_the_ending_of_the_name_and_refuses_others(found, tmp_path):
    for ending in ("html", "json", "csv", "md", "card.json"):
        found.save(tmp_path / f"audit.{ending}")
        assert (tmp_path / f"audit.{ending}").stat().st_size > 1000
    with pytest.raises(OptionError, match=r"must end in \.html, \.json, \.csv or \.md; got 'audit.pdf'"):
        found.save("audit.pdf")
    found.save(tmp_path / "new" / "audit.json")
    assert (tmp_path / "new" / "audit.json").exists()
    with pytest.raises(OptionError, match=r"path must be one that can be written; got .*audit\.json/audit\.csv"):
        found.save(tmp_path / "new" / "audit.json" / "audit.csv")


def test_repr_shows_a_verdict_for_each_model_and_confound(found):
    text = repr(found)
    assert text.startswith("Audit of clean, by site, by age · 240 rows")
    assert "site is still there" in text
    assert len(text.splitlines()) == 1 + 9 + len(found.notes)


def test_arrays_tensors_and_a_data_frame_give_the_same_audit(found):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    outputs, table = cohort()
    options = {**ROLES, **QUICK}
    plain = audit(outputs["clean"], table, **options)
    assert audit(torch.from_numpy(outputs["clean"]), pandas.DataFrame(table), **options).rows == plain.rows


def test_rows_of_one_person_are_kept_together(found):
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 6)
    age, score = rng.normal(size=40)[person], (rng.normal(size=40)[person] + 0.1 * rng.normal(size=240))
    table = {"age": age, "who": person}
    alone = audit(score, table, confounds=["age"], **QUICK)
    with pytest.warns(DeconfoundWarning, match="40 people with a value of age: too few"):
        together = audit(score, table, confounds=["age"], person="who", **QUICK)
    p = [result.where(statistic="dcor_sqr")[0].p for result in (alone, together)]
    assert p[0] <= 0.05 < p[1]
    assert together.about["people"] == 40


def test_correlations_and_auc_are_taken_within_folds():
    outputs, table = cohort()
    fold = np.arange(240) % 4
    shifted = outputs["clean"] + 100 * fold  # every fold's model has its own offset
    result = audit(shifted, {**table, "fold": fold}, **ROLES, fold="fold", **QUICK)
    each = [abs(np.corrcoef(shifted[fold == k], table["age"][fold == k])[0, 1]) for k in range(4)]
    assert result.where(confound="age", statistic="paper_abs_pearson")[0].value == pytest.approx(np.mean(each))
    dx = table["dx"] == "patient"
    each = [float(metrics.auc(shifted[fold == k], dx[fold == k])) for k in range(4)]
    assert result.where(confound="", statistic="auc")[0].value == pytest.approx(np.mean(each))


def test_a_confound_that_is_the_label_gets_no_verdict_but_a_warning():
    outputs, table = cohort()
    table["scanner"] = np.where(table["dx"] == "patient", "new", "old")
    with pytest.warns(DeconfoundWarning, match="scanner and dx are nearly the same"):
        result = audit(outputs["clean"], table, confounds=["scanner"], labels=["dx"], **QUICK)
    assert result.verdicts[0].grade == "no answer"


def test_rare_levels_gaps_and_number_codes_are_remarked():
    outputs, table = cohort()
    table["site"][:3] = "tiny"
    table["site"] = table["site"].astype(object)
    table["site"][10:20] = None
    table["scanner"] = np.arange(240) % 5
    with (
        pytest.warns(DeconfoundWarning, match=r"fewer than 10 rows: tiny \(3\)"),
        pytest.warns(DeconfoundWarning, match="scanner holds 5 distinct whole numbers"),
    ):
        result = audit(outputs["clean"], table, confounds=["site", "scanner"], labels=["dx"], **QUICK)
    texts = " ".join(note.text for note in result.notes)
    assert "10 of 240 rows have no site" in texts
    assert "scanner holds 5 distinct whole numbers" in texts
    assert result.where(confound="site", statistic="dcor_sqr")[0].n == 230


def test_features_are_measured_beside_the_outputs():
    outputs, table = cohort()
    hidden = np.column_stack([outputs["clean"], table["site"] == "UCSF", np.random.default_rng(0).normal(size=240)])
    result = audit(outputs["clean"], table, confounds=["site"], labels=["dx"], features=hidden, **QUICK)
    assert {item.space: item.grade for item in result.verdicts}["features"] == "clear"
    assert not result.where(space="features", statistic="accuracy")


def test_large_tables_are_sampled_by_person_and_the_note_says_so(monkeypatch):
    monkeypatch.setattr("deconfound.auditing.main.MOST_ROWS", 100)
    outputs, table = cohort()
    table["who"] = np.arange(240) // 2
    result = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], person="who", **QUICK)
    assert result.where(confound="sex", statistic="dcor_sqr")[0].n == 100
    assert result.where(confound="", statistic="accuracy")[0].n == 240
    assert any("measured on 100 of 240 rows" in note.text for note in result.notes)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"confounds": ["agee"]}, TableError, "got 'agee', which it lacks. Did you mean 'age'?"),
        ({"confounds": "age"}, OptionError, r"must be a list of column names; got 'age'"),
        ({"confounds": []}, OptionError, "must name at least one column"),
        ({"labels": ["age"]}, TableError, "got 'age' as both"),
        ({"positive": {"dx": "ill"}}, OptionError, r"positive\['dx'\] must be one of its levels; got 'ill'"),
        ({"permutations": 3}, OptionError, "permutations must be at least 19"),
        ({"permutations": 99.5}, OptionError, "permutations must be a whole number; got 99.5"),
        ({"confounds": [3]}, TableError, "confounds must be columns of the table; got 3"),
        ({"seed": -1}, OptionError, "seed must be at least 0; got -1"),
        ({"confounds": ["age", "site", "age"]}, TableError, "confounds must name each column once; got 'age' twice"),
        (
            {"types": {"sites": "numeric"}},
            TableError,
            "types must name confounds or labels; got 'sites'. Did you mean 'si",
        ),
        ({"positive": {"sex": "M"}}, TableError, "positive must name labels; got 'sex'. There are: dx"),
        ({"person": "dx"}, TableError, "must have at least 4 people with every label; got 2"),
        ({"fold": "scan"}, TableError, "column 'scan' must have folds of at least 2 rows; got 1 in each"),
        ({"features": np.full((240, 2), np.nan)}, ShapeError, "features of 'model' must be finite"),
        ({"features": np.zeros((240, 0))}, ShapeError, r"features of 'model' .* got \(240, 0\), which is empty"),
    ],
)
def test_errors_say_what_is_wrong(change, error, text):
    outputs, table = cohort()
    with pytest.raises(error, match=text):
        audit(outputs, table, **{**ROLES, **QUICK, **change})


def test_rows_that_are_alone_in_a_fold_are_left_out_and_told():
    outputs, table = cohort()
    table["fold"] = np.array([7, *([0] * 120), *([1] * 119)])
    found = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], fold="fold", **QUICK)
    assert found.where(confound="sex", statistic="dcor_sqr")[0].n == 239
    assert any("1 row is alone in a fold" in note.text for note in found.notes)


def test_rows_that_a_missing_confound_leaves_alone_in_a_fold_are_left_out_of_its_numbers_and_told():
    outputs, table = cohort()
    table["fold"] = np.array([*([7] * 2), *([0] * 119), *([1] * 119)])
    table["age"][0] = np.nan
    found = audit(outputs["clean"], table, confounds=["age", "sex"], labels=["dx"], fold="fold", **QUICK)
    assert [found.where(confound=name, statistic="partial_dcor")[0].n for name in ("age", "sex")] == [238, 240]
    told = "1 of 240 rows have no age; its numbers leave them out, and 1 that are then alone in a fold."
    assert told in [note.text for note in found.notes]


def test_outputs_that_are_all_the_same_and_labels_of_one_level_are_told():
    outputs, table = cohort()
    with pytest.warns(DeconfoundWarning, match="The outputs of model are the same in every row"):
        audit(np.zeros(240), table, confounds=["sex"], **QUICK)
    table["dx"] = np.full(240, "patient")
    found = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], **QUICK)
    assert any("do not answer dx: no performance" in note.text for note in found.notes)


def test_outputs_must_fit_the_table_and_be_finite():
    outputs, table = cohort()
    with pytest.raises(ShapeError, match="got 239 for 240"):
        audit(outputs["clean"][1:], table, **ROLES)
    broken = outputs["clean"].copy()
    broken[7] = np.nan
    with pytest.raises(ShapeError, match=r"must be finite; got \[nan\] in row 7"):
        audit(broken, table, **ROLES)


@pytest.mark.parametrize(
    ("outputs", "error", "text"),
    [
        (["a", None, "b", ""], TableError, "must name a class in every row; got nothing in rows 1, 3"),
        ([0.1, None, 0.3, 0.4], ShapeError, r"must be finite; got \[nan\] in row 1"),
        ([["a", "b"], ["a", "b"]], TableError, "must be numbers, or one column of class names; got 'a' in row"),
        ([f"{k / 50}" for k in range(50)] + ["failed"], TableError, "class names; got 'failed' in row 50"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), TableError, "must be numbers, or one column of class names"),
        ([[1, 2], [3]], ShapeError, r"must have shape \(n,\) or \(n, k\); got setting an array element"),
        (0.3, ShapeError, r"must have shape \(n,\) or \(n, k\); got a single 0.3"),
    ],
)
def test_cells_of_outputs_that_say_nothing_are_told_with_their_rows(outputs, error, text):
    with pytest.raises(error, match=text):
        read_outputs(outputs, [], "m")


def test_numbers_kept_as_objects_are_numbers_and_texts_of_few_numbers_are_classes():
    assert read_outputs(np.array([1, 2.5, True], dtype=object), [], "m").values[:, 0].tolist() == [1.0, 2.5, 1.0]
    named = read_outputs(["1", "2", "unknown", "2"], [], "m")
    assert named.values.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert named.classes == ("1", "2", "unknown")


def test_an_infinite_confound_is_refused_with_advice_that_an_audit_can_follow():
    outputs, table = cohort()
    table["age"][5] = np.inf
    with pytest.raises(
        TableError, match=r"got inf in row 5\. Correct these cells, or leave them empty: an empty cell is"
    ):
        audit(outputs["clean"], table, **ROLES, **QUICK)
    table["age"][5] = np.nan
    found = audit(outputs["clean"], table, **ROLES, **QUICK)
    assert any(note.kind == "missing" and note.confound == "age" for note in found.notes)


# How outputs are read as answers


def test_the_positive_level_is_the_one_that_does_not_sound_like_control_or_the_one_that_is_named():
    outputs, table = cohort()
    table["dx"] = np.where(table["dx"] == "patient", "asd", "control")  # "asd" is first in the alphabet
    right = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], **QUICK)
    assert right.where(confound="", statistic="auc")[0].value > 0.8
    with pytest.warns(DeconfoundWarning, match="point away from dx"):
        turned = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], positive={"dx": "control"}, **QUICK)
    assert turned.where(confound="", statistic="auc")[0].value < 0.2


def test_outputs_are_read_as_probabilities_classes_labels_or_a_number():
    dx, third = metrics.column("dx", [0, 1, 1, 0]), metrics.column("stage", ["a", "b", "c", "a"])
    score = metrics.column("score", [1.0, 2.0, 3.5, 4.0])
    weights = torch.ones(1, 4).double()
    probability = answers(torch.tensor([[0.2], [0.6], [0.4], [0.1]]).double(), [dx])
    assert probability.reading == "probabilities above 0.5 mean dx = 1"
    assert measures(probability)(weights)["accuracy"].item() == 0.75
    classes = answers(torch.eye(3)[[0, 1, 2, 1]].double(), [third])
    assert measures(classes)(weights)["accuracy"].item() == 0.75
    both = answers(torch.tensor([[-1.0, 1], [1, -1], [1, 1], [-1, -1]]).double(), [dx, dx])
    assert measures(both)(weights)["accuracy"].item() == 0.5
    number = answers(score.values[:, None] + 0.5, [score])
    assert measures(number)(weights)["mean_absolute_error"].item() == pytest.approx(0.5)
    assert answers(torch.zeros(4, 7).double(), [dx]) is None


def test_predicted_classes_given_as_text_are_answers_too():
    dx = metrics.column("dx", ["control", "patient", "patient", "control"])
    numbers = read_outputs(np.array(["control", "patient", "control", "control"]), [dx], "model").values
    assert measures(answers(numbers, [dx]))(torch.ones(1, 4).double())["accuracy"].item() == 0.75


def test_the_brier_score_of_classes_is_half_the_sum_over_them_as_its_words_say():
    chance = np.random.default_rng(0).dirichlet([1, 1, 1], 50)
    stage = np.random.default_rng(1).integers(0, 3, 50)
    given = answers(torch.from_numpy(chance), [metrics.column("stage", stage.astype(str))])
    found = measures(given)(torch.ones(1, 50).double())["brier_score"].item()
    assert found == pytest.approx(np.mean(np.sum((chance - np.eye(3)[stage]) ** 2, axis=1)) / 2)
    assert "half the sum over them" in STATISTICS["brier_score"].made
    two = answers(torch.from_numpy(chance[:, :2]).softmax(1), [metrics.column("dx", stage % 2)])
    alone = answers(torch.from_numpy(chance[:, :2]).softmax(1)[:, 1:], [metrics.column("dx", stage % 2)])
    one, other = (measures(item)(torch.ones(1, 50).double())["brier_score"].item() for item in (two, alone))
    assert one == pytest.approx(other)


def test_the_key_of_the_page_says_what_grades_go_by_where_a_probe_alone_finds_something(found):
    page = found.to_html()
    assert LEVEL == 0.05
    assert PROBE_LEVEL == 0.01
    assert "Grades where its test rejects at 5 %: faint below .01" in page
    assert "a probe finds the confound at 1 %, the grade is faint whatever the number" in page


def test_weighted_measures_are_the_plain_ones_on_repeated_rows():
    rng = np.random.default_rng(0)
    scores, dx = torch.from_numpy(rng.normal(size=50).round(1)), metrics.column("dx", rng.integers(0, 2, 50))
    weights = torch.from_numpy(rng.integers(0, 3, (4, 50)))
    found = measures(answers(scores[:, None], [dx]))(weights.double())
    for number, weight in enumerate(weights):
        rows = torch.arange(50).repeat_interleave(weight)
        predicted = (scores[rows] > 0).double()
        assert found["accuracy"][number] == pytest.approx(metrics.accuracy(predicted, dx.values[rows]))
        expected = metrics.balanced_accuracy(predicted, dx.values[rows])
        assert found["balanced_accuracy"][number] == pytest.approx(expected)
        assert found["auc"][number] == pytest.approx(metrics.auc(scores[rows], dx.values[rows]))


def test_an_audit_without_labels_or_with_a_numeric_label_answers_too():
    outputs, table = cohort()
    marginal = audit(outputs["by site"], table, confounds=["site"], **QUICK)
    assert marginal.verdicts[0].grade == "strong"
    assert not marginal.where(statistic="within_group_dcor_sqr")
    table["score"] = outputs["clean"] + np.random.default_rng(1).normal(size=240)
    numeric = audit(outputs["by site"], table, confounds=["site", "age"], labels=["score"], **QUICK)
    assert grade(numeric, "model", "site") == "strong"
    assert numeric.where(confound="", statistic="r2")[0].value < 1
    assert numeric.verdicts[0].statistic == "residual_dcor_sqr"


def test_a_model_of_scores_and_one_of_probabilities_are_compared_by_what_both_have():
    outputs, table = cohort()
    scores = outputs["clean"]
    both = {"scores": scores, "chance": 1 / (1 + np.exp(-scores))}
    rows = audit(both, table, **ROLES, **QUICK).rows
    names = {row.statistic for row in rows if row.model == "chance" and row.level == "scores" and not row.confound}
    assert names == {"auc_difference", "balanced_accuracy_difference", "accuracy_difference"}
    assert {row.model for row in rows if row.statistic == "brier_score"} == {"chance"}


def test_an_audit_of_clean_data_warns_of_nothing():
    outputs, table = cohort()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit(outputs["clean"], table, **ROLES, **QUICK)
