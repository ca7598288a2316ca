"""Inputs that were once read as something else without a word: stray cells, rounded numbers, names, other orders."""

import warnings

import numpy as np
import pytest

from deconfound.auditing import audit, audit_files
from deconfound.auditing.class_names import class_order, named_level
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError, TableError

QUICK = {"permutations": 19, "bootstraps": 40, "embedding": False}


def people(n=150):
    """A label, an age, and the probability of the label's level AD, which goes with both."""
    rng = np.random.default_rng(0)
    dx, age = rng.choice(["AD", "CN"], n), rng.normal(70, 8, n).round(1)
    chance = 1 / (1 + np.exp(-(4 * (dx == "AD") - 2 + 0.1 * (age - 70) + rng.normal(size=n))))
    return {"dx": dx, "age": age}, chance


def value(found, statistic, model="model"):
    rows = found.where(model=model, space="outputs", statistic=statistic, confound="")
    return next(row.value for row in rows if not row.level)


def quiet(outputs, table, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        return audit(outputs, table, **{"confounds": ["age"], "labels": ["dx"], **QUICK, **options})


def write(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def of_files(paths, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        return audit_files(paths, **{"confounds": ["age"], "labels": ["dx"], **QUICK, **options})


# Cells of the table


def test_a_text_among_numbers_is_refused_with_its_row_and_accepted_as_a_declared_category():
    table, chance = people()
    table["age"] = table["age"].astype(object)
    table["age"][7] = "?"
    expected = (
        r"column 'age' must be numbers throughout, or names; got '\?' in row 7 among numbers.*types=\{'age': 'cat"
    )
    with pytest.raises(TableError, match=expected):
        quiet(chance, table)
    with pytest.raises(TableError, match="column 'age' must be numbers throughout"):
        quiet(chance, {**table, "site": table["dx"]}, confounds=["site"], labels=["age"])
    assert quiet(chance, table, types={"age": "categorical"}).verdicts
    table["age"][7] = ""
    assert quiet(chance, table).verdicts[0].found


def test_a_column_with_many_texts_among_numbers_is_asked_about():
    table, chance = people()
    table["age"] = np.where(np.arange(150) % 5 == 0, "old", table["age"].astype(str))
    said = [note.text for note in quiet(chance, table).notes if note.severity == "warning"]
    assert any(text.startswith("age holds texts among numbers, such as 'old' in row 0") for text in said)


def test_dates_as_text_are_asked_about():
    table, chance = people()
    table["scan"] = (np.datetime64("2020-01-01") + np.arange(150) // 2).astype(str)
    notes = quiet(chance, table, confounds=["scan"]).notes
    (said,) = (note for note in notes if "scan holds dates as text, and each of its 75 values" in note.text)
    assert said.severity == "warning"
    assert "such as days or years" in said.text


# Numbers of the outputs


@pytest.mark.parametrize("digits", [2, 3])
def test_rounded_class_probabilities_are_probabilities(digits):
    rng = np.random.default_rng(0)
    dx = rng.choice(["AD", "CN", "MCI"], 150)
    chance = rng.dirichlet([1, 1, 1], 150) + 4 * (dx[:, None] == ["AD", "CN", "MCI"])
    chance /= chance.sum(1, keepdims=True)
    table = {"dx": dx, "age": rng.normal(size=150)}
    exact, rounded = quiet(chance, table), quiet(chance.round(digits), table)
    assert value(rounded, "brier_score") == pytest.approx(value(exact, "brier_score"), abs=0.005)
    assert "softmax" not in exact.notes[0].text + rounded.notes[0].text
    assert "softmax" in quiet(np.log(chance), table).notes[0].text


def test_a_probability_that_a_float_lifts_above_one_leaves_all_of_them_probabilities():
    table, chance = people()
    positive = {"dx": "AD"}
    lifted = np.where(np.arange(150) == chance.argmax(), 1.0000001, chance)
    assert value(quiet(lifted, table, positive=positive), "accuracy") == value(
        quiet(chance, table, positive=positive), "accuracy"
    )


def test_scores_on_one_side_of_the_cut_are_noted_with_what_was_assumed():
    table, chance = people()
    (said,) = (note.text for note in quiet(1 + 99 * chance, table, positive={"dx": "AD"}).notes if "Every" in note.text)
    assert said.startswith("Every score of model lies above 0, and above 0 is taken to mean dx = AD")
    assert "percentages" in said
    assert not any("Every" in note.text for note in quiet(chance, table, positive={"dx": "AD"}).notes)


# Names of the outputs


@pytest.mark.parametrize(
    ("names", "levels"),
    [
        (["prob_mci", "prob_ad", "prob_cn"], ["AD", "CN", "MCI"]),
        (["prob_TRUE", "prob_FALSE"], ["False", "True"]),
        (["prob_TRUE", "prob_FALSE"], ["0", "1"]),
        (["prob_1.0", "prob_0.0"], ["0", "1"]),
        (["1.0", "0.0"], ["0", "1"]),
        (["scoreCN", "scoreAD"], ["AD", "CN"]),
        (["prob(CN)", "prob(AD)"], ["AD", "CN"]),
        (["CN_prob", "AD_prob"], ["AD", "CN"]),
        (["prob_CN_mean", "prob_AD_mean"], ["AD", "CN"]),
        (["prob_late_mci", "prob_mci"], ["MCI", "late MCI"]),
        (["prob_<50", "prob_>=50"][::-1], ["<50", ">=50"]),
    ],
)
def test_the_class_of_a_column_is_a_word_of_its_name(names, levels):
    expected = tuple(reversed(levels)) if len(levels) == 2 else ("MCI", "AD", "CN")
    assert class_order(names, levels) == expected


def test_the_level_of_one_column_is_one_level_and_no_number():
    assert [named_level(name, ["AD", "CN"]) for name in ("prob_CN", "CN", "probAd", "score_AD_vs_CN")] == [
        "CN", "CN", "AD", "",
    ]  # fmt: skip
    assert named_level("score_0", ["0", "1"]) == named_level("score_0", ["False", "True"]) == ""
    assert named_level("prob_FALSE", ["False", "True"]) == "False"


def test_a_single_column_that_is_called_by_a_level_is_a_score_of_it(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table, chance = people()
    expected = value(quiet(chance, table, positive={"dx": "AD"}), "auc")
    assert expected > 0.9
    for name, scores in (("prob_AD", chance), ("prob_CN", 1 - chance), ("logit_cn", -np.log(chance / (1 - chance)))):
        path = write(tmp_path / "said.csv", {**table, name: scores})
        assert value(of_files([path]), "auc", "said") == pytest.approx(expected)
        assert value(quiet(pandas.Series(scores, name=name), table), "auc") == pytest.approx(expected)
        assert value(quiet(pandas.DataFrame({name: scores}), table), "auc") == pytest.approx(expected)
    turned = quiet(pandas.Series(chance, name="prob_AD"), table, positive={"dx": "CN"})
    assert value(turned, "auc") == pytest.approx(1 - expected)
    both = {"a": pandas.Series(chance, name="prob_AD"), "b": pandas.Series(1 - chance, name="prob_CN")}
    with pytest.raises(OptionError, match="must be scores of the same level of 'dx'; got AD for 'a', CN for 'b'"):
        quiet(both, table)


def test_as_many_columns_as_classes_that_are_called_otherwise_are_asked_about():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table, chance = people()
    said = "called prob_x, prob_y, no classes of dx, and are read as AD, CN, in this order"
    with pytest.warns(DeconfoundWarning, match=said):
        audit(
            pandas.DataFrame({"prob_x": chance, "prob_y": 1 - chance}), table, confounds=["age"], labels=["dx"], **QUICK
        )
    numbered = quiet(pandas.DataFrame({"prob_0": chance, "prob_1": 1 - chance}), table)
    assert not any(note.kind == "unknown classes" for note in numbered.notes)


# The order of rows


@pytest.mark.parametrize(("mine", "its"), [("ID", "id"), ("eid", "eid"), ("Participant_ID", "participant_id")])
def test_an_id_in_other_capitals_joins_files(tmp_path, mine, its):
    table, chance = people()
    ids, order = np.array([f"{row:03d}" for row in range(150)]), np.random.default_rng(1).permutation(150)
    said = write(tmp_path / "said.csv", {mine: ids, "prob_AD": chance})
    beside = write(tmp_path / "table.csv", {its: ids[order], **{name: cells[order] for name, cells in table.items()}})
    expected = value(quiet(chance, table, positive={"dx": "AD"}), "auc")
    assert value(of_files([said], table=beside), "auc", "said") == pytest.approx(expected)


def test_files_that_share_the_values_of_a_column_in_another_order_are_not_matched_by_order(tmp_path):
    table, chance = people()
    ids, order = np.array([f"s{row}" for row in range(150)]), np.random.default_rng(1).permutation(150)
    said = write(tmp_path / "said.csv", {"code": ids, "prob_AD": chance})
    beside = write(
        tmp_path / "table.csv", {"code": ids[order], **{name: cells[order] for name, cells in table.items()}}
    )
    with pytest.raises(TableError, match=r"must have their rows in the same order where no id joins them.*--id 'code'"):
        of_files([said], table=beside)
    assert value(of_files([said], table=beside, id="code"), "auc", "said") > 0.9


def test_an_index_that_repeats_is_compared_with_that_of_the_table():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    columns, chance = people()
    ids = [f"s{row // 2}" for row in range(150)]
    table, scores = pandas.DataFrame(columns, index=ids), pandas.Series(chance, index=ids, name="prob_AD")
    assert value(quiet(scores, table), "auc") > 0.9
    with pytest.raises(
        ShapeError, match=r"must be in the order of the table; got its rows in another order\. Sort both"
    ):
        quiet(scores.iloc[::-1], table)
    with pytest.raises(
        ShapeError, match="got an index that differs, as in 'other', which is more often in the outputs"
    ):
        quiet(scores.set_axis(["other", *ids[1:]]), table)


# True and false


def test_a_predicted_truth_beside_codes_says_nothing_about_the_positive_level(tmp_path):
    table, chance = people()
    dx = (table["dx"] == "AD").astype(int)
    columns = {"dx": dx, "age": table["age"], "score_dx": chance, "predicted_dx": chance > 0.5}
    assert value(of_files([write(tmp_path / "said.csv", columns)]), "auc", "said") > 0.9


def test_labels_as_codes_and_as_truths_agree(tmp_path):
    table, chance = people()
    dx = (table["dx"] == "AD").astype(int)
    columns = {"id": np.arange(150), "dx": dx, "age": table["age"], "score": chance}
    paths = [write(tmp_path / "a.csv", columns), write(tmp_path / "b.csv", {**columns, "dx": dx.astype(bool)})]
    assert value(of_files(paths), "auc", "b") > 0.9
    paths[1] = write(tmp_path / "b.csv", {**columns, "dx": dx == 0})
    with pytest.raises(TableError, match="must have the same labels to be audited together"):
        of_files(paths)
