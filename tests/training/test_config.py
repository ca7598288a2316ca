"""A config is read as a whole: every fault at once, each with the nearest valid name."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.design import Interaction, Polynomial, Spline
from deconfound.design.terms import Linear
from deconfound.errors import OptionError, TableError
from deconfound.training.config import sections
from deconfound.training.config_file import read_config
from deconfound.training.jobs import open_runs
from deconfound.training.problem import open_problem
from deconfound.training.template import reference
from deconfound.training.terms import read_terms
from deconfound.training.w_scores import controls_at
from tests.training import tiny

YAML = """
data: {source: table.csv, label: dx}
design: {confounds: [age, site]}
method: mdn
"""


@pytest.fixture
def file(tmp_path):
    tiny.write(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    return path


def test_a_config_is_read_with_its_defaults_and_paths_beside_the_file(file):
    config = read_config(file)
    assert config.method.name == "mdn"
    assert config.data.source == str(file.parent / "table.csv")
    assert config.training.lr == 1e-3
    assert read_config(config.to_dict()) == config == read_config(config)


def test_overrides_are_yaml_and_reach_into_sections(file):
    config = read_config(
        file, ["training.lr=1e-2", "splits.folds=3", "method.options.pmdn.layer_norm=true", "compare.seeds=[0,1]"]
    )
    assert (config.training.lr, config.splits.folds, config.compare.seeds) == (0.01, 3, (0, 1))
    assert config.method.name == "mdn"
    assert config.method.options == {"pmdn": {"layer_norm": True}}


def test_all_faults_come_at_once_with_the_nearest_name(file):
    wrong = ["metod=mdn", "training.lrr=1", "training.batch_size=big", "training.loss=focl", "splits.validation=2",
             "design.confounds=[aeg, site]", "network.name=mpl", "method.options.mdn.momentun=0.5"]  # fmt: skip
    with pytest.raises(OptionError) as caught:
        read_config(file, wrong)
    text = str(caught.value)
    assert "has 8 faults" in text
    for said in (
        "the config must hold known keys; got 'metod'. Did you mean 'method'?",
        "training must hold known keys; got 'lrr'. Did you mean 'lr'?",
        "training.batch_size must be a whole number; got 'big'.",
        "got 'focl'. Did you mean 'focal'?",
        "design.confounds must be columns of the table; got 'aeg', which it lacks. Did you mean 'age'?",
        "got 'mpl'. Did you mean 'mlp'?",
        "got 'momentun'. Did you mean 'momentum'?",
        "splits.validation must be at most 0.5; got 2",
    ):
        assert said in text


def test_a_key_in_the_wrong_section_is_pointed_home(file):
    with pytest.raises(OptionError, match=re.escape("got 'epochs'. Did you mean 'training.epochs'?")):
        read_config(file, ["epochs=3"])


def test_what_must_be_given_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("network: mlp\n")
    with pytest.raises(OptionError) as caught:
        read_config(path)
    for key in ("data.source", "data.label", "design.confounds"):
        assert f"{key} must be given; got nothing." in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [("data: [", "must be YAML"), ("- 1", "must hold sections"), (None, "Make one with `deconfound init`")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match=re.escape(said)):
        read_config(path)


def test_terms_are_read_as_the_library_writes_them():
    terms, faults = read_terms(
        ["age", "spline(age, 3)", "poly(age)", "age:sex", {"age": "spline"}, {"age": {"poly": 3}}, {"a": 1, "b": 2}],
        "x",
    )
    expected = [Linear("age"), Spline("age", 3), Polynomial("age"), Interaction("age", "sex"), Spline("age"),
                Polynomial("age", 3)]  # fmt: skip
    assert terms == expected
    assert [read_terms([str(term)], "")[0] for term in expected] == [[term] for term in expected]
    assert len(faults) == 1
    assert "must hold columns or terms such as age, spline(age, 4)" in faults[0]


def test_every_key_of_a_section_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "run.md").read_text()
    assert reference() in page
    for name, kind in sections().items():
        for key, field in kind.model_fields.items():
            assert field.description, (name, key)


def test_absent_columns_of_every_role_are_told_together(tmp_path):
    path = tiny.write(tmp_path)
    config = tiny.config(
        path,
        tmp_path / "run",
        data={"label": "dxx", "person": "persn", "controls": {"dx": "healthy"}},
        splits={"kind": "leave-one-out", "column": "sit"},
    )
    with pytest.raises(OptionError) as caught:
        open_problem(config)
    levels = "data.controls must name a level of 'dx'; got 'healthy'. It has: asd, control."
    for said in ("'dx'?", "'person'?", "'site'?", levels):
        assert said in str(caught.value)


def test_a_level_without_training_rows_is_found_before_training(tmp_path):
    frame = tiny.cohort()
    frame.loc[0, "site"] = "D"
    config = tiny.config(tiny.write(tmp_path, frame), tmp_path / "run")
    with pytest.raises(OptionError, match=r"(?s)fold \d: .*site"):
        open_problem(config)
    assert not (tmp_path / "run").exists()


def test_a_batch_that_a_method_cannot_use_is_refused(tmp_path):
    config = tiny.config(tiny.write(tmp_path), tmp_path, method={"name": "batchnorm"}, training={"batch_size": 1})
    with pytest.raises(OptionError, match=r"training\.batch_size must be at least 2 for method 'batchnorm'; got 1"):
        open_problem(config)


def test_empty_features_are_told_or_filled(tmp_path):
    frame = tiny.cohort()
    frame.loc[3, "f2"] = None
    path = tiny.write(tmp_path, frame)
    with pytest.raises(OptionError, match=r"got an empty value in row 3, in 1 column: f2"):
        open_problem(tiny.config(path, tmp_path / "run"))
    assert open_problem(tiny.config(path, tmp_path / "run", data={"missing_features": "mean"}))


def test_controls_are_found_by_their_code_also_where_an_empty_cell_made_floats_of_it(tmp_path):
    frame = tiny.cohort(60)
    frame["dx"] = (frame["dx"] == "asd").astype(float)
    frame.loc[3, "dx"] = None
    path = tiny.write(tmp_path, frame)
    problem = open_problem(tiny.config(path, tmp_path / "run", data={"controls": {"dx": 0}}))
    assert controls_at(problem, np.arange(60)).tolist() == (frame["dx"] == 0).tolist()
    with pytest.raises(OptionError, match=r"must name a level of 'dx'; got 2\. It has: 0, 1"):
        open_problem(tiny.config(path, tmp_path / "run", data={"controls": {"dx": 2}}))


def test_a_method_that_refuses_new_sites_is_told_before_a_site_is_left_out(tmp_path):
    config = tiny.config(
        tiny.write(tmp_path),
        tmp_path / "run",
        method={"name": "combat"},
        splits={"kind": "leave-one-out", "column": "site"},
    )
    with pytest.raises(OptionError, match="must be one that takes a new site where 'site' is left out; got 'combat'"):
        open_problem(config)
    open_problem(config.updated(splits={"column": "sex"}))


@pytest.mark.parametrize("name", ["combat", "group-dro"])
@pytest.mark.parametrize(
    ("confounds", "site", "said"),
    [
        (
            ["age", "sex", "hospital"],
            None,
            "none, and no confound is called site, .*. Set design.site to one of: sex, h",
        ),
        (
            ["age", "ward", "sex"],
            "ward",
            r"'ward', which holds amounts. If .*, set data.types: \{ward: categorical\}. Set",
        ),
        (["age", "age:hospital"], "hospital", "'hospital', which is no confound by itself. Add a confound with levels"),
    ],
)
def test_a_method_that_needs_a_site_is_told_which_option_names_it_before_training(
    tmp_path, name, confounds, site, said
):
    frame = tiny.cohort(60).rename(columns={"site": "hospital"}).assign(ward=np.arange(60) % 7)
    given = tiny.settings(
        tiny.write(tmp_path, frame),
        tmp_path / "run",
        design={"confounds": confounds, "site": site},
        method={"name": name},
    )
    words = f"design.site must name a confound with levels for method '{name}'; got {said}"
    for start in (dc.fit, dc.compare):
        with pytest.raises(OptionError, match=words):
            start({**given, "compare": {"methods": ["none", name]}})
    assert not list((tmp_path / "run").rglob("fold-*"))
    assert open_problem(read_config(given).updated(design={"confounds": ("age", "hospital"), "site": "hospital"}))


def test_a_site_that_is_left_out_may_be_unseen(tmp_path):
    path = tiny.write(tmp_path)
    problem = open_problem(tiny.config(path, tmp_path / "run", splits={"kind": "leave-one-out", "column": "site"}))
    assert problem.config.design.unseen == "mean"
    assert [fold.name for fold in problem.folds] == ["A", "B", "C"]
    assert open_problem(tiny.config(path, tmp_path / "run")).config.design.unseen == "error"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": {"at": ["fc9", "out"]}}, "method.at: at must match modules of the network; got 'fc9'. Nearest: fc"),
        (
            {"network": {"features": "relu9"}},
            "network.features must be a module of the network; got 'relu9'. Did you m",
        ),
        ({"network": {"name": "resnet3d", "options": {}}}, "'resnet3d' must have images of shape (channels, e, e, e)"),
        (
            {"network": {"name": "tests.training.test_config:unused"}, "method": {"at": ["spare"]}},
            "method.at: module 'spare' must be called by the network's forward; got no call of Linear",
        ),
    ],
)
def test_modules_that_the_network_lacks_are_told_once_before_training(tmp_path, wrong, said):
    wrong.setdefault("network", {}).setdefault("options", {})
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        open_runs([tiny.config(tiny.write(tmp_path), tmp_path / "run", **wrong)])
    assert str(caught.value).count("got ") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "method.options.pmdn.step=7",
            "method 'pmdn': step must be None, 'average' or a number in (0, 1]; got 7",
        ),
        (
            "method.options.pmdn.layer_norm=perhaps",
            "option 'layer_norm' of method 'pmdn' must be true or false; got 'pe",
        ),
        (
            "network.options.hidden=[-1]",
            "network.options must build a 'mlp'; got {'hidden': [-1]}, and Trying to create",
        ),
        ("network.options.hidden=abc", "network.options must build a 'mlp'; got {'hidden': 'abc'}"),
        ("training.lr=.inf", "training.lr must be a number; got inf"),
        ("data.label=[]", "data.label must name at least one column; got none"),
        ("data.label=[dx, dx]", "data.label must name each column once; got 'dx' twice"),
        ("training.devices=0", "training.devices must be at least 1, or -1 for all; got 0"),
        ("training.loggers=[paper]", "training.loggers must be 'tensorboard' or 'mlflow'; got 'paper'"),
        ("compare.bootstraps=39", "compare.bootstraps must be at least 40; got 39"),
        ("compare.permutations=18", "compare.permutations must be at least 19; got 18"),
        ("run.seed=-1", "run.seed must be at least 0; got -1"),
        ("compare.seeds=[0, -2]", "compare.seeds must be at least 0; got -2"),
        ("method.options.pmdn.settle=true", "option 'settle' of method 'pmdn' is called 'refit' since 0.2"),
        ("data.features=[]", "data.features must name at least one column; got none"),
        (
            "splits={kind: leave-one-out, column: dx}",
            "fold asd: the training rows must hold two levels of 'dx' or more; got 'control'",
        ),
        (
            "data.label=person",
            "fold 0: the training rows must hold every level of 'person' that the validation rows hold",
        ),
        ("training.devices=100000", "for each is a process; got 100000"),
    ],
)
def test_values_that_no_fold_could_use_are_told_once_before_training(file, override, said):
    with pytest.raises((OptionError, TableError), match=re.escape(said)):
        open_runs(
            [read_config(file, ["method=pmdn", "training.accelerator=cpu", f"run.folder={file.parent}/run", override])]
        )
    assert not (file.parent / "run").exists()


def test_a_config_that_is_no_text_is_told(tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="must be a text in UTF-8"):
        read_config(tmp_path / "config.yaml")


def unused(outputs, shape):
    """A network with a module that its forward does not call."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = torch.nn.Linear(shape[0], outputs), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    return Net()
