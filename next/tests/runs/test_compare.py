"""`compare`: differences of honest scores over folds, by formula; variants, seeds and failures."""

from __future__ import annotations

import json
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import deconfound as dc
from deconfound.errors import OptionError, StateError
from deconfound.runs import Config, compare, compare_folds, default_variants, fit, prepare
from tests.runs.people import FEATURES, make_people

LOGISTIC = {
    "network.name": "sklearn.linear_model:LogisticRegression",
    "method": "none",
    "run.features": False,
}
PLAIN = {"data": {"labels": ["dx"], "positive": "AD"}, "design": {"confounds": ["site"]}}


class UnluckyRegression(LogisticRegression):
    """A logistic regression that cannot be fitted to some training rows."""

    def fit(self, x, y, sample_weight=None):
        """Fit, unless the first feature has its largest value among these rows."""
        if x[:, 0].max() < LARGEST:
            raise ValueError("the largest volume is absent")
        return super().fit(x, y, sample_weight)


PEOPLE = make_people(400, 0.8)
# The inputs of a network are standardised; no other row comes near this value.
PEOPLE.loc[17, "volume"] = 60.0
LARGEST = 9.0


def run_compare(folder, variants, *overrides, people=PEOPLE, **options):
    table = people[["id", "dx", "site", *FEATURES]]
    table.to_csv(folder / "people.csv", index=False)
    config = {
        **PLAIN,
        "data": {**PLAIN["data"], "source": str(folder / "people.csv"), "id": "id"},
        "run": {"folder": str(folder / "run")},
        "compare": {"variants": variants},
    }
    return compare(config, *overrides, **{"audit": False} | options)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Five variants, one of which fails in a fold, with two seeds and an audit."""
    folder = tmp_path_factory.mktemp("comparison")
    forest = {"network.name": "sklearn.ensemble:RandomForestClassifier"}
    variants = {
        "plain": LOGISTIC,
        "again": LOGISTIC,
        "residualized": {**LOGISTIC, "method": "residualized-inputs"},
        "forest": {**LOGISTIC, **forest, "network.options": {"n_estimators": 20}},
        "unlucky": {**LOGISTIC, "network.name": f"{__name__}:UnluckyRegression"},
    }
    return run_compare(folder, variants, "compare.seeds=[0, 3]", audit=True)


def by_variant(comparison):
    return {line.variant: line for line in comparison.lines}


# Arithmetic (acceptance 39).


def test_differences_follow_the_formula_of_nadeau_and_bengio():
    """Kills the plain t-test, whose interval would be 1.5 times as narrow."""
    random = np.random.default_rng(0)
    values, base = random.normal(0.03, 0.05, 5), random.normal(0, 0.05, 5)
    estimate, answer = compare_folds(dict(enumerate(values)), dict(enumerate(base)), 0.2)
    d = values - base
    error = np.sqrt((1 / 5 + 0.2 / 0.8) * d.var(ddof=1))
    low, high = d.mean() + error * stats.t(4).ppf([0.025, 0.975])
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx([d.mean(), low, high])
    assert answer == "no difference"
    assert low < 0 < high


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([0.8, 0.81, 0.83], "better"),
        ([0.6, 0.61, 0.61], "worse"),
        ([0.7, 0.71, 0.72], "no difference"),
        ([0.5, 0.71, 0.92], "no difference"),
        ([0.8, 0.81, 0.82], "unknown"),  # Equal differences have no spread.
        ([0.8, nan, nan], "unknown"),
        ([nan, nan, nan], "unknown"),
    ],
)
def test_only_an_interval_without_0_is_a_difference(values, answer):
    base = {0: 0.7, 1: 0.71, 2: 0.72}
    estimate, word = compare_folds(dict(enumerate(values)), base, 0.2)
    assert word == answer
    assert isnan(estimate.low) == (answer == "unknown")


def test_equal_variants_differ_by_exactly_0(comparison):
    line = by_variant(comparison)["again"]
    difference = line.difference
    assert (difference.value, difference.low, difference.high) == (0.0, 0.0, 0.0)
    assert line.answer == "no difference"
    assert by_variant(comparison)["plain"].answer == "base"


def test_differences_are_those_of_the_folds_averaged_over_seeds(comparison):
    """By hand from the stored predictions, with scikit-learn's AUC under the overlap weights."""
    runs = comparison.folder / "variants"

    def read(variant, seed):
        return pd.read_csv(runs / variant / f"seed-{seed}" / "predictions.csv", dtype={"id": str})

    table = read("plain", 0)
    weights = pd.Series(dc.balance(table, ["dx"], ["site"]).weights[:, 0], table["id"])

    def score(variant, seed):
        folds = read(variant, seed).groupby("fold")
        return pd.Series(
            {
                fold: roc_auc_score(
                    rows["dx"] == "AD", rows["prob_AD"], sample_weight=weights[rows["id"]]
                )
                for fold, rows in folds
            }
        )

    for variant in ("residualized", "forest"):
        d = sum(score(variant, seed) - score("plain", seed) for seed in (0, 3)) / 2
        error = np.sqrt((1 / 5 + 0.2 / 0.8) * d.var(ddof=1))
        reach = error * stats.t(4).ppf(0.975)
        difference = by_variant(comparison)[variant].difference
        expected = [d.mean(), d.mean() - reach, d.mean() + reach]
        measured = [difference.value, difference.low, difference.high]
        assert measured == pytest.approx(expected, abs=1e-9)
    assert by_variant(comparison)["forest"].measure == "balanced"


