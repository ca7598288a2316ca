"""`dc.audit`: verdicts, honest performance and sensitivity, from the outside."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, rankdata

import deconfound as dc
from deconfound.errors import OptionError, TableError

FAST = dc.Resampling(permutations=199, bootstraps=50)


def make_table(n=300, seed=0, sites=2, prevalence=0.5):
    """Return people whose site goes with their label, and the label as numbers."""
    random = np.random.default_rng(seed)
    ill = (random.random(n) < prevalence).astype(int)
    code = np.where(random.random(n) < 0.4, ill, random.integers(0, sites, n))
    table = pd.DataFrame(
        {
            "dx": np.array(["CN", "AD"])[ill],
            "site": [f"site {value}" for value in code],
            "age": random.normal(60 + 4 * ill, 8),
            "sex": random.choice(["F", "M"], n),
        }
    )
    return table, ill, random


def audit(score, table, **options):
    """Return an audit of one score, without planted leaks and probes unless asked for."""
    given = {"confounds": ["site"], "labels": ["dx"], "positive": "AD", "resampling": FAST}
    return dc.audit(score, table, **(given | {"planted": None, "probes": False} | options))


def auc(score, ill):
    """The area under the curve by ranks."""
    ranks = rankdata(score)
    cases = ill.sum()
    return (ranks[ill == 1].sum() - cases * (cases + 1) / 2) / (cases * (len(ill) - cases))


def test_a_leak_is_found_and_graded():
    """.8 sd between two sites, a correlation near .37. Control: the score without the shift."""
    table, ill, random = make_table()
    score = ill + random.normal(size=300)
    shifted = score + 0.8 * (table["site"] == "site 1")
    (found,) = audit(shifted, table).verdicts
    assert (found.answer, found.grade) == ("found", "clear")
    assert found.effect.low > 0.02
    assert found.effect.p < 0.01
    (quiet,) = audit(score, table).verdicts
    assert (quiet.answer, quiet.grade) == ("not found", "none")
    assert quiet.effect.value < 0.03


def test_a_perfect_model_is_not_accused():
    """22: its score is the label, which goes with the site. Kills a test without label groups."""
    table, ill, _ = make_table()
    (verdict,) = audit(ill.astype(float), table).verdicts
    assert verdict.answer == "no answer"
    assert "do not vary among people with the same labels" in verdict.reason
    noisy = ill + 1e-3 * np.random.default_rng(1).normal(size=300)
    assert audit(noisy, table).verdicts[0].answer == "not found"


def test_a_score_that_knows_the_site_alone_is_worth_nothing():
    """24: AUC .5 within sites and under weights; the same from the three lines of the audit."""
    table, ill, _ = make_table(600)
    score = (table["site"] == "site 1").astype(float)
    report = audit(score, table)
    (row,) = report.performance
    assert row.honest.plain.value == pytest.approx(auc(score, ill))
    assert row.honest.plain.value > 0.6
    assert row.honest.within_strata["site"].value == pytest.approx(0.5)
    assert row.honest.balanced.value == pytest.approx(0.5, abs=1e-6)
    assert row.confounds_alone.value > 0.6
    assert report.verdicts[0].grade == "strong"
    assert "site" in report.summary[0]
    assert "0.50" in report.summary[1]


def test_within_strata_is_the_weighted_mean_by_hand():
    """25: n₁ n₀ / (n₁ + n₀). Kills weights n₁ n₀, by which one large site decides."""
    table, ill, random = make_table(400, sites=3)
    score = ill + random.normal(size=400)
    (row,) = audit(score, table).performance
    parts = []
    for site in table["site"].unique():
        rows = (table["site"] == site).to_numpy()
        cases, controls = ill[rows].sum(), (1 - ill[rows]).sum()
        parts.append((cases * controls / (cases + controls), auc(score[rows], ill[rows])))
    weights, values = np.array(parts).T
    expected = weights @ values / weights.sum()
    assert row.honest.within_strata["site"].value == pytest.approx(expected)


def test_site_equals_label_has_no_answer():
    """23: never a verdict, and the sentence says what to collect."""
    table, ill, random = make_table()
    table["site"] = np.where(ill == 1, "A", "B")
    report = audit(random.normal(size=300), table)
    (verdict,) = report.verdicts
    assert verdict.answer == "no answer"
    assert "nearly the same column" in verdict.reason
    assert "do not go together" in verdict.collect
    assert verdict.collect.split()[1] in report.summary[2]
    assert report.performance[0].balance


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"site": "A"}, "same value in every row"),
        ({"site": [f"p{i}" for i in range(300)]}, "another level for each person"),
        ({"fold": "site"}, "one value in each test fold"),
        ({"site": ["A"] * 299 + ["B"]}, None),
    ],
    ids=["constant", "an id", "left-out sites", "one odd row"],
)
def test_obstacles_are_named(change, reason):
    """A left-out site, and a level of one person, cannot be judged."""
    table, ill, random = make_table()
    options = {}
    for name, value in change.items():
        table[name] = table[value] if value == "site" else value
        options = {"fold": "fold"} if name == "fold" else {}
    (verdict,) = audit(ill + random.normal(size=300), table, **options).verdicts
    if reason is None:
        assert verdict.answer != "found"
    else:
        assert verdict.answer == "no answer"
        assert reason in verdict.reason
        assert verdict.collect


def test_few_people_have_no_answer():
    """23: six people cannot tell anything."""
    table, ill, random = make_table(6, seed=3)
    (verdict,) = audit(ill + random.normal(size=6), table).verdicts
    assert verdict.answer == "no answer"


def test_found_is_holms_p_over_the_confounds_of_a_model():
    """Kills a verdict on the raw p, and one over all models."""
    table, ill, random = make_table(sites=3)
    scores = {
        "first": ill + random.normal(size=300) + 0.5 * (table["site"] == "site 2"),
        "second": ill + random.normal(size=300),
    }
    confounds = ["site", "age", "sex"]
    together = audit(scores, table, confounds=confounds)
    for name, score in scores.items():
        verdicts = [one for one in together.verdicts if one.model == name]
        raw = np.array([one.effect.p for one in verdicts])
        order = np.argsort(raw)
        adjusted = np.maximum.accumulate(raw[order] * [3, 2, 1]).clip(max=1)
        assert [verdicts[i].holm for i in order] == pytest.approx(adjusted)
        for one in verdicts:
            assert (one.answer == "found") == (one.holm <= 0.05)
        alone = audit({name: score}, table, confounds=confounds)
        for ours, other in zip(alone.verdicts, verdicts, strict=True):
            assert ours.effect.p == other.effect.p
            assert ours.effect.value == pytest.approx(other.effect.value, rel=1e-9)


def test_a_leak_in_the_rare_class_is_found_and_named():
    """Fault 10: 24 of 400 are ill, and the leak is theirs. Kills the mean over all pairs alone."""
    table, ill, random = make_table(400, prevalence=0.06)
    table["site"] = random.choice(["A", "B"], 400)
    score = ill + random.normal(size=400) + 2.5 * ((table["site"] == "A") & (ill == 1))
    (verdict,) = audit(score, table).verdicts
    assert verdict.answer == "found"
    by_group = {one.group: one.effect for one in verdict.by_group}
    assert by_group["AD"].p < 0.05 < by_group["CN"].p


def test_groups_of_true_and_false_name_their_label():
    """Kills "the group False", which does not say of what."""
    table, ill, random = make_table(100)
    table["ill"] = ill == 1
    score = ill + random.normal(size=100)
    report = audit(score, table, labels=["ill"], positive=None)
    assert report.about.groups == {"ill = False": 100 - ill.sum(), "ill = True": ill.sum()}


def test_people_with_many_rows_count_once():
    """Every row ten times changes neither the effect nor the verdict."""
    table, ill, random = make_table(120)
    table["person"] = [f"sub-{row:03}" for row in range(120)]
    score = pd.Series(ill + random.normal(size=120) + 0.6 * (table["site"] == "site 1"))
    once = audit(score, table, person="person").verdicts[0]
    ten = pd.concat([table] * 10, ignore_index=True)
    many = audit(pd.concat([score] * 10), ten, person="person").verdicts[0]
    assert many.effect.value == pytest.approx(once.effect.value, rel=0.05)
    naive = audit(pd.concat([score] * 10), ten).verdicts[0]
    assert naive.effect.p <= many.effect.p  # control: rows that count as people


def test_sensitivity_in_the_users_own_data():
    """A large plant is found nearly always, one of zero in about 5 %. None leaves them out."""
    table, ill, random = make_table(200)
    score = ill + random.normal(size=200)
    for shift, low, high in ((1.2, 0.95, 1.0), (0.0, 0.0, 0.17)):
        (verdict,) = audit(score, table, planted=shift).verdicts
        whole = verdict.sensitivity[0]
        assert (whole.group, whole.shift, whole.share.n) == (None, shift, 100)
        assert low <= whole.share.value <= high
        assert whole.share.low <= whole.share.value <= whole.share.high
        assert {one.group for one in verdict.sensitivity} == {None, "AD", "CN"}
    assert audit(score, table).verdicts[0].sensitivity == ()


def test_features_alone_and_beside_outputs():
    """A leak in one of eight features is found; features have no performance."""
    table, ill, random = make_table()
    features = random.normal(size=(300, 8))
    features[:, 3] += 0.9 * (table["site"] == "site 1")
    alone = audit(None, table, features=features, positive=None)
    assert [one.is_features for one in alone.verdicts] == [True]
    assert alone.verdicts[0].answer == "found"
    assert alone.performance == ()
    both = audit(ill + random.normal(size=300), table, features={"fc1": features})
    assert [(one.model, one.is_features) for one in both.verdicts][1] == ("fc1", True)
    with pytest.raises(OptionError, match="Pass one of them"):
        audit(None, table)


def test_numeric_labels_and_three_classes():
    """25: the leak of each kind of label is found, and scored by its own measures."""
    table, _, random = make_table(300)
    table["score"] = random.normal(size=300)
    output = table["score"] + 0.5 * random.normal(size=300)
    leaky = output + 0.5 * (table["site"] == "site 1")
    clean, found = (audit(s, table, labels=["score"], positive=None) for s in (output, leaky))
    assert clean.verdicts[0].answer == "not found"
    assert found.verdicts[0].answer == "found"
    assert clean.performance[0].honest.label == "numeric"
    residual = table["score"] - output
    expected = 1 - (residual**2).sum() / ((table["score"] - table["score"].mean()) ** 2).sum()
    assert clean.performance[0].honest.plain.value == pytest.approx(expected)
    classes = random.integers(0, 3, 300)
    table["group"] = np.array(["AD", "CN", "MCI"])[classes]
    outputs = np.eye(3)[classes] + random.normal(size=(300, 3))
    (row,) = audit(outputs, table, labels=["group"], positive=None).performance
    mean = np.mean([auc(outputs[:, i], (classes == i).astype(int)) for i in range(3)])
    assert row.honest.plain.value == pytest.approx(mean)
    assert row.classes == ("AD", "CN", "MCI")


def test_the_papers_measures_are_those_of_scipy():
    """59: |r| of numbers and of two levels, in each fold, averaged."""
    table, ill, random = make_table(200)
    table["fold"] = np.repeat(["a", "b"], 100)
    score = ill + random.normal(size=200) + 0.05 * table["age"]
    report = audit(score, table, confounds=["age", "sex"], fold="fold")
    for verdict, column in zip(report.verdicts, (table["age"], table["sex"] == "M"), strict=True):
        halves = [
            abs(pearsonr(score[rows], column[rows])[0]) for rows in (slice(100), slice(100, 200))
        ]
        assert verdict.paper == pytest.approx(np.mean(halves))


def test_probes_describe_features():
    table, _, random = make_table()
    features = random.normal(size=(300, 4)) + 2.0 * (table["site"] == "site 1").to_numpy()[:, None]
    (verdict,) = audit(None, table, features=features, positive=None, probes=True).verdicts
    assert verdict.probe.linear > 0.95


def test_an_audit_is_kept_as_json_csv_and_page(tmp_path):
    """NaN is null in JSON; another ending is refused; unknown folders are not made."""
    table, ill, random = make_table(80)
    report = audit(ill + random.normal(size=80), table)
    data = json.loads(report.save(tmp_path / "audit.json").read_text())
    assert data["verdicts"][0]["effect"]["value"] == report.verdicts[0].effect.value
    assert data["verdicts"][0]["paper"] == pytest.approx(report.verdicts[0].paper)
    assert "NaN" not in (tmp_path / "audit.json").read_text()
    frame = pd.read_csv(report.save(tmp_path / "audit.csv"))
    assert frame.loc[0, "confound"] == "site"
    assert report.save(tmp_path / "audit.html").read_text().startswith("<!DOCTYPE html>")
    for path in (tmp_path / "audit.pdf", tmp_path / "no" / "audit.html"):
        with pytest.raises(OptionError):
            report.save(path)
    assert not (tmp_path / "no").exists()


def test_equal_seeds_give_equal_audits_and_progress_is_reported():
    table, ill, random = make_table(80)
    score = ill + random.normal(size=80)
    steps = []
    first = audit(score, table, on_progress=lambda *step: steps.append(step))
    second = audit(score, table)
    assert first.to_dict() == second.to_dict()
    assert [done for done, _, _ in steps] == list(range(1, steps[0][1] + 1))
    assert all(text for _, _, text in steps)
    assert "in all" not in steps[0][2]


def test_a_long_audit_is_announced_before_it_begins():
    """Three confounds of 3,000 people take some 15 s with the defaults."""
    table, ill, _ = make_table(3000)
    steps = []

    def stop(*step):
        steps.append(step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(ill, table, confounds=["site", "age", "sex"], on_progress=stop)
    assert steps[0][2].endswith("(about 15 s in all)")


def test_all_faults_of_a_table_are_reported_together():
    table, ill, _ = make_table(40)
    table["stage"] = np.arange(40) % 4
    table.loc[3, "age"] = np.nan
    with pytest.raises(TableError) as caught:
        audit(ill, table, confounds=["site", "age", "stage"])
    text = str(caught.value)
    assert "'age' is empty in 1 rows" in text
    assert "types={'stage': 'categorical'}" in text


def test_labels_that_hardly_vary():
    """All cases are one person. Kills folds without a class, in which nothing can be scored."""
    table, ill, random = make_table(60)
    table["person"] = [f"p{row}" for row in range(60)]
    table.loc[ill == 1, "person"] = "p-case"
    score = ill + random.normal(size=60)
    (row,) = audit(score, table, person="person").performance
    assert np.isnan(row.confounds_alone.value)
    with pytest.raises(OptionError, match="the labels are 'dx' with 'AD'"):
        audit(score, table.assign(dx="AD"))


def test_inverted_scores_are_pointed_out():
    """Kills a page that calls a good model useless."""
    table, ill, random = make_table(400)
    report = audit(2.0 * ill + random.normal(size=400), table, positive="CN")
    assert "below chance (check that high scores stand for CN)" in report.summary[1]


def test_intervals_contain_their_estimates():
    """Of 20 tables without a leak, also where noise makes the effect negative."""
    for seed in range(20):
        table, ill, random = make_table(100, seed=seed)
        (verdict,) = audit(ill + random.normal(size=100), table).verdicts
        for effect in (verdict.effect, *(one.effect for one in verdict.by_group)):
            assert effect.low <= effect.value <= effect.high


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"confounds": "site"}, OptionError, "must be a list of column names; got 'site'"),
        ({"confounds": []}, OptionError, "at least one column"),
        ({"confounds": ["dx"]}, OptionError, "in confounds and in labels"),
        ({"person": "site"}, OptionError, "in confounds and in person"),
        ({"confounds": ["sight"]}, TableError, "'site'"),
        ({"positive": None}, OptionError, "positive="),
        ({"positive": "ill"}, OptionError, "'AD'"),
        ({"planted": -1.0}, OptionError, "planted must be"),
    ],
)
def test_wrong_arguments(options, error, text):
    table, ill, random = make_table(60)
    with pytest.raises(error, match=text):
        audit(ill + random.normal(size=60), table, **options)


def test_outputs_in_another_order_are_refused():
    """A pandas index that names the same rows; other indexes are read by position."""
    table, ill, random = make_table(60)
    outputs = pd.DataFrame({"AD": ill + random.normal(size=60)})
    with pytest.raises(OptionError, match=r"outputs\.loc\[table\.index\]"):
        audit(outputs.iloc[::-1], table)
    renamed = table.set_index(np.arange(100, 160))
    assert (
        audit(outputs, renamed).verdicts[0].effect.p == audit(outputs, table).verdicts[0].effect.p
    )


def test_unequal_rows_and_values_that_are_not_finite_are_refused():
    table, ill, _ = make_table(60)
    with pytest.raises((OptionError, TableError, ValueError), match="rows"):
        audit(ill[:50], table)
    with pytest.raises(ValueError, match="row"):
        audit(np.where(np.arange(60) == 7, np.nan, ill), table)
