"""Right in every common design: a perfect model is not accused, a confounded one is found, and nothing is misread."""

import warnings

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.auditing import audit
from deconfound.auditing.baselines import confounds_alone
from deconfound.errors import DeconfoundWarning, OptionError, TableError
from deconfound.metrics import column
from tests.auditing.cohort import cohort

QUICK = {"permutations": 99, "bootstraps": 40, "embedding": False}


def grades(result):
    return {(item.model, item.confound): item.grade for item in result.verdicts}


def measured(result, statistic, **where):
    return result.where(statistic=statistic, **where)[0]


# Numeric labels


@pytest.fixture(scope="module")
def aged():
    """Sites that differ in age, and three predictions of age: perfect, noisy, and one that leans on a site."""
    rng = np.random.default_rng(1)
    site = rng.integers(0, 3, 240)
    age = np.array([40, 55, 65])[site] + 12 * rng.normal(size=240)
    noise = 6 * rng.normal(size=240)
    outputs = {"perfect": age, "noisy": age + noise, "leaning": age + noise + 8 * (site == 2)}
    table = {"age": age, "site": np.array(["a", "b", "c"])[site]}
    return audit(outputs, table, confounds=["site"], labels=["age"], **QUICK)


def test_outputs_that_are_the_true_age_show_no_sign_of_the_site_and_a_planted_site_is_found(aged):
    found = grades(aged)
    assert found["perfect", "site"] == found["noisy", "site"] == "none found"
    assert found["leaning", "site"] in ("clear", "strong")
    main = measured(aged, "residual_dcor_sqr", model="perfect")
    assert (main.value, main.p) == (pytest.approx(0, abs=1e-6), 1.0)


def test_a_numeric_label_has_its_error_first_and_by_site(aged):
    rows = [row for row in aged.rows if row.model == "noisy" and row.space == "outputs" and not row.confound]
    assert rows[0].statistic == "mean_absolute_error"
    assert len(aged.where(model="noisy", confound="site", statistic="mean_absolute_error")) == 3
    assert [set(part) for part in aged.shapes["noisy"]] == [{"name", "predicted", "errors"}]


# Probabilities, several classes, several labels


def test_the_calibration_error_has_an_interval_and_that_of_classes_is_their_mean():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 300)
    stage = np.array([rng.choice(3, p=row) for row in p])
    table = {"stage": np.array(["a", "b", "c"])[stage], "sex": rng.integers(0, 2, 300)}
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    found = audit({"good": p, "sharp": sharp}, table, confounds=["sex"], labels=["stage"], **QUICK)
    for model, outputs in (("good", p), ("sharp", sharp)):
        row = measured(found, "calibration_error", model=model, confound="")
        each = [metrics.calibration(outputs[:, k], stage == k).error for k in range(3)]
        assert row.value == pytest.approx(np.mean(each))
        assert row.low <= row.value <= row.high
        assert len(found.where(model=model, confound="sex", statistic="calibration_error")) == 2
    assert measured(found, "calibration_error", model="good", confound="").low == 0
    assert measured(found, "calibration_error", model="sharp", confound="").low > 0.05


def test_scores_by_stratum_are_shown_for_each_class_and_for_each_label():
    rng = np.random.default_rng(0)
    site, stage, dx = rng.integers(0, 2, 120), rng.integers(0, 3, 120), rng.integers(0, 2, (2, 120))
    table = {"site": np.array(["s", "t"])[site], "stage": np.array(["a", "b", "c"])[stage], "hiv": dx[0], "mci": dx[1]}
    shown = audit(rng.dirichlet([1, 1, 1], 120), table, confounds=["site"], labels=["stage"], **QUICK).shapes["model"]
    assert [part["name"] for part in shown] == ["", "a", "b", "c"]
    boxes = shown[2]["scores"]["site"]
    assert [(row["level"], row["group"]) for row in boxes] == [
        ("s", "not b"), ("s", "b"), ("t", "not b"), ("t", "b")
    ]  # fmt: skip
    assert sum(row["n"] for row in boxes) == 120
    found = audit(rng.normal(size=(120, 2)), table, confounds=["site"], labels=["hiv", "mci"], **QUICK)
    assert [part["name"] for part in found.shapes["model"]] == ["", "hiv", "mci"]
    assert "model · mci: scores by site and label" in found.to_html()


