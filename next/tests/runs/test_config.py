"""Configs: read from YAML and mappings, changed, and refused with all faults at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deconfound.design import Interaction, Spline
from deconfound.errors import OptionError
from deconfound.runs import Config, prepare
from deconfound.training import Recipe, Schedule
from tests.runs.cohort import make_cohort, make_config

LEAST: dict[str, Any] = {
    "data": {"source": "people.csv", "labels": ["dx"]},
    "design": {"confounds": ["age"]},
}


def load(*overrides: str, **sections: Any) -> Config:
    return Config.load(LEAST | sections, *overrides)


def message(*overrides: str, **sections: Any) -> str:
    with pytest.raises(OptionError) as caught:
        load(*overrides, **sections)
    return str(caught.value)


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_training():
    recipe = load().recipe()
    assert recipe.schedule == Schedule()
    assert recipe == Recipe(("age",))
    assert load().network_name("image") == "convnet"
    assert load("network=mlp").network_name("image") == "mlp"


def test_yaml_reads_what_people_write(tmp_path):
    text = """
data: {source: people.csv, table: more/people.tsv, labels: dx, positive: no, controls: dx=yes}
design:
  confounds: [age, {spline: [bmi, 3]}, {interaction: [age, sex]}]
training: {lr: 1e-3, weight_decay: 0}
method: mdn
launcher:
network:
  # name: convnet
