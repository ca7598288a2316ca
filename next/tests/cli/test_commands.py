"""`deconfound init`, `fit`, `compare` and `predict`: one config, exit codes, and streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from deconfound.cli import app, format_table
from tests.runs.people import FEATURES, make_people

PEOPLE = make_people(120)[["id", "dx", "site", *FEATURES]]
COLUMNS = ("--label", "dx", "--confound", "site", "--id", "id")
# The config stays as it is; a test only has no time for 30 epochs and 5 folds.
SHORT = ("training.epochs=1", "splits.folds=2")
FAST = (*SHORT, "--no-audit")
LOGISTIC = "network.name=sklearn.linear_model:LogisticRegression"
VARIANTS = "compare.variants={plain: {}, same: {}}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with people.csv."""
    monkeypatch.chdir(tmp_path)
    PEOPLE.to_csv("people.csv", index=False)
    return tmp_path


@pytest.fixture
def config(folder):
    """A working folder with people.csv and config.yaml."""
    assert run("init", "people.csv", *COLUMNS, "--quiet").exit_code == 0
    return folder / "config.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def check(done: Result, code: int = 0) -> Result:
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    assert "\x1b" not in done.output
    return done


# From a table to predictions and their audit (acceptance 41, 44).


def test_init_fit_predict_and_audit_without_an_edit(folder):
    done = check(run("init", "people.csv", *COLUMNS))
    assert done.stdout.endswith("Wrote config.yaml. Next: deconfound fit config.yaml\n")
    done = check(run("fit", "config.yaml", *SHORT))
    lines = done.stdout.splitlines()
    assert lines[0].startswith(("Among people", "No leak", "There is no"))
    assert re.search(r"^label  balanced +within strata of site +worst group +as sampled$",
                     done.stdout, re.MULTILINE)  # fmt: skip
    assert lines[-1] == f"Wrote {folder / 'runs' / 'config' / 'report.html'}"
    assert re.search(r"^step \d+ of 2: fold 1 of 2: epoch 1 of 1", done.stderr, re.MULTILINE)
    new = PEOPLE.drop(columns="dx")[:30]
    new.to_csv("new.csv", index=False)
    assert (
        check(run("predict", "runs/config", "new.csv")).stdout == "Wrote predictions.csv: 30 rows\n"
    )
    assert list(pd.read_csv("predictions.csv")) == ["id", "prob_AD", "predicted"]
    files = ("runs/config/predictions.csv", "--confound", "site", "--label", "dx")
    check(run("audit", *files, "--fold", "fold", "--permutations", "39", "--planted", "0"))
    assert (folder / "audit.html").exists()


def test_compare_prints_a_line_for_each_variant(config):
    done = check(run("compare", "config.yaml", *FAST, VARIANTS, "compare.seeds=[0, 1]"))
    assert "seed 1" in done.stderr
    assert re.search(r"^same +dx +.*no difference", done.stdout, re.MULTILINE)
    assert "Compared with plain, no variant is measurably better or worse" in done.stdout
    seeds = config.parent / "runs" / "config" / "variants" / "same"
    assert sorted(path.name for path in seeds.iterdir()) == ["seed-0", "seed-1"]


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_json_is_alone_on_stdout(config, command):
    done = check(run(command, "config.yaml", *FAST, VARIANTS, "--json"))
    content = json.loads(done.stdout)
    stored = config.parent / "runs" / "config" / "results.json"
    assert content["results"] == json.loads(stored.read_text(encoding="utf-8"))
    assert done.stderr.startswith("step ")


def test_quiet_prints_nothing(config):
    for arguments in (("fit", "config.yaml", *FAST), ("predict", "runs/config", "people.csv")):
        done = check(run(*arguments, "--quiet"))
        assert (done.stdout, done.stderr) == ("", "")