# What cannot be measured has no answer


def test_leaving_one_site_out_gives_no_answer_about_the_site_and_the_reason():
    outputs, table = cohort()
    with pytest.warns(DeconfoundWarning, match="site is the same in all rows of a test set"):
        found = audit(outputs["clean"], table, confounds=["site", "sex"], labels=["dx"], fold="site", **QUICK)
    answer = found.verdicts[0]
    assert (answer.confound, answer.grade) == ("site", "no answer")
    assert "cannot show whether the models use site" in answer.text
    for row in found.where(confound="site", statistic="within_group_dcor_sqr"):
        assert row.value != row.value
    assert grades(found)["model", "sex"] == "none found"
    page = found.to_html()
    assert "no answer" in page
    assert "nan" not in page.split("<main>")[1].split("<script")[0].lower().replace("dominant", "")


def test_pairs_of_different_models_are_not_compared_where_a_site_is_left_out():
    outputs, table = cohort()
    with pytest.warns(DeconfoundWarning):
        found = audit(outputs["clean"], table, confounds=["site"], labels=["dx"], fold="site", **QUICK)
    assert measured(found, "share_within", confound="site").value == 1
    assert not found.where(confound="site", statistic="auc_between")


def test_the_split_of_the_auc_is_that_of_the_metric_and_confounds_alone_have_their_own_row():
    outputs, table = cohort()
    found = audit(outputs["by site"], table, confounds=["site"], labels=["dx"], **QUICK)
    sites = np.unique(table["site"], return_inverse=True)[1]
    split = metrics.auc_split(outputs["by site"], table["dx"] == "patient", sites)
    for statistic, value in (("auc_within", split.within), ("auc_between", split.between)):
        assert measured(found, statistic, confound="site").value == pytest.approx(value)
    assert measured(found, "share_within", confound="site").value == pytest.approx(split.share_within)
    assert split.within > split.auc > split.between  # the site helps no pair within it, and hurts the others
    assert 0.3 < measured(found, "auc", model="confounds alone").value < 0.7
    assert not found.where(model="missing cells alone")
    table["site"] = np.where(table["dx"] == "patient", table["site"], None)
    gaps = audit(outputs["clean"], table, confounds=["site"], labels=["dx"], **QUICK)
    assert measured(gaps, "auc", model="missing cells alone").value == 1


def test_sites_and_test_sets_of_one_class_are_named_because_they_have_no_auc():
    outputs, table = cohort()
    table["dx"] = np.where(table["site"] == "SRI", "control", table["dx"])
    with pytest.warns(DeconfoundWarning):
        found = audit(outputs["clean"], table, confounds=["site"], labels=["dx"], fold="site", **QUICK)
    told = [note.text for note in found.notes if note.kind == "one class"]
    assert told == [
        "1 of 3 test sets hold one dx only and have no AUC; the mean leaves them out.",
        "Every row has the same dx in site SRI: no AUC there.",
    ]
    values = {row.level: row.value for row in found.where(confound="site", statistic="auc")}
    assert [level for level, value in values.items() if value != value] == ["SRI"]
    assert measured(found, "auc", confound="", space="outputs").value == pytest.approx(
        np.mean([value for value in values.values() if value == value])
    )


# Reading outputs


