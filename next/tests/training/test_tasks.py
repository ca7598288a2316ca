"""Tasks: labels become targets, outputs become columns that an audit understands."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, softmax

import deconfound as dc
from deconfound.errors import OptionError, TableError
from deconfound.metrics import Resampling
from deconfound.training import Task, Units, read_task

N = 120


def make_table(n=N):
    """Labels of all kinds; the text levels of `dx` and `ward` share the word "no"."""
    rng = np.random.default_rng(0)
    stage = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "dx": np.array(["CN", "AD"])[rng.integers(2, size=n)],
            "ill": rng.integers(2, size=n),
            "fever": rng.integers(2, size=n) > 0,
            "cough": np.array(["no", "yes"])[rng.integers(2, size=n)],
            "rash": np.array(["no", "yes"])[rng.integers(2, size=n)],
            "stage": np.array(["low", "mid", "high"])[stage],
            "code": stage,
            "age": rng.normal(65, 8, n),
            "score": rng.normal(5e6, 1e3, n),
            "site": np.array(["KCL", "UCL"])[rng.integers(2, size=n)],
        }
    )


@pytest.mark.parametrize(
    ("labels", "positive", "types", "kind", "levels", "outputs"),
    [
        (["ill"], None, None, "binary", (("0", "1"),), 1),
        (["fever"], None, None, "binary", (("False", "True"),), 1),
        (["ill"], 0, None, "binary", (("1", "0"),), 1),
        (["dx"], "AD", None, "binary", (("CN", "AD"),), 1),
        (["dx"], "CN", None, "binary", (("AD", "CN"),), 1),
        (["dx", "ill"], "AD", None, "binary", (("CN", "AD"), ("0", "1")), 2),
        (["dx", "ill"], {"dx": "CN", "ill": 0}, None, "binary", (("AD", "CN"), ("1", "0")), 2),
        (["cough", "rash"], "yes", None, "binary", (("no", "yes"), ("no", "yes")), 2),
        (["stage"], None, None, "classes", (("high", "low", "mid"),), 3),
        (["code"], None, {"code": "categorical"}, "classes", (("0", "1", "2"),), 3),
        (["age"], None, {"site": "categorical"}, "numeric", ((),), 1),
        (["age", "score"], None, None, "numeric", ((), ()), 2),
        (["code"], None, {"code": "numeric"}, "numeric", ((),), 1),
        (["ill"], None, {"ill": "numeric"}, "numeric", ((),), 1),
    ],
)
def test_the_kind_follows_from_the_labels(labels, positive, types, kind, levels, outputs):
    task = read_task(make_table(), labels, positive, types)
    assert task == Task(kind, tuple(labels), levels)
    assert task.outputs == outputs
    assert len(task.column_names()) == outputs
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_targets_are_codes_members_and_numbers():
    table = make_table()
    classes = read_task(table, ["stage"]).encode(table)
    assert classes.dtype == np.int64
    np.testing.assert_array_equal(
        classes, np.select([table.stage == "low", table.stage == "mid"], [1, 2])
    )
    members = read_task(table, ["dx", "ill"], "AD").encode(table)
    assert members.dtype == np.float32
    np.testing.assert_array_equal(members, np.stack([table.dx == "AD", table.ill], axis=1))
    numbers = read_task(table, ["age", "score"]).encode(table)
    np.testing.assert_array_equal(numbers, table[["age", "score"]])


def test_targets_do_not_depend_on_the_other_rows():
    """One row has the same code alone; as a number or as its text; kills kinds read per call."""
    table = make_table()
    for labels, positive, types in (
        (["ill"], None, None),
        (["stage"], None, None),
        (["code"], None, {"code": "categorical"}),
        (["age"], None, None),
    ):
        task = read_task(table, labels, positive, types)
        whole = task.encode(table)
        for row in range(5):
            np.testing.assert_array_equal(task.encode(table.iloc[[row]]), whole[[row]])
            np.testing.assert_array_equal(task.encode(table.iloc[[row]].astype(str)), whole[[row]])


def test_missing_and_unknown_labels_are_named_together_or_marked():
    task = read_task(make_table(), ["dx", "cough"], {"dx": "AD", "cough": "yes"})
    rows = {"dx": ["AD", None, "MCI", "CN"], "cough": ["yes", "no", "no", ""]}
    with pytest.raises(TableError) as error:
        task.encode(rows)
    assert str(error.value).splitlines() == [
        "Label 'dx' is none of 'CN', 'AD' in rows 1, 2 (counted from 0). "
        "Correct these cells, or leave the rows out of the table.",
        "Label 'cough' is none of 'no', 'yes' in row 3 (counted from 0). "
        "Correct these cells, or leave the rows out of the table.",
    ]
    marked = task.encode(rows, allow_missing=True)
    np.testing.assert_array_equal(marked, [[1, 1], [np.nan, 0], [np.nan, 0], [0, np.nan]])
    classes = read_task(make_table(), ["stage"])
    assert classes.encode({"stage": ["low", None]}, allow_missing=True).tolist() == [1, -1]
    ages = read_task(make_table(), ["age"])
    with pytest.raises(TableError, match=r"Label 'age' is missing in row 1"):
        ages.encode({"age": [60, None]})
    assert np.isnan(ages.encode({"age": [60, None]}, allow_missing=True)[1, 0])
    with pytest.raises(TableError, match="has texts instead of numbers: 'old'"):
        ages.encode({"age": [60, "old"]}, allow_missing=True)


def test_a_label_may_be_missing_when_the_task_is_read():
    assert read_task({"dx": ["AD", None, "CN"]}, ["dx"], "AD").levels == (("CN", "AD"),)


@pytest.mark.parametrize(
    ("labels", "positive", "words"),
    [
        (
            ["dx"],
            None,
            ["positive level of 'dx'", "positive={'dx': 'AD'} or positive={'dx': 'CN'}"],
        ),
        (["dx"], "MCI", ["'AD', 'CN'; got 'MCI'", "positive={'dx': 'AD'}"]),
        (["dx", "ill"], {"dx": "1"}, ["got '1'"]),
        (["dx"], {"dy": "AD"}, ["positive level of 'dx'", "positive level of 'dy'"]),
        (["stage"], "low", ["'stage'", "Write positive=None"]),
        (["dx", "age"], "AD", ["Several labels must all have two levels", "'age' with numbers"]),
        (["dx", "stage"], "AD", ["'stage' with 'high', 'low', 'mid'"]),
        (["sex", "agee"], None, ["There is no column 'sex'", "Did you mean 'age'"]),
        (["code"], None, ["types={'code': 'numeric'} or types={'code': 'categorical'}"]),
    ],
)
def test_unclear_labels_show_what_to_write(labels, positive, words):
    with pytest.raises(TableError) as error:
        read_task(make_table(), labels, positive)
    for word in words:
        assert word in str(error.value)


def test_all_faults_of_the_labels_come_together():
    table = make_table().assign(empty=np.nan, constant="A", same=3.5)
    with pytest.raises(TableError) as error:
        read_task(table, ["dx", "empty", "constant", "same"])
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert "'empty' has 0 distinct values" in lines[0]
    assert "'constant' has 1 distinct values" in lines[1]
    assert "'same' has 1 distinct values" in lines[2]
    assert "positive={'dx': 'AD'}" in lines[3]


@pytest.mark.parametrize("labels", ["dx", []])
def test_labels_are_a_list(labels):
    with pytest.raises(OptionError, match=r"Write labels=\['dx'\]"):
        read_task(make_table(), labels)


def test_probabilities_are_those_of_scipy():
    logits = np.random.default_rng(0).normal(size=(5, 3))
    tensor = torch.from_numpy(logits)
    classes, numeric = Task("classes", ("a",), (("x", "y", "z"),)), Task("numeric", ("a",), ((),))
    binary = Task("binary", ("a", "b", "c"), (("0", "1"),) * 3)
    np.testing.assert_allclose(classes.probabilities(tensor), softmax(logits, axis=1))
    np.testing.assert_allclose(binary.probabilities(tensor), expit(logits))
    np.testing.assert_array_equal(numeric.probabilities(tensor), logits)


# For each kind of task: labels, positive levels, and whether the audit may be told them.
TASKS = {
    "0 and 1": (["ill"], None),
    "truth values": (["fever"], None),
    "text": (["dx"], "AD"),
    "text, the other way round": (["dx"], "CN"),
    "0 and 1, the other way round": (["ill"], 0),
    "several labels": (["dx", "ill", "cough"], {"dx": "AD", "cough": "yes"}),
    "classes": (["stage"], None),
    "number": (["age"], None),
    "several numbers": (["age", "score"], None),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_audit_reads_the_columns_by_their_names(name):
    """A perfect model is perfect there, and its opposite is not (control)."""
    labels, positive = TASKS[name]
    table = make_table()
    task = read_task(table, labels, positive)
    target = task.encode(table)
    if task.kind == "classes":
        target = np.eye(3)[target]
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 0.01, target.shape)
    perfect = target + noise * target.std(axis=0)
    if task.kind != "numeric":
        perfect = np.clip(perfect, 0.01, 0.99)
        perfect = (
            perfect / perfect.sum(axis=1, keepdims=True) if task.kind == "classes" else perfect
        )
    for outputs, low, high in ((perfect, 0.98, 1.0), (perfect[::-1], -5.0, 0.9)):
        frame = pd.DataFrame(outputs, columns=task.column_names())
        report = dc.audit(
            frame,
            table,
            confounds=["site"],
            labels=labels,
            planted=None,
            probes=False,
            resampling=Resampling(permutations=20, bootstraps=20),
        )
        for performance in report.performance:
            assert low <= performance.honest.plain.value <= high


def test_the_names_are_readable_and_never_misleading():
    """Kills `prob_<label>` for the probability of 0, which an audit reads as that of 1."""
    table = make_table().assign(well=lambda x: 1 - x["ill"])

    def names(labels, positive=None):
        return read_task(table, labels, positive).column_names()

    assert names(["ill"]) == ["prob_ill"]
    assert names(["ill"], 0) == ["prob_0"]
    assert names(["ill", "fever"]) == ["prob_ill", "prob_fever"]
    assert names(["cough", "rash"], "yes") == ["prob_cough_yes", "prob_rash_yes"]
    reversed_names = names(["ill", "well"], {"ill": 0, "well": 0})
    assert reversed_names == ["prob_ill_0", "prob_well_0"]
    outputs = pd.DataFrame(1.0 - table[["ill", "well"]]).set_axis(reversed_names, axis=1)
    with pytest.raises(OptionError, match="It is not clear which class 'prob_ill_0' stands for"):
        dc.audit(outputs, table, confounds=["site"], labels=["ill", "well"])


def test_units_are_those_of_the_training_rows():
    rng = np.random.default_rng(0)
    targets = np.stack(
        [rng.normal(5e6, 3, 200), rng.normal(0, 1e-3, 200), np.full(200, 0.1)], axis=1
    )
    units = Units.fit(targets[:100])
    scaled = units.to_units(targets[:100])
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 0], atol=1e-6)
    assert units.scale[2] == 1
    back = units.from_units(torch.from_numpy(units.to_units(targets)))
    np.testing.assert_allclose((back.numpy() - targets) / units.scale, 0, atol=1e-6)
    assert Units.from_dict(json.loads(json.dumps(units.to_dict()))) == units