def test_parts_train_their_folds_alone(config):
    done = check(run("fit", "config.yaml", *FAST, "--part", "1/2"))
    assert "are open: other parts train them" in done.stdout
    assert json.loads(run("fit", "config.yaml", *FAST, "--part", "1/2", "--json").stdout)[
        "results"
    ] is None  # fmt: skip
    assert "Wrote " in check(run("fit", "config.yaml", *FAST, "--part", "2/2")).stdout


def test_folds_that_fail_are_named_first_and_end_with_1(config):
    bad = ("network.options={C: -1.0}", "run.features=false", "method=none", LOGISTIC)
    done = check(run("fit", "config.yaml", *FAST, *bad), 2)
    assert "'C' parameter" in done.stderr
    variants = (
        f"compare.variants={{plain: {{}}, bad: {{method: none, network.name: {LOGISTIC[13:]}, "
    )
    variants += "network.options: {C: -1.0}, run.features: false}}"
    done = check(run("compare", "config.yaml", *FAST, variants, "run.folder=other"), 1)
    assert "Failed: bad, seed 0, fold 0: " in done.stderr
    assert done.stdout.count("\nplain ") == 1


# Nothing that a command reads, or that a run holds, is overwritten (fault 19).


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_inputs_and_runs_are_never_overwritten(config, force):
    check(run("fit", "config.yaml", *FAST))
    before = {path: path.read_bytes() for path in config.parent.rglob("*.csv")}
    for out in ("people.csv", "runs/config/predictions.csv"):
        check(run("predict", "runs/config", "people.csv", "--out", out, *force), 2)
    check(run("init", "people.csv", *COLUMNS, "--out", "people.csv", *force), 2)
    assert {path: path.read_bytes() for path in config.parent.rglob("*.csv")} == before
    assert "--force" in check(run("init", "people.csv", *COLUMNS), 2).stderr
    check(run("init", "people.csv", *COLUMNS, "--force"))


# Errors are sentences that name options or keys (fault 2, acceptance 36, 45).

CONFIGS = (
    (("training.epoch=1",), "training.epochs"),
    (("training.epochs=many",), r"training.epochs must be a whole number; got 'many'"),
    (("method=pmdm", "design.confounds=[sitee]"), r"'sitee'[\s\S]*'pmdn'"),
    (("--part", "3"), "--part must be I/N, such as 3/20; got '3'"),
    (("--part", "5/3"), "--part must be"),
    (("data.positive=MCI",), r"data.positive: |positive"),
)


@pytest.mark.parametrize(("arguments", "text"), CONFIGS)
def test_faults_of_a_config_name_keys_and_options(config, arguments, text):
    done = check(run("fit", "config.yaml", *FAST, *arguments, "--quiet"), 2)
    assert done.stderr.startswith("Error: ")
    assert re.search(text, done.stderr), done.stderr
    assert done.stdout == ""
    assert not (config.parent / "runs").exists()


COMMANDS = (
    (("init", "people.csv", "--label", "dxx", "--confound", "sitee"), r"'dxx'[\s\S]*'sitee'"),
    (("init", "people.csv", *COLUMNS, "--type", "site=number"), "--type"),
    (("init", "people.csv", *COLUMNS, "--positive", "MCI"), "--positive"),
    (("init", "none.csv", *COLUMNS), "no file 'none.csv'|none.csv"),
    (("init", "people.csv", *COLUMNS, "--out", "c.txt"), "--out c.txt must end with .yaml"),
    (("init", "empty.csv", *COLUMNS), "no rows|empty"),
    (("init", "twins.csv", *COLUMNS), "'p000'"),
    (("init", "healthy.csv", *COLUMNS), "dx"),
    (("fit", "none.yaml"), "deconfound init"),
    (("fit", "people.csv"), "people.csv"),
    (("predict", "none", "people.csv"), "no run"),
    (("predict", "runs/config", "narrow.csv"), "'area'"),
    (("predict", "runs/config", "people.csv", "--fold", "9"), "fold '9'"),
    (("predict", "runs/config", "people.csv", "--out", "a.txt"), "--out"),
    (("predict", "runs/config", "people.csv", "--unseen", "never"), "unseen"),
)


