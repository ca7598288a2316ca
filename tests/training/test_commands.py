"""The commands as a user gives them."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

import deconfound.cli as cli
from deconfound.errors import DeconfoundError
from deconfound.training.config_file import read_config
from deconfound.training.problem import open_problem
from tests.training import tiny

ASK = CliRunner()


def ask(*words):
    """The output of a command that ends well; an error of the library is raised as it is."""
    done = ASK.invoke(cli.app, list(map(str, words)), catch_exceptions=True)
    if isinstance(done.exception, DeconfoundError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return re.sub(r"\s+", " ", done.output)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


SHORT = (
    "training.epochs=3",
    "training.batch_size=16",
    "splits.folds=2",
    "network.options.hidden=[8]",
    "training.accelerator=cpu",
)


def test_from_a_table_to_predictions(here):
    tiny.write(here)
    said = ask("init", "table.csv", "--label", "dx", "--confounds", "age,sex,site", "--id", "id")
    assert "72 rows, samples of shape (6,)" in said
    assert "dx: control 36, asd 36; a high score means asd" in said
    assert "the confounds explain" in said
    assert "wrote config.yaml; next: deconfound fit config.yaml" in said
    config = yaml.safe_load((here / "config.yaml").read_text())
    assert config["design"]["confounds"] == ["age", "sex", "site"]
    assert config["splits"]["stratify"] == ["dx", "site"]

    said = ask("fit", "config.yaml", *SHORT)
    assert "pmdn · 2 folds" in said
    assert "fold 0, seed 0: the best of 3 epochs" in said
    assert "fold 0: fold 0" not in said
    assert "wrote runs/run/results.json, runs/run/audit.html" in said
    assert "What is left" in said
    assert (here / "runs/run/audit.html").exists()
    assert "2 of 2 folds are finished" in ask("fit", "config.yaml", *SHORT, "--no-audit")

    said = ask("audit", "runs/run", "--permutations", "39", "--bootstraps", "40", "--out", "again")
    assert "What is left" in said
    assert (here / "again" / "audit.html").exists()
    with pytest.raises(DeconfoundError, match="--confounds must be left out with the folder of a run; got 'age'"):
        ask("audit", "runs/run", "--confounds", "age")

    said = ask("predict", "runs/run", "table.csv", "--out", "answers.csv")
    assert "72 of 72 rows carry ids, or are of people, that the run has seen" in said
    assert len((here / "answers.csv").read_text().split()) == 73


def test_compare_writes_one_report(here):
    tiny.write(here, tiny.cohort(100))
    ask("init", "table.csv", "--label", "dx", "--confounds", "age,site", "--id", "id")
    said = ask(
        "compare", "config.yaml", *SHORT, "run.folder=runs/all", "compare.permutations=39", "compare.bootstraps=40",
        "--methods", "none,input-residualize",
    )  # fmt: skip
    assert "differences to none" in said
    assert "reaches AUC" in said
    assert "wrote runs/all/results.json, runs/all/report.html" in said
    assert [line["name"] for line in json.loads((here / "runs/all/results.json").read_text())["lines"]] == [
        "none",
        "input-residualize",
    ]
    assert "What each method costs" in (here / "runs/all/report.html").read_text()


def test_a_method_that_fails_is_reported_after_the_others_are_compared(here):
    tiny.write(here, tiny.cohort(100))
    ask("init", "table.csv", "--label", "dx", "--confounds", "age,site", "--id", "id")
    words = (
        "compare",
        "config.yaml",
        *SHORT,
        "compare.permutations=39",
        "compare.bootstraps=40",
        "method.options={combat: {nested: [age]}}",
        "--methods",
        "none,combat",
    )
    with pytest.raises(DeconfoundError, match=r"got 2 that failed, first combat-seed-0 fold 0: nested must name"):
        ask(*words)
    assert [line["name"] for line in json.loads((here / "runs/run/results.json").read_text())["lines"]] == ["none"]


def test_init_refuses_an_infinite_feature_as_a_run_does(here):
    frame = tiny.cohort()
    frame.loc[7, "f1"] = float("inf")
    tiny.write(here, frame)
    with pytest.raises(DeconfoundError, match=r"got infinite values in row 7, in 1 column: f1 \(1\)"):
        ask("init", "table.csv", "--label", "dx", "--confounds", "age,sex,site", "--id", "id")


def test_init_notices_what_matters(here):
    frame = tiny.cohort(60, scans=2).rename(columns={"person": "subject"})
    frame["education"] = 12.0
    frame.loc[[1, 2, 3], "education"] = [9.0, 16.0, float("nan")]
    frame.loc[0, "f4"] = None
    frame["f5"] = 1.0
    frame["twin"] = frame["age"] * 2 + 1
    frame.loc[frame.index[:3], "site"] = "tiny"
    frame.loc[5, "dx"] = None
    frame.loc[[7, 8], "site"] = "NA"
    tiny.write(here, frame)
    said = ask("init", "table.csv", "--label", "dx", "--confounds", "age,twin,site,education")
    for text in (
        "dx is missing in 1 row: left out",
        "subject names 30 people, 30 of them in several rows: each stays in one fold",
        "education is missing in 1 row: the mean of the training rows is used",
        "1 feature does not vary: f5",
        "1 feature has empty cells (1): the mean of the training rows is used",
        "age and twin overlap: R² 1.00",
        "the confounds alone reach an AUC of 0.5",
        "site has the level 'NA' (2 rows): if it means that nothing is known, empty these cells",
        "site has levels with few rows: NA (2), tiny (3). A fold may train without them, so design.unseen: mean is set",
    ):
        assert text in said, text
    config = yaml.safe_load((here / "config.yaml").read_text())
    assert config["data"]["person"] == "subject"
    assert (config["design"]["missing"], config["data"]["missing_features"]) == ("mean", "mean")
    assert config["design"]["unseen"] == "mean"
    assert "subject" not in (config["data"].get("features") or [])


def test_init_tells_what_real_tables_hide(here):
    frame = tiny.cohort(60, scans=2).rename(columns={"person": "Proband"})
    frame["Proband"] = [f"P{number // 2:03d}" for number in range(len(frame))]
    frame["dx"] = [str(level).upper() if row % 7 == 0 else level for row, level in enumerate(frame["dx"])]
    frame["scan date"] = [f"2020-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(len(frame))]
    frame["site"] = 1 + frame.index % 25
    frame["ward"] = 1 + frame.index % 4
    frame["weight"] = [f"{50 + row / 2} kg" for row in range(len(frame))]
    frame["height"] = [f"1,{600 + row} mm" for row in range(len(frame))]
    frame["field"] = ["1.5T", "3T"] * 30
    tiny.write(here, frame)
    said = ask("init", "table.csv", "--label", "dx", "--confounds", "age,site,ward,scan date,weight,field")
    for text in (
        "dx has levels that differ in capitals or spaces alone, and count as different",
        "scan date holds dates as text, and each is a level of its own",
        "weight holds numbers with other text, such as '50.0 kg', and each of its 60 values is a level of its own: "
        "write plain numbers, or data.types: {weight: categorical} if they are names",
        "height is text with 60 different cells and is no feature; a category has at most 20. Its cells are numbers "
        "with other text, such as '1,600 mm': write plain numbers to use them",
        "Proband has 30 of its 30 values in several rows: if it names people, give --person 'Proband'",
        "site holds whole numbers and is called like a site: data.types reads them as names, not as amounts",
        "site has levels with few rows: 1 (3), 10 (3)",
        "ward holds 4 distinct whole numbers and is read as an amount.",
        "write data.types: {ward: categorical}; if not, {ward: numeric} silences this",
    ):
        assert " ".join(text.split()) in " ".join(said.split()), text
    assert " ".join(said.split()).count("numbers with other text") == 2
    assert yaml.safe_load((here / "config.yaml").read_text())["data"]["types"] == {"site": "categorical"}
    asked = ask("init", "table.csv", "--label", "dx", "--confounds", "age", "--person", "Proband", "--force")
    assert "if it names people" not in asked


@pytest.mark.parametrize(
    ("label", "task"), [("amount", "regression"), ("stage", "multiclass"), ("dx,sex", "multilabel")]
)
def test_init_writes_a_config_that_can_be_read_for_every_task(here, label, task):
    frame = tiny.cohort(60)
    frame["amount"], frame["stage"] = frame["f0"] * 2.5, [f"s{k % 3}" for k in range(60)]
    tiny.write(here, frame)
    ask("init", "table.csv", "--label", label, "--confounds", "spline(age, 3),site")
    assert f"# task: {task}" in (here / "config.yaml").read_text()
    assert open_problem(read_config("config.yaml")).task.kind == task


def test_init_takes_names_with_commas_in_double_quotes(here):
    tiny.write(here, tiny.cohort().rename(columns={"site": "clinic, ward"}))
    ask("init", "table.csv", "--label", "dx", "--confounds", 'spline(age, 3),"clinic, ward",sex', "--id", "id")
    assert yaml.safe_load((here / "config.yaml").read_text())["design"]["confounds"] == [
        "spline(age, 3)",
        "clinic, ward",
        "sex",
    ]


def test_init_refuses_absent_columns_and_files_that_are_there(here):
    tiny.write(here)
    with pytest.raises(DeconfoundError) as caught:
        ask("init", "table.csv", "--label", "dxx", "--confounds", "agee,sex")
    assert "--label must be columns of the table; got 'dxx', which it lacks. Did you mean 'dx'?" in str(caught.value)
    assert "Did you mean 'age'?" in str(caught.value)
    with pytest.raises(DeconfoundError, match="--id must be columns of the table; got 'scan'"):
        ask("init", "table.csv", "--label", "dx", "--confounds", "age", "--id", "scan")
    with pytest.raises(DeconfoundError, match="--label must name each column once; got 'dx' twice"):
        ask("init", "table.csv", "--label", "dx,dx", "--confounds", "age")
    (here / "config.yaml").write_text("mine")
    with pytest.raises(DeconfoundError, match="Add --force to overwrite it"):
        ask("init", "table.csv", "--label", "dx", "--confounds", "age")
    assert (here / "config.yaml").read_text() == "mine"


def test_init_refuses_confounds_that_no_run_could_use(here):
    frame = tiny.cohort(60)
    frame["age"] = frame["age"].astype(object)
    frame.loc[7, "age"] = "seventy"
    frame["empty"] = None
    tiny.write(here, frame)
    for confounds, text in (
        ("age", "column 'age' must be numbers throughout, or names; got 'seventy' in row 7 among numbers."),
        ("sex,dx", "a column must be a label or a confound; got 'dx' as both."),
        (",", "--confounds must name at least one column; got none."),
        ("empty", "column 'empty' must hold at least one value; got 60 empty cells."),
    ):
        with pytest.raises(DeconfoundError) as caught:
            ask("init", "table.csv", "--label", "dx", "--confounds", confounds)
        assert text in str(caught.value)
    assert not (here / "config.yaml").exists()


def test_init_tells_a_column_that_one_cell_keeps_from_being_a_feature(here):
    frame = tiny.cohort(60)
    frame["f3"] = frame["f3"].astype(object)
    frame.loc[4, "f3"] = "oops"
    tiny.write(here, frame)
    said = ask("init", "table.csv", "--label", "dx", "--confounds", "age")
    assert "f3 is no feature, for it holds 'oops' in row 4 among numbers" in said


@pytest.mark.parametrize("error", [KeyError("x"), DeconfoundError("a must b; got c.")])
def test_no_traceback_reaches_the_user(error, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert caught.value.code == (2 if isinstance(error, DeconfoundError) else 1)
    assert ("error: a must b; got c." if isinstance(error, DeconfoundError) else "error: KeyError: 'x'") in said


def test_an_interrupted_run_says_how_to_go_on(here, monkeypatch, capsys):
    def stopped(*_):
        raise SystemExit(1)

    tiny.write(here)
    ask("init", "table.csv", "--label", "dx", "--confounds", "age")
    monkeypatch.setattr("deconfound.training.workers.run_job", stopped)
    found = ASK.invoke(cli.app, ["fit", "config.yaml"])
    assert found.exit_code == 130
    assert "give the same command again to go on from here" in found.output


@pytest.mark.parametrize("command", ["init", "fit", "compare", "predict", "audit"])
def test_every_command_helps_with_examples(command):
    said = ask(command, "--help")
    assert "Examples" in said
    assert f"deconfound {command}" in said


def test_slurm_options_reach_submitit(here):
    found = cli.compare.__globals__["cluster_of"](True, ["slurm_partition=gpu", "timeout_min=120"])
    assert (found.name, dict(found.parameters)) == ("slurm", {"slurm_partition": "gpu", "timeout_min": 120})
    with pytest.raises(DeconfoundError, match="--slurm-with must be KEY=VALUE; got 'gpu'"):
        cli.compare.__globals__["cluster_of"](True, ["gpu"])