def test_two_columns_of_probabilities_are_in_the_order_of_scikit_learn():
    rng = np.random.default_rng(0)
    dx = np.array(["AD", "CN"])[rng.integers(0, 2, 120)]
    sure = np.where(dx == "CN", 0.8, 0.2)
    outputs = np.column_stack([1 - sure, sure])  # AD, CN: the order of classes_
    table = {"dx": dx, "sex": rng.integers(0, 2, 120)}
    found = audit(outputs, table, confounds=["sex"], labels=["dx"], **QUICK)
    assert measured(found, "accuracy", confound="").value == 1
    assert measured(found, "auc", confound="").value == 1
    assert "AD, CN, in this order" in found.notes[0].text
    with pytest.warns(DeconfoundWarning, match="Does a high score stand for the other level"):
        turned = audit(outputs, table, confounds=["sex"], labels=["dx"], classes=["CN", "AD"], **QUICK)
    assert measured(turned, "accuracy", confound="").value == 0
    with pytest.raises(OptionError, match="classes must name every level of the one label; got A, B for"):
        audit(outputs, table, confounds=["sex"], labels=["dx"], classes=["A", "B"], **QUICK)


def test_columns_of_a_data_frame_that_are_called_by_classes_or_labels_are_read_by_their_names():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    dx = rng.choice(["AD", "CN", "MCI"], 120)
    table = {"dx": dx, "sex": rng.integers(0, 2, 120), "hiv": rng.integers(0, 2, 120), "mci": rng.integers(0, 2, 120)}
    scores = pandas.DataFrame({level: (dx == level) + 0.1 * rng.random(120) for level in ("MCI", "AD", "CN")})
    found = audit(scores, table, confounds=["sex"], labels=["dx"], **QUICK)
    assert measured(found, "accuracy", confound="").value == 1
    found = audit(scores.to_numpy(), table, confounds=["sex"], labels=["dx"], classes=["MCI", "AD", "CN"], **QUICK)
    assert measured(found, "accuracy", confound="").value == 1
    scores = pandas.DataFrame({"mci": table["mci"] - 0.5, "hiv": table["hiv"] - 0.5})
    found = audit(scores, table, confounds=["sex"], labels=["hiv", "mci"], **QUICK)
    assert measured(found, "accuracy", confound="").value == 1


def test_numbers_as_text_are_asked_about_and_can_be_read_as_numbers():
    rng = np.random.default_rng(0)
    age, dx = rng.normal(60, 9, 120), rng.integers(0, 2, 120)
    table = {"age": age.astype(str), "dx": dx}
    with pytest.warns(DeconfoundWarning):
        found = audit(dx + age, table, confounds=["age"], labels=["dx"], **QUICK)
    assert any("age holds 120 different numbers as text, each a level of its own" in note.text for note in found.notes)
    found = audit(dx + age, table, confounds=["age"], labels=["dx"], types={"age": "numeric"}, **QUICK)
    assert grades(found) == {("model", "age"): "strong"}


def test_amounts_with_their_unit_are_asked_about_and_field_strengths_are_not():
    rng = np.random.default_rng(0)
    weight, dx = rng.integers(50, 100, 120), rng.integers(0, 2, 120)
    table = {"weight": [f"{kg} kg" for kg in weight], "field": rng.choice(["1.5T", "3T"], 120), "dx": dx}
    with pytest.warns(DeconfoundWarning) as caught:
        found = audit(dx + weight, table, confounds=["weight", "field"], labels=["dx"], **QUICK)
    (note,) = (note for note in found.notes if "other text" in note.text)
    assert (note.severity, note.confound) == ("warning", "weight")
    assert note.text in [str(warning.message) for warning in caught]
    assert note.text.startswith(f"weight holds numbers with other text, such as '{weight[0]} kg', and each of its 46 ")
    assert "write plain numbers, or pass types={'weight': 'categorical'} (--type 'weight=categorical')" in note.text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # of levels with few rows
        types = {"weight": "categorical"}
        silent = audit(dx + weight, table, confounds=["weight", "field"], labels=["dx"], types=types, **QUICK)
    assert not any("other text" in note.text for note in silent.notes)


def test_predictions_on_another_scale_than_the_label_are_asked_about():
    rng = np.random.default_rng(0)
    months = np.exp(rng.normal(3, 0.8, 120))
    table = {"months": months, "sex": rng.integers(0, 2, 120)}
    outputs = {"months": months + rng.normal(size=120), "log": np.log(months)}
    found = audit(outputs, table, confounds=["sex"], labels=["months"], **QUICK)
    asked = [note.text for note in found.notes if note.kind == "points away"]
    assert asked == [
        "The outputs of log are further from months than its mean is (R² below 0). Are they in its units? Logarithms "
        "and z-scores are not."
    ]