def test_a_variant_that_is_worse_as_sampled_can_be_better(comparison):
    """A difference is judged by the honest number alone: the features show the site."""
    lines = by_variant(comparison)
    plain, residualized = lines["plain"], lines["residualized"]
    assert residualized.scores.plain.value < plain.scores.plain.value - 0.02
    assert residualized.answer == "better"
    assert "Compared with plain, residualized (for dx) is better" in comparison.summary[1]


def test_what_is_left_comes_from_one_audit_of_all_variants(comparison):
    verdicts = {one.model: one for one in comparison.audit.verdicts}
    assert set(verdicts) == {"plain", "again", "residualized", "forest"}
    lines = by_variant(comparison)
    assert lines["plain"].left == f"site ({verdicts['plain'].grade})"
    assert lines["residualized"].left == "nothing found"


# Failures, and what is on disk.


def test_a_failed_fold_leaves_its_variant_out_and_is_reported_first(comparison):
    (place,) = {name.split(", seed")[0] for name in comparison.failures}
    assert place == "unlucky"
    assert all("the largest volume is absent" in text for text in comparison.failures.values())
    assert len(comparison.failures) < 10
    assert "unlucky" not in by_variant(comparison)
    page = (comparison.folder / "report.html").read_text(encoding="utf-8")
    assert page.index("the largest volume is absent") < page.index("What is left")


def test_files_hold_what_is_returned(comparison):
    results = json.loads((comparison.folder / "results.json").read_text(encoding="utf-8"))
    assert results == json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    table = pd.read_csv(comparison.folder / "comparison.csv")
    pd.testing.assert_frame_equal(table, comparison.to_frame(), check_dtype=False)
    assert list(table)[-1] == "as sampled"


def test_a_variant_is_the_run_that_it_names(tmp_path):
    """Kills changes that are lost, and a seed that moves the folds."""
    changes = {"method": "none", "training.balance": "overlap", "training.epochs": 2}
    people = PEOPLE[:120]
    result = run_compare(
        tmp_path, {"plain": LOGISTIC, "w.1/2": changes}, "compare.seeds=[5]", people=people
    )
    config = Config.load(result.runs["plain"].config).change({**changes, "network": None})
    config = config.change({"run.folder": str(tmp_path / "alone"), "run.features": True})
    alone = fit(config, audit=False)
    pd.testing.assert_frame_equal(alone.predictions, result.runs["w.1/2"].predictions)
    assert config.splits.seed == 0


def test_a_second_call_trains_only_what_is_new(tmp_path):
    texts: list[str] = []
    options = {"people": PEOPLE[:120], "on_progress": lambda done, total, text: texts.append(text)}
    mlp = {"method": "none", "training.epochs": 1}
    run_compare(tmp_path, {"a": mlp}, "splits.folds=2", **options)
    assert any("a, fold 1 of 2" in text for text in texts)
    texts.clear()
    result = run_compare(tmp_path, {"a": mlp, "b": mlp}, "splits.folds=2", **options)
    assert {text.split(",")[0] for text in texts if "fold" in text} == {"b"}
    assert by_variant(result)["b"].difference.value == 0.0


