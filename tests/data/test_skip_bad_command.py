"""Bad scans on the command line: refused together, or left out and named with `--skip-bad`."""

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.errors import OptionError, ScanError
from tests.data.scan_files import write_bids

CONFIG = {
    "data": {"source": "study", "label": "dx", "options": {"shape": [16, 16, 16]}},
    "design": {"confounds": ["age", "sex"]},
    "network": {"name": "resnet3d", "options": {"filters": [2]}},
    "splits": {"folds": 2},
    "training": {"epochs": 1, "batch_size": 8},
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Twenty-four people, one with a broken scan and one without any."""
    root = write_bids(tmp_path / "study", people=24)
    head, *lines = (root / "participants.tsv").read_text().splitlines()
    lines = [f"{line}\t{'AB'[number // 2 % 2]}" for number, line in enumerate(lines)]
    (root / "participants.tsv").write_text("\n".join([f"{head}\tdx", *lines]) + "\n")
    (root / "sub-03" / "anat" / "sub-03_T1w.nii.gz").write_bytes(b"no")
    (root / "sub-05" / "anat" / "sub-05_T1w.nii.gz").unlink()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*words):
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_fit_and_predict_go_on_without_bad_scans_and_name_each_once(study):
    with pytest.raises(ScanError, match=r"got 2 faults(?s:.*)--skip-bad of a command.* to go on with the 22"):
        said("fit", "config.yaml")
    text = said("fit", "config.yaml", "--skip-bad", "run.folder=run")
    assert text.count("warning: 2 left out, 22 scans remain:") == 1
    assert text.count("participants.tsv: sub-05 has no scan") == 1
    assert text.count("sub-03_T1w.nii.gz: cannot be read") == 1
    rows = pd.concat([pd.read_csv(path) for path in study.glob("run/fold-*/predictions.csv")]).set_index("row")
    people = pd.read_csv("study/participants.tsv", sep="\t")["participant_id"]
    assert rows["participant_id"].sort_index().tolist() == people.drop([2, 4]).tolist()
    assert rows.index.sort_values().tolist() == people.drop([2, 4]).index.tolist()
    text = said("predict", "run", "study/participants.tsv", "--images", "study", "--skip-bad", "--out", "new.csv")
    assert text.count("warning: 2 left out, 22 scans remain:") == 1
    assert len((study / "new.csv").read_text().splitlines()) == 23


def test_init_writes_that_bad_scans_are_left_out(study):
    text = said("init", "study/participants.tsv", "--source", "study", "--label", "dx", "--confounds", "age", "--out",
                "new.yaml", "--skip-bad")  # fmt: skip
    assert "2 left out, 22 scans remain" in text
    assert yaml.safe_load((study / "new.yaml").read_text())["data"]["options"] == {
        "shape": [64, 64, 64],
        "fit": "resample",
        "skip_bad": True,
    }


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_where_there_are_no_scans_the_flag_is_refused(study, command):
    (study / "table.csv").write_text("a,age,sex,dx\n1,30,F,A\n")
    with pytest.raises(OptionError, match=r"--skip-bad must be given with scans; got data\.source 'table\.csv'"):
        said(command, "config.yaml", "--skip-bad", "data.source=table.csv", "data.options={}")