@pytest.mark.parametrize("levels", [(1, 2), (0, 1), (3, 7)])
def test_predicted_codes_of_classes_are_classes(levels):
    rng = np.random.default_rng(0)
    dx = np.array(levels)[rng.integers(0, 2, 200)]
    said = np.where(rng.random(200) < 0.9, dx, sum(levels) - dx)
    found = audit(said, {"dx": dx, "sex": rng.integers(0, 2, 200)}, confounds=["sex"], labels=["dx"], **QUICK)
    assert measured(found, "accuracy", confound="").value == pytest.approx(np.mean(said == dx))


@pytest.mark.parametrize(
    ("levels", "said", "unknown"),
    [
        (["AD", "CN", "MCI"], ["FTD", "CN", "MCI"], "FTD"),
        (["control", "patient"], ["control", "unknown"], "unknown"),
        (["CN", "MCI"], ["CN", "AD"], "AD"),
        ([1, 2, 3], ["1", "2.0", "4"], "4"),
        ([1, 2, 3], [1, 2, 4], "4"),
    ],
)
def test_a_predicted_class_that_the_label_does_not_have_is_wrong_and_named(levels, said, unknown):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, len(levels), 150)
    table = {"dx": np.array(levels)[codes], "sex": rng.integers(0, 2, 150)}
    with pytest.warns(DeconfoundWarning, match=f"predict {unknown} in .* these rows count as wrong"):
        found = audit(np.array(said)[codes], table, confounds=["sex"], labels=["dx"], **QUICK)
    known = [float(a) == float(b) if str(b)[0].isdigit() else a == b for a, b in zip(said, levels, strict=True)]
    assert measured(found, "accuracy", confound="").value == pytest.approx(np.mean(np.array(known)[codes]))


def test_a_third_class_is_no_false_alarm():
    dx, sex = np.repeat(["control", "patient"], 60), np.tile([0, 1], 60)
    said = np.where((dx == "control") & (sex == 1), "unknown", dx)
    with pytest.warns(DeconfoundWarning, match="predict unknown in 30 of 120 rows"):
        found = audit(said, {"dx": dx, "sex": sex}, confounds=["sex"], labels=["dx"], **QUICK)
    assert measured(found, "fpr_gap", confound="sex").value == 0


def test_predicted_names_of_which_none_is_a_class_of_the_label_are_refused():
    rng = np.random.default_rng(0)
    dx = rng.integers(0, 2, 120)
    table = {"dx": dx, "sex": rng.integers(0, 2, 120)}
    with pytest.raises(TableError, match=r"must name classes of 'dx' \(0, 1\); got False, True\. Write both alike"):
        audit((dx == 1).astype(str), table, confounds=["sex"], labels=["dx"], **QUICK)


def test_names_of_one_column_are_no_scores_of_several_labels():
    rng = np.random.default_rng(0)
    table = {name: rng.integers(0, 2, 120) for name in ("hiv", "mci", "sex")}
    found = audit(np.array(["a", "b"])[table["hiv"]], table, confounds=["sex"], labels=["hiv", "mci"], **QUICK)
    assert [note.kind for note in found.notes] == ["no performance"]


def test_whole_numbers_that_are_codes_of_two_classes_and_others_are_asked_about():
    rng = np.random.default_rng(2)
    table = {"dx": rng.integers(1, 3, 120), "sex": rng.integers(0, 2, 120)}
    found = audit(table["dx"] + rng.integers(0, 2, 120), table, confounds=["sex"], labels=["dx"], **QUICK)
    asked = [note.text for note in found.notes if note.kind == "codes"]
    assert asked == [
        "The outputs of model are whole numbers, among them the codes of dx (1, 2) and 3, and are read as scores. If "
        "they are predicted classes, give their names instead."
    ]


