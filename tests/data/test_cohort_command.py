"""`deconfound cohort`, as a user calls it."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.data.scans import open_scans
from deconfound.errors import OptionError


def run(*arguments):
    result = CliRunner().invoke(app, ["cohort", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_writes_a_folder_that_is_read_as_scans_and_shows_table_one(tmp_path):
    result = run(tmp_path / "bids", "--size", 16, "--people", 20, "--seed", 3)
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert re.search(r"UCSF . simulated . 3 .* paper . 156 ", shown)
    assert "Best possible accuracy: 80.0% without confounds, 86.9% with the site's help." in shown
    assert "wrote 20 scans to" in shown
    scans = open_scans(tmp_path / "bids", cache=tmp_path / "cache", shape=(16, 16, 16), progress=False)
    assert len(scans) == 20
    assert scans.read(np.arange(20)).std(axis=0).max() > 0.01


def test_the_independent_set_says_only_what_holds_there(tmp_path):
    shown = " ".join(run(tmp_path / "bids", "--size", 16, "--people", 8, "--independent").stdout.split())
    assert "80.0% without confounds." in shown


def test_the_montage_is_drawn_alone(tmp_path):
    run("--montage", tmp_path / "new" / "m.png", "--size", 16)
    assert (tmp_path / "new" / "m.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_something_must_be_asked_for(tmp_path):
    with pytest.raises(OptionError, match="a folder OUT or --montage must be given; got neither"):
        run()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["new", "--device", "abacus"], "device must be one of torch's that is here; got 'abacus'"),
        (["--montage", "picture.xyz"], "the montage must be written to a .png; got 'picture.xyz'"),
        (["file/below"], "the cohort's folder must be one that can be written; got file/below"),
    ],
)
def test_what_cannot_be_made_is_told(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=re.escape(said)):
        run(*words, "--size", 16, "--people", 3)