def test_parts_share_the_folds_and_the_last_one_reports(tmp_path):
    variants = {"a": LOGISTIC, "b": LOGISTIC}
    first = run_compare(tmp_path, variants, part=(1, 2))
    assert (first.lines, first.audit, first.summary) == ((), None, ())
    assert not (first.folder / "report.html").exists()
    second = run_compare(tmp_path, variants, part=(2, 2))
    assert len(second.lines) == 2


def test_force_deletes_a_comparison_and_nothing_else(tmp_path):
    first = run_compare(tmp_path, {"a": LOGISTIC}, "splits.folds=2")
    with pytest.raises(StateError, match=r"splits\.folds was 2 and is 3"):
        run_compare(tmp_path, {"a": LOGISTIC}, "splits.folds=3")
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(StateError, match=r"mine\.txt"):
        run_compare(tmp_path, {"a": LOGISTIC}, "splits.folds=3", force=True)
    assert (tmp_path / "run" / "mine.txt").exists()
    (tmp_path / "run" / "mine.txt").unlink()
    second = run_compare(tmp_path, {"b": LOGISTIC}, "splits.folds=3", force=True)
    assert not first.runs["a"].folder.exists()
    assert len(second.runs["b"].folds) == 3


def test_the_folder_of_a_fit_is_refused(tmp_path):
    result = run_compare(tmp_path, {"a": LOGISTIC}, "splits.folds=2")
    before = {path: path.read_bytes() for path in result.folder.rglob("*.*") if path.is_file()}
    with pytest.raises((OptionError, StateError)):
        fit(result.runs["a"].config.change({"run.folder": str(result.folder)}), audit=False)
    after = {path: path.read_bytes() for path in result.folder.rglob("*.*") if path.is_file()}
    assert after == before


def test_faults_of_all_variants_come_together(tmp_path):
    variants = {
        "one": {"training.epoch": 5},
        "two": {"method": "pmdm"},
        "three": {"splits.folds": 3},
        "four": {"data.features": ["volume"]},
    }
    with pytest.raises(OptionError) as error:
        run_compare(tmp_path, {"plain": LOGISTIC, **variants})
    text = str(error.value)
    assert "compare.variants.one: There is no key 'training.epoch'" in text
    variants.pop("one")
    with pytest.raises(OptionError) as error:
        run_compare(tmp_path, {"plain": LOGISTIC, **variants})
    text = str(error.value)
    for words in ("variants.two: ", "'pmdn'", "this one changes splits", "changes data.features"):
        assert words in text
    assert not (tmp_path / "run").exists()


def test_all_variants_that_fail_are_an_error_with_the_reason(tmp_path):
    unlucky = {**LOGISTIC, "network.name": f"{__name__}:UnluckyRegression"}
    with pytest.raises(StateError, match="the largest volume is absent"):
        run_compare(tmp_path, {"unlucky": unlucky})


# Variants by default.


@pytest.mark.parametrize(
    ("labels", "confounds", "absent"),
    [
        (["dx"], ["site"], {"ridge regression"}),
        (["dx"], ["age"], {"ranking", "ridge regression"}),
        (["mmse"], ["site"], {"ranking", "logistic regression"}),
    ],
)
def test_default_variants_fit_the_data(tmp_path, labels, confounds, absent):
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    data = {"source": str(tmp_path / "people.csv"), "labels": labels, "id": "id"}
    data |= {"positive": "AD"} if labels == ["dx"] else {}
    base = {"data": data, "design": {"confounds": confounds}, "splits": {"folds": 2}}
    config = Config.load(base, "training.balance=overlap", "training.epochs=1")
    variants = default_variants(prepare(config))
    known = {"plain", "pmdn", "weights", "weights and pmdn", "residualized inputs", "random forest"}
    assert known < set(variants)
    assert not absent & set(variants)
    # Plain is plain, also where the config has weights.
    assert config.change(variants["plain"]).training.balance is None
    weights = config.change(variants["weights"])
    assert weights.training.balance == ("entropy" if labels == ["mmse"] else "overlap")