@pytest.mark.parametrize("begin", ["", "score_"])
def test_a_class_of_the_columns_that_the_label_does_not_have_is_a_wrong_answer(begin):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    said = rng.dirichlet([1, 1, 1], 150)
    names = np.array(["AD", "CN", "MCI"])
    table = {"dx": rng.choice(["CN", "MCI"], 150), "sex": rng.integers(0, 2, 150)}
    scores = pandas.DataFrame(np.log(said) if begin else said, columns=[f"{begin}{name}" for name in names])
    for outputs, classes in ((scores, ()), (said, names)):
        with pytest.warns(DeconfoundWarning, match=r"predict AD in .* no class of dx \(CN, MCI\)"):
            found = audit(outputs, table, confounds=["sex"], labels=["dx"], classes=classes, **QUICK)
        right = np.mean(names[said.argmax(1)] == table["dx"])
        assert measured(found, "accuracy", confound="").value == pytest.approx(right)


def test_columns_called_by_other_classes_are_not_read_in_the_order_of_the_label():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    scores = pandas.DataFrame(rng.normal(size=(120, 3)), columns=["AD", "FTD", "MCI"])
    table = {"dx": rng.choice(["AD", "CN", "MCI"], 120), "sex": rng.integers(0, 2, 120)}
    with pytest.warns(DeconfoundWarning, match="called AD, FTD, MCI, and none of them stands for dx CN: no perf"):
        found = audit(scores, table, confounds=["sex"], labels=["dx"], **QUICK)
    assert not found.where(space="outputs", statistic="accuracy")


def test_what_was_read_as_what_is_the_first_line_of_the_answer():
    outputs, table = cohort()
    table["sex"] = np.where(np.arange(240) == 5, "", table["sex"])
    found = audit(outputs["clean"], table, confounds=["sex"], labels=["dx"], **QUICK)
    assert [note.kind for note in found.notes] == ["reading", "missing"]
    assert repr(found).splitlines()[1] == "  read as: model: scores above 0 mean dx = patient."


@pytest.mark.parametrize("labels", [["dx"], ["dx", "hiv"]])
def test_a_level_for_every_row_is_the_reason_why_an_id_as_a_confound_has_no_answer(labels):
    rng = np.random.default_rng(0)
    dx, hiv = rng.integers(0, 2, 120), rng.integers(0, 2, 120)
    table = {"code": np.array([f"s{k % 118:03d}" for k in range(120)]), "dx": dx, "hiv": hiv}
    with pytest.warns(DeconfoundWarning) as said:
        found = audit(rng.normal(size=(120, len(labels))), table, confounds=["code"], labels=labels, **QUICK)
    assert grades(found) == {("model", "code"): "no answer"}
    assert found.verdicts[0].text.startswith("Nearly every row has a code of its own (118 levels in 120 rows), so any")
    assert found.verdicts[0].text.count("Nearly every row") == 1
    assert not any("nearly the same" in str(warning.message) for warning in said)


# Values that are not numbers, and categories


def test_a_category_of_a_data_frame_stays_one_and_nan_among_texts_is_missing():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    site = rng.integers(0, 5, 100)
    names = [["a", "b", float("nan")][code % 3] for code in site]
    frame = pandas.DataFrame({"site": pandas.Categorical(site), "dx": rng.integers(0, 2, 100)})
    found = audit(rng.normal(size=100), frame, confounds=["site"], labels=["dx"], **QUICK)
    assert found.about["confounds"][0]["kind"] == "categorical"
    plain = {"site": names, "dx": frame["dx"].to_numpy()}
    found = audit(rng.normal(size=100), plain, confounds=["site"], labels=["dx"], **QUICK)
    assert found.about["confounds"][0]["levels"] == ["a", "b"]


# People with several rows