splits:
"""
    config = Config.load(write(tmp_path, text), "data.types.site=categorical")
    assert config.data.positive == "no"
    assert config.data.controls == {"dx": "yes"}
    assert config.data.types == {"site": "categorical"}
    assert (config.training.lr, config.training.weight_decay) == (0.001, 0)
    assert (config.method.name, config.launcher) == ("mdn", None)
    assert (config.network, config.splits) == (load().network, load().splits)
    expected = ["age", Spline("bmi", 3), Interaction("age", "sex")]
    assert list(config.recipe().confounds) == expected


def test_paths_are_relative_to_the_file_and_those_of_overrides_to_the_current_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = write(tmp_path, "{data: {source: a.csv, labels: dx}, design: {confounds: age}}")
    config = Config.load(path, "data.table=b.csv")
    assert config.data.source == str(tmp_path / "a.csv")
    assert config.data.table == str(tmp_path / "here" / "b.csv")
    assert config.run.folder == str(tmp_path / "runs" / "study")


def test_five_faults_of_all_kinds_are_told_at_once(tmp_path):
    """Keys, values, columns, methods and options of networks, before anything is trained."""
    config = make_config(tmp_path)
    with pytest.raises(OptionError) as caught:
        Config.load(
            config,
            "training.epoch=5",
            "training.lr=fast",
            "design.confounds=[aeg, site]",
            "method=pmnd",
            "network.options.hiden=[8]",
        )
    text = str(caught.value)
    assert "no key 'training.epoch'. Did you mean 'training.epochs'?" in text
    assert "training.lr must be a number; got 'fast'" in text
    assert "design.confounds: there is no column 'aeg'. Did you mean 'age'?" in text
    assert "'pmnd' is unknown. Did you mean 'pmdn'?" in text
    assert "hiden= is no option of mlp. Did you mean 'hidden'?" in text
    assert not (tmp_path / "run").exists()


def test_columns_and_names_are_checked_together_where_all_keys_are_right(tmp_path):
    config = make_config(tmp_path, data={"person": "subject"}, training={"augment": {"flop": True}})
    with pytest.raises(OptionError, match=r"data\.person: there is no column 'subject'") as caught:
        prepare(Config.load(config, "method=pmdn", "method.options.memry=3"))
    assert "pmdn has no option 'memry'. Did you mean 'memory'?" in str(caught.value)
    assert "training.augment: no option 'flop'. Did you mean 'flip'?" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.options={sise: 3}", r"data\.options: no option 'sise'\. Did you mean 'size'"),
        ("training.augment={shift: -1}", r"training\.augment: shift must be a whole number"),
        ("design.stratum=age", r"design\.stratum: 'age' is no confound with levels.*'site'"),
        ("data.labels=f1", r"Write data\.positive: null\."),
    ],
)
def test_values_that_the_table_shows_to_be_wrong_are_told_before_any_training(
    tmp_path, override, expected
):
    with pytest.raises(OptionError, match=expected):
        prepare(Config.load(make_config(tmp_path), override))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("epochs=3", "Did you mean 'training.epochs'?"),
        ("training.epochs=0", "training.epochs must be 1 or more; got 0."),
        ("training.epochs=2.5", "training.epochs must be a whole number; got 2.5."),
        ("training.loss=focl", "Did you mean 'focal'?"),
        ("splits.kind=kfold", "Did you mean 'k-fold'?"),
        ("splits.validation=1", "splits.validation must be below 1; got 1."),
        ("data.types.site=categorial", "Did you mean 'categorical'?"),
        ("design.confounds=[{splin: age}]", "design.confounds: a term must be a column"),
        ("design.keep=[{spline: [age, 1]}]", "design.keep: df of Spline must be a whole number"),
        ("design.keep=[{spline: 3}]", "design.keep: a term must be a column"),
        ("trainig={epochs: 3}", "There is no key 'trainig'. Did you mean 'training'?"),
        ("method.lr=3", "There is no key 'method.lr'. Did you mean 'training.lr'?"),
        ("method.xyz=3", "There is no key 'method.xyz'. There are name, at, options."),
        ("data.controls=CN", "data.controls: must be column=level"),
        ("data.labels=[]", "data.labels must be given; got nothing."),
        ("launcher={devises: 2}", "Did you mean 'devices'?"),
        ("training.lr", "A change must be key=value"),
        ("training.lr=[", "The value of training.lr is no YAML"),
        ("training=3", "training must be a section with keys; got 3."),
        ("compare.variants={a: {training.epoch: 3}}", "compare.variants.a: There is no key"),
    ],
)
def test_a_fault_says_what_was_given_and_what_to_write(override, expected):
    assert expected in message(override)


def test_an_empty_section_changes_to_its_defaults():
    config = load("method=mdn", "network=mlp", "training.epochs=3")
    other = config.change({"method": None, "network": None, "training": None})
    assert other == load(f"run.folder={config.run.folder}")


def test_required_keys_are_named_together():
    text = message(data={}, design={})
    for key in ("data.source", "data.labels", "design.confounds"):
        assert f"{key} must be given; got nothing." in text


def test_a_new_name_starts_without_the_options_of_the_old_one():
    config = load("method=mdn", "method.options.gram=batch", "method.at=out")
    assert config.method.options == {"gram": "batch"}
    assert config.change({"training.epochs": 2}).method == config.method
    assert config.change({"method": "none"}).method.options == {}
    assert config.change({"method": {"options": {"memory": 9}, "name": "pmdn"}}).method.options == {
        "memory": 9
    }
    assert config.change({"method": "mdn"}).method == config.method
    with pytest.raises(OptionError, match=r"no key 'training\.epoch'"):
        config.change({"training.epoch": 2})


def test_a_fingerprint_covers_what_decides_the_numbers():
    config = load()
    for same in ("run.folder=elsewhere", "data.source=moved.csv", "compare.seeds=[1]"):
        assert load(same).fingerprint() == config.fingerprint()
    for other in ("training.lr=0.01", "run.seed=1", "design.keep=sex", "data.types.age=numeric"):
        assert load(other).fingerprint() != config.fingerprint()


def test_a_config_survives_plain_data():
    config = load("design.confounds=[{spline: age}]", "data.controls=dx=CN", "method.at=out")
    assert Config.load(config.to_dict()) == config
    assert Config.load(config, "training.epochs=2").training.epochs == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: {source: a}\ndata: {source: b}", "'data' twice"),
        ("data: [", "is no YAML"),
        ("- data", "must hold sections"),
        ("data: !!python/object/apply:os.system [ls]", "is no YAML"),
        ("data: &x [*x]", "cannot be used"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, expected):
    with pytest.raises(OptionError, match=expected):
        Config.load(write(tmp_path, text))
    with pytest.raises(OptionError, match="cannot be read"):
        Config.load(tmp_path / "absent.yaml")


def test_a_few_aliases_are_values_and_many_are_refused(tmp_path):
    """302 bytes of aliases kept release 0.2 busy for minutes."""
    few = "{data: {source: a.csv, labels: &x [dx]}, design: {confounds: [age], keep: *x}}"
    assert Config.load(write(tmp_path, few)).design.keep == ("dx",)
    lines = ["a: &a [x, x]"]
    for last, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]")
    with pytest.raises(OptionError, match="more than 10 aliases"):
        Config.load(write(tmp_path, "\n".join(lines)))


def test_samples_in_python_need_no_source():
    from deconfound.data import open_samples

    samples = open_samples(make_cohort(), id="pid", roles=["dx", "age", "site"])
    config = {"data": {"labels": "dx"}, "design": {"confounds": ["age"]}}
    assert Config.load(config, data=samples).data.source is None
    with pytest.raises(OptionError, match=r"data\.source must be given"):
        Config.load(config)