@pytest.mark.parametrize(("arguments", "text"), COMMANDS)
def test_bad_input_ends_with_2_and_a_sentence(config, arguments, text):
    PEOPLE[:0].to_csv("empty.csv", index=False)
    PEOPLE.assign(id="p000").to_csv("twins.csv", index=False)
    PEOPLE.assign(dx="CN").to_csv("healthy.csv", index=False)
    PEOPLE.drop(columns="area").to_csv("narrow.csv", index=False)
    if "runs/config" in arguments:
        check(run("fit", "config.yaml", *FAST, "--quiet"))
    done = check(run(*arguments), 2)
    assert re.search(text, done.stderr), done.stderr
    assert not re.search(r"\w=[\[{'\"]|\w=[\s.]|DataFrame", done.stderr), done.stderr


def test_a_run_of_images_asks_for_images(folder, monkeypatch):
    """Fault 23."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("DECONFOUND_CACHE", str(folder / "cache"))
    (folder / "pictures").mkdir()
    people = PEOPLE[:16].drop(columns=list(FEATURES))
    people.to_csv("few.csv", index=False)
    for row, name in enumerate(people["id"]):
        picture = image.effect_noise((8, 8), 20 + row)
        picture.save(folder / "pictures" / f"{name}.png")
    check(run("init", "few.csv", "--images", "pictures", *COLUMNS, "--quiet"))
    check(run("fit", "config.yaml", *FAST, "--quiet"))
    done = check(run("predict", "runs/config", "few.csv"), 2)
    assert "--images" in done.stderr
    check(run("predict", "runs/config", "few.csv", "--images", "pictures"))
    # All broken files are named together (acceptance 41).
    for name in ("p003", "p007"):
        (folder / "pictures" / f"{name}.png").write_bytes(b"no picture")
    done = check(run("predict", "runs/config", "few.csv", "--images", "pictures", "--force"), 2)
    assert "p003" in done.stderr
    assert "p007" in done.stderr


# Terminals and pipes (fault 22).


def test_tables_wrap_by_column_on_a_terminal_and_are_whole_in_a_pipe(monkeypatch):
    row = {"variant": "weights and pmdn", "a" * 30: 0.5, "b" * 30: 1.0, "c": "x" * 90}
    assert len(format_table([row]).splitlines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    text = format_table([row, row])
    blocks = [block.splitlines() for block in text.split("\n\n")]
    assert [len(block) for block in blocks] == [3, 3]
    assert all(block[1].startswith("weights and pmdn") for block in blocks)
    assert max(map(len, blocks[0])) <= 80
    assert "x" * 90 in blocks[1][1]
    assert "0.500" in text


@pytest.mark.slow
def test_a_reader_that_stops_early_does_not_end_a_training(config):
    """`deconfound fit … 2>&1 | head -1` trains all folds and writes the report."""
    command = [sys.executable, "-m", "deconfound.cli", "fit", "config.yaml", *FAST]
    read, write = os.pipe()
    process = subprocess.Popen(command, stdout=write, stderr=write)
    os.close(write)
    os.close(read)
    assert process.wait() == 0
    assert (config.parent / "runs" / "config" / "report.html").exists()


@pytest.mark.slow
def test_a_process_in_a_pipe_prints_plain_lines(config):
    command = [sys.executable, "-m", "deconfound.cli"]
    done = subprocess.run(
        [*command, "fit", "config.yaml", *FAST], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert all(line.startswith("step ") for line in done.stderr.splitlines())
    assert Path(done.stdout.splitlines()[-1].removeprefix("Wrote ")).exists()


def test_a_crash_does_not_end_with_the_code_of_a_finding(tmp_path, monkeypatch):
    def crash(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("deconfound.runs.propose", crash)
    result = CliRunner().invoke(app, ["init", "people.csv", "--label", "dx", "--confound", "site"])
    assert result.exit_code == 70
    assert "ZeroDivisionError" in result.output
