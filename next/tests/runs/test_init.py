"""`propose`: configs that run without an edit, and the method that the association suggests."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.stats.contingency import association as cramers_v

from deconfound.errors import DeconfoundError, OptionError, TableError
from deconfound.runs import Config, fit, predict, propose
from tests.runs.people import FEATURES, make_people

SHORT = ("training.epochs=1", "splits.folds=2")


def write(folder, table, name="people.csv"):
    table.to_csv(folder / name, index=False)
    return folder / name


def propose_people(folder, table, **options):
    given = {"labels": ["dx"], "confounds": ["age", "site"], "id": "id"}
    proposal = propose(write(folder, table), **given | options, out=folder / "config.yaml")
    proposal.save(folder / "config.yaml", force=True)
    return Config.load(folder / "config.yaml"), proposal


def read_association(proposal):
    text = next(note for note in proposal.notes if "association" in note)
    return float(re.search(r"is (0\.\d+)", text)[1])


@pytest.fixture
def people():
    return make_people().drop(columns="mmse")


# A config runs without an edit (acceptance 41).


def test_a_table(tmp_path, people):
    config, proposal = propose_people(tmp_path, people)
    assert config.data.source == str(tmp_path / "people.csv")
    assert config.run.folder == str(tmp_path / "runs" / "config")
    assert 'source: "people.csv"' in proposal.text
    # Equally many people have each level, and the advice names the other one.
    assert "dx = AD, the rarer level. To change this, write positive='CN'." in proposal.notes[0]
    run = fit(config, *SHORT, audit=False)
    assert run.is_finished
    assert sorted(run.predictions["id"]) == sorted(people["id"])


@pytest.mark.parametrize("shapes", [[(9, 9)], [(9, 9), (12, 9)]])
def test_a_folder_of_images_of_equal_and_of_unequal_sizes(tmp_path, monkeypatch, people, shapes):
    """Fault 24: pictures of one size keep it."""
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    people = people[:24].drop(columns=list(FEATURES))
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for row, name in enumerate(people["id"]):
        pixels = random.integers(256, size=shapes[row % 3 % len(shapes)], dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.png")
    table = write(tmp_path, people)
    out = tmp_path / "config.yaml"
    proposal = propose(
        tmp_path / "images", table, labels=["dx"], confounds=["site"], id="id", out=out
    )
    config = Config.load(proposal.save(out))
    assert list(config.data.options) == ([] if len(shapes) == 1 else ["size"])
    assert np.all(np.array(config.data.options.get("size", 9)) == 9)
    assert config.network.name == "convnet"
    assert fit(config, *SHORT, audit=False).is_finished


def test_a_folder_of_scans_in_the_bids_layout(tmp_path, monkeypatch, people):
    nibabel = pytest.importorskip("nibabel")
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    people = people[:12].drop(columns=list(FEATURES)).rename(columns={"id": "participant_id"})
    people["participant_id"] = "sub-" + people["participant_id"]
    study = tmp_path / "study"
    random = np.random.default_rng(0)
    for name in people["participant_id"]:
        (study / name / "anat").mkdir(parents=True)
        volume = nibabel.Nifti1Image(random.random((8, 8, 8), dtype=np.float32), np.eye(4))
        volume.to_filename(study / name / "anat" / f"{name}_T1w.nii.gz")
    people.to_csv(study / "participants.tsv", sep="\t", index=False)
    out = tmp_path / "config.yaml"
    options = {"labels": ["dx"], "confounds": ["site"]}
    config = Config.load(propose(study, **options, out=out).save(out))
    assert (config.data.options, config.data.person) == ({}, "participant_id")
    run = fit(config, *SHORT, audit=False)
    assert run.is_finished
    # The folder is its own table for new rows as well.
    assert len(predict(run, study)) == 12


def test_an_array_with_a_site_left_out(tmp_path, people):
    np.save(tmp_path / "x.npy", people[list(FEATURES)].to_numpy())
    table = write(tmp_path, people.drop(columns=list(FEATURES)))
    options = {"labels": ["dx"], "confounds": ["site"], "leave_out": "site"}
    proposal = propose(tmp_path / "x.npy", table, **options, out=tmp_path / "config.yaml")
    config = Config.load(proposal.save(tmp_path / "config.yaml"))
    assert (config.splits.kind, config.splits.column) == ("leave-one-out", "site")
    assert config.design.unseen == "mean"
    run = fit(config, "training.epochs=1", audit=False)
    assert run.folds == ("A", "B")


# The method follows the association.


@pytest.mark.parametrize(
    ("agreement", "method", "balance"), [(0.6, "pmdn", None), (0.9, "none", "overlap")]
)
def test_the_association_is_that_of_cramer(tmp_path, agreement, method, balance):
    """Kills R² in place of its root: .9 of the rows agree, so V is .8 and R² is .64."""
    people = make_people(600, agreement).drop(columns="mmse")
    config, proposal = propose_people(tmp_path, people, confounds=["site"])
    assert (config.method.name, config.training.balance) == (method, balance)
    assert read_association(proposal) == pytest.approx(
        cramers_v(pd.crosstab(people["dx"], people["site"])), abs=0.015
    )


def test_association_by_chance_is_none(tmp_path):
    """Kills R² without adjustment: 30 sites of 4 people explain a quarter of any label."""
    people = make_people(120, 0.5).drop(columns="mmse")
    people["site"] = np.random.default_rng(1).permutation(np.arange(120) % 30)
    options = {"confounds": ["site"], "types": {"site": "categorical"}}
    config, proposal = propose_people(tmp_path, people, **options)
    assert config.method.name == "pmdn"
    assert read_association(proposal) < 0.25
    assert cramers_v(pd.crosstab(people["dx"], people["site"])) > 0.35


def test_a_numeric_label_gets_entropy_weights(tmp_path):
    people = make_people(600).drop(columns="dx")
    people["mmse"] = people["age"] + np.random.default_rng(0).normal(size=600)
    config, _ = propose_people(tmp_path, people, labels=["mmse"], confounds=["age"])
    assert (config.method.name, config.training.balance) == ("none", "entropy")
    # The control: weights cannot separate what is equal.
    people["mmse"] = people["site"].map({"A": 1.5, "B": 2.5})
    with pytest.raises(OptionError, match="follows from"):
        propose_people(tmp_path, people, labels=["mmse"], confounds=["site"])


# What a table needs, with a note on each.


def test_codes_ids_copies_and_the_positive_level(tmp_path, people):
    people["site"] = np.random.default_rng(0).integers(1, 5, len(people))
    people["name"] = [f"Smith {row}" for row in range(len(people))]
    people["diagnosis"] = people["dx"].map({"CN": "healthy", "AD": "ill"})
    config, proposal = propose_people(tmp_path, people[people.index != 0])
    assert config.data.types == {"site": "categorical"}
    assert set(config.data.features) == {"-name", "-diagnosis"}
    assert config.data.positive == {"dx": "CN"}
    notes = "\n".join(proposal.notes)
    for words in ("'site' has a few whole numbers", "'diagnosis', 'name'", "dx = CN, the rarer"):
        assert words in notes
    assert fit(config, *SHORT, audit=False).is_finished


@pytest.mark.parametrize(
    ("changes", "unseen"),
    [({}, "error"), ({"age": np.nan}, "mean"), ({"site": "a rare site"}, "mean")],
)
def test_unseen_is_mean_where_a_fold_needs_it(tmp_path, people, changes, unseen):
    for name, value in changes.items():
        people.loc[3, name] = value
    config, proposal = propose_people(tmp_path, people)
    assert config.design.unseen == unseen
    assert any("design.unseen is mean" in note for note in proposal.notes) == bool(changes)
    assert fit(config, "training.epochs=1", audit=False).is_finished


def test_levels_that_yaml_would_change_stay_text(tmp_path, people):
    people["dx"] = people["dx"].map({"CN": "no", "AD": "007"})
    people = people.rename(columns={"dx": "true", "site": "a: b #c"})
    config, _ = propose_people(tmp_path, people, labels=["true"], confounds=["a: b #c"])
    assert config.data.labels == ("true",)
    assert config.data.positive == {"true": "007"}
    assert config.design.confounds == ("a: b #c",)


# Faults come together, and files that others wrote stay (fault 19).


def test_a_name_that_two_columns_have_is_named(tmp_path, people):
    """Leaving such a column out of the features is no remedy."""
    path = write(tmp_path, people)
    header, rest = path.read_text().split("\n", 1)
    path.write_text(f"{header},volume\n" + rest.replace("\n", ",1\n"))
    options = {"labels": ["dx"], "confounds": ["site"], "out": tmp_path / "config.yaml"}
    with pytest.raises(DeconfoundError, match="2 columns 'volume'"):
        propose(path, id="id", **options)


def test_absent_columns_are_named_together(tmp_path, people):
    with pytest.raises(TableError) as error:
        propose(write(tmp_path, people), labels=["dxx"], confounds=["sitee"])
    assert "'dxx'" in str(error.value)
    assert "'sitee'" in str(error.value)
    with pytest.raises(OptionError, match=r"labels must name.*\n.*confounds must name"):
        propose(tmp_path / "people.csv", labels=[], confounds=[])


def test_only_a_config_is_replaced_and_only_with_force(tmp_path, people):
    _, proposal = propose_people(tmp_path, people)
    (tmp_path / "notes.yaml").write_text("shopping: [milk]\n")
    cases = {"config.yaml": "exists", "people.csv": "must end with", "none/a.yaml": "no folder"}
    for name, words in cases.items():
        with pytest.raises(OptionError, match=words):
            proposal.save(tmp_path / name)
    with pytest.raises(OptionError, match="is no config"):
        proposal.save(tmp_path / "notes.yaml", force=True)
    write(tmp_path, people, "table.yaml")
    with pytest.raises(OptionError, match="is no config"):
        proposal.save(tmp_path / "table.yaml", force=True)
    proposal.save(tmp_path / "config.yaml", force=True)
    assert (tmp_path / "notes.yaml").read_text() == "shopping: [milk]\n"