def test_visits_in_the_same_order_are_found_and_what_cannot_move_has_no_answer():
    rng = np.random.default_rng(0)
    person, visit = np.repeat(np.arange(60), 3), np.tile(["v1", "v2", "v3"], 60)
    dx = rng.integers(0, 2, 60)[person]
    score = dx + rng.normal(size=60)[person] + 0.5 * rng.normal(size=180) + 1.5 * (visit == "v3")
    table = {"visit": visit, "dx": dx, "who": person}
    found = audit(score, table, confounds=["visit"], labels=["dx"], person="who", **QUICK)
    assert found.verdicts[0].p == 0.01
    table["first"] = table["stage"] = visit == "v3"
    with pytest.warns(DeconfoundWarning, match="first and stage are nearly the same"):
        found = audit(score, table, confounds=["first"], labels=["stage"], person="who", **QUICK)
    assert found.verdicts[0].grade == "no answer"


# Grades, corrections and effects


def test_every_verdict_has_an_effect_a_corrected_p_value_and_what_could_have_been_found():
    outputs, table = cohort()
    found = audit(outputs, table, confounds=["age", "site"], labels=["dx"], **QUICK)
    for item in found.verdicts:
        assert item.p_holm >= item.p
        assert item.effect == measured(found, item.statistic, model=item.model, confound=item.confound).value
        if item.grade == "none found":
            assert f"a dcor² of {item.detectable:.3f} or more" in item.text
    assert any(note.kind == "many tests" for note in found.notes)


@pytest.mark.parametrize(
    ("value", "p", "probe", "grade"),
    [
        (0.009, 0.01, 1.0, "faint"),
        (0.011, 0.01, 1.0, "weak"),
        (0.051, 0.05, 1.0, "clear"),
        (0.21, 0.01, 1.0, "strong"),
        (0.21, 0.051, 1.0, "none found"),
        (0.21, 0.051, 0.01, "faint"),
        (0.21, 0.051, 0.011, "none found"),
        (float("nan"), 0.01, 0.01, "no answer"),
        (0.0, float("nan"), 0.01, "no answer"),
    ],
)
def test_the_grade_follows_from_size_and_test(value, p, probe, grade):
    from deconfound.auditing.records import AuditRow
    from deconfound.auditing.verdicts import verdict

    rows = [
        AuditRow("m", "outputs", "age", "within_group_dcor_sqr", "", value, 0.0, 0.1, p, 0.0, 0.02, 90),
        AuditRow("m", "outputs", "age", "linear_probe_r2", "", 0.1, 0.0, 0.2, probe, 0.0, 0.02, 90),
    ]
    assert verdict(rows, []).grade == grade


def test_an_interval_that_does_not_exist_is_told_in_words():
    import io
    from dataclasses import replace

    from rich.console import Console

    from deconfound.auditing import Audit, AuditRow
    from deconfound.auditing.verdicts import verdict
    from deconfound.cli.options import show_verdicts

    nan = float("nan")
    row = AuditRow("m", "outputs", "age", "within_group_dcor_sqr", "", 0.1, nan, nan, 0.4, 0.0, 0.3, 9)
    found = verdict([row], [])
    assert "(too few rows for an interval)" in found.text
    told = repr(Audit((row,), (found,), (), {"models": ["m"], "rows": 9}))
    assert "dcor² 0.100 [no interval] p 0.400" in told
    assert "nan" not in found.text
    shown = io.StringIO()
    show_verdicts(Console(file=shown, width=120), Audit((row,), (replace(found, p_holm=0.4),), (), {}))
    assert "0.100 │ –             │ 0.400 │ 0.400" in shown.getvalue()


def test_the_confounds_alone_are_judged_on_people_whom_they_were_not_fitted_to():
    """A confound that names the person tells the label of a known one, and nothing of a new one."""
    person = torch.arange(40).repeat_interleave(6)
    label = torch.randint(2, (40,), generator=torch.Generator().manual_seed(0))[person]
    named = [column("scanner", [f"s{number}" for number in person.tolist()])]
    target = [column("dx", label.tolist())]
    known, new = (confounds_alone(named, target, units, 0)[:, 0] for units in (torch.arange(240), person))
    right = [float(((scores > 0) == (label == 1)).double().mean()) for scores in (known, new)]
    assert right[0] == 1.0
    assert right[1] < 0.7
