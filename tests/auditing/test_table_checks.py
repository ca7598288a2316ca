"""Tables as people have them: repeated people, codes of sites, misspelt levels, and columns that look like outputs."""

import warnings

import numpy as np
import pytest

from deconfound.auditing import audit, audit_files
from deconfound.auditing.class_names import class_order
from deconfound.auditing.files import output_columns
from deconfound.auditing.table_checks import alike_levels, codes_in, holds_dates, repeated_people
from deconfound.errors import DeconfoundWarning, ShapeError, TableError
from tests.auditing.cohort import cohort

QUICK = {"permutations": 99, "bootstraps": 60, "embedding": False}


def visits(people=60, scans=4):
    """People with several scans and a score of their own that has nothing to do with their site."""
    rng = np.random.default_rng(1)
    who = np.repeat(np.arange(people), scans)
    score = rng.normal(size=people)[who] + 0.1 * rng.normal(size=len(who))
    table = {"participant_id": np.array([f"p{k}" for k in who]), "site": rng.choice(["A", "B"], people)[who]}
    return score, table


def test_rows_of_one_person_are_not_taken_as_independent_without_a_word(tmp_path):
    score, table = visits()
    told = "participant_id names 60 people in 240 rows, which are taken as independent.*--person 'participant_id'"
    with pytest.warns(DeconfoundWarning, match=told):
        ignored = audit(score, table, confounds=["site"], **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = audit(score, table, confounds=["site"], person="participant_id", **QUICK)
    assert given.verdicts[0].p > ignored.verdicts[0].p
    path = tmp_path / "scores.csv"
    rows = zip(table["participant_id"], table["site"], score, strict=True)
    path.write_text("participant_id,site,score\n" + "".join(f"{who},{site},{value}\n" for who, site, value in rows))
    with pytest.warns(DeconfoundWarning, match=told):
        audit_files([path], confounds=["site"], **QUICK)


def test_each_person_once_or_an_id_of_scans_is_no_repeated_person():
    assert repeated_people({"subject": ["a", "b"], "scan_id": [1, 1]}) is None
    assert repeated_people({"Subject": ["a", "a"]}) == "Subject"


def test_codes_of_many_sites_are_remarked_and_hide_an_effect():
    rng = np.random.default_rng(0)
    site = rng.integers(1, 31, 400)
    score = rng.normal(size=31)[site] + rng.normal(size=400)
    with pytest.warns(DeconfoundWarning, match="site holds 30 distinct whole numbers and is read as a number"):
        numbers = audit(score, {"site": site}, confounds=["site"], **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # small sites
        names = audit(score, {"site": site}, confounds=["site"], types={"site": "categorical"}, **QUICK)
    assert names.verdicts[0].effect > 3 * abs(numbers.verdicts[0].effect)
    assert codes_in("age", np.arange(30)) == 0  # many whole numbers are amounts


def test_levels_that_differ_in_capitals_alone_are_remarked():
    outputs, table = cohort()
    table["site"][::2] = np.char.lower(table["site"][::2])
    table["dx"] = np.where(np.arange(240) < 30, np.char.title(table["dx"]), table["dx"])
    with (
        pytest.warns(DeconfoundWarning, match="dx has levels that differ in capitals or spaces alone"),
        pytest.warns(DeconfoundWarning, match="'SRI', 'sri'; 'UCSD', 'ucsd'; 'UCSF', 'ucsf'. Write them alike"),
    ):
        audit(outputs["clean"], table, confounds=["site"], labels=["dx"], **QUICK)
    assert alike_levels(["a b", "A  B ", "ab"]) == [("A  B ", "a b")]


@pytest.mark.parametrize("labels", [["dx"], []])
def test_a_confound_that_differs_in_one_row_has_no_answer_instead_of_a_clean_one(labels):
    outputs, table = cohort()
    table["field"] = np.where(np.arange(240) == 7, 1.5, 3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # a level of one row
        result = audit(outputs["clean"], table, confounds=["field", "site"], labels=labels, **QUICK)
    assert "field differs in one row at most wherever rows are compared" in result.verdicts[0].text
    assert [item.grade for item in result.verdicts] == ["no answer", "none found"]
    table["field"][[7, 8, 9, 10, 11, 12]] = 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # a level of few rows
        measured = audit(outputs["clean"] + 9 * (table["field"] == 1.5), table, confounds=["field"], **QUICK)
    assert measured.verdicts[0].found


def test_words_that_begin_like_outputs_are_no_outputs():
    numbers, names = np.zeros(3), np.array(["a", "b", "c"], object)
    columns = {"Proband": names, "Problems": numbers, "SCORED_BY": names, "predisposition": numbers, "outputted": names}
    assert output_columns(columns, set()) == []
    for name in ("prob", "Probability of AD", "probAD", "proba_1", "scores", "logits.0", "y_hat", "yhat", "pred1"):
        assert output_columns({**columns, name: numbers}, set()) == [name], name


def test_names_of_rows_are_no_predicted_classes():
    _, table = cohort()
    with pytest.raises(TableError, match="or one column of class names; got 240 different texts, such as '0000'"):
        audit(table["scan"].astype(object), table, confounds=["site"], labels=["dx"], **QUICK)


@pytest.mark.parametrize("form", ["y_hat_{}", "score {}", "prob.{}", "p({}"])
def test_the_order_of_classes_is_read_whatever_stands_before_them(form):
    assert class_order([form.format(level) for level in ("CN", "AD", "late MCI")], ["AD", "CN", "late MCI"]) == (
        "CN", "AD", "late MCI",
    )  # fmt: skip
    assert class_order(["score_a_1", "score_1"], ["a_1", "1"]) == ("a_1", "1")
    assert class_order(["scoreAD", "scoreCN"], ["D", "N"]) == ()


def test_a_tie_is_measured_in_the_words_of_statistics():
    outputs, table = cohort()
    table["site"] = np.where(table["dx"] == "patient", "A", "B")
    with pytest.warns(DeconfoundWarning, match=r"site and dx are nearly the same \(Cramér's V = 1\.00\)"):
        audit(outputs["clean"], table, confounds=["site"], labels=["dx"], **QUICK)


def test_outputs_in_another_order_than_the_table_are_refused():
    pandas = pytest.importorskip("pandas")
    outputs, columns = cohort()
    table, roles = pandas.DataFrame(columns), {"confounds": ["site"], "labels": ["dx"], **QUICK}
    scores = pandas.Series(outputs["clean"], index=table.index)
    with pytest.raises(ShapeError, match="outputs of 'model' must be in the order of the table; got its rows in anoth"):
        audit(scores.sort_values(), table, **roles)
    with pytest.raises(ShapeError, match="outputs of 'b' must be in the order of the table"):
        audit({"a": scores, "b": scores[::-1]}, table, **roles)
    expected = audit(outputs["clean"], table, **roles).verdicts
    assert audit(scores.sort_values().loc[table.index], table, **roles).verdicts == expected
    assert audit(scores.set_axis(range(1000, 1240)), table, **roles).verdicts == expected  # an index of its own


def test_dates_are_known_by_their_writing():
    assert holds_dates(np.array(["2020-01-31", None, "2020-02-01T10:00"], object))
    assert holds_dates(np.array(["31.1.2020", "1/2/20"][:1], object))
    assert not holds_dates(np.array(["1-2", "A"], object))
    assert not holds_dates(np.array([2020.0]))
