"""The benchmarks run, claim what they measure, and make the page from their JSON."""

import json

import pytest
from typer.testing import CliRunner

from deconfound.benchmarks import claims, page
from deconfound.benchmarks.run import broken, run, save
from deconfound.cli.bench import bench
from deconfound.errors import OptionError
from tests.test_words import ROOT


@pytest.fixture(scope="module")
def quick():
    return run("cpu", ["checks", "passes", "steps", "growth"], quick=True)


def test_a_quick_run_measures_every_method_on_every_network(quick):
    methods = {row["method"] for row in quick["steps"]}
    assert {"none", "batchnorm", "layernorm", "mdn", "rmdn", "pmdn", "pmdn-alternating"} == methods
    assert all(row["seconds"] > 0 for section in ("passes", "steps", "growth") for row in quick[section])
    assert all(row["ratio"] == 1 for row in quick["steps"] if row["method"] == "none")
    assert quick["origin"]["packages"]["torch"]


def test_results_are_saved_as_json_and_shown_as_tables(quick, tmp_path):
    path = save(quick, tmp_path)
    text = page.page([json.loads(path.read_text())])
    assert "### Whole training steps" in text
    assert "| synthetic CNN | 8 | eager | pmdn |" in text


def test_claims_are_ratios_that_a_run_confirms_or_refutes():
    row = {"layer": "pmdn", "pass": "train", "type": "float32", "n": 240, "d": 262_144}
    steps = [{"network": "3D ResNet", "batch": 80, "mode": "eager", "method": "pmdn", "seconds": 0.2, "ratio": 1.2}]
    steps += [{"network": "3D ResNet", "batch": 80, "mode": "eager", "method": "batchnorm", "seconds": 0.1}]
    result = {"device": "cuda", "quick": False, "passes": [{**row, "ratio": 1.3}], "steps": steps}
    assert [claim.holds for claim in claims.check(result)] == [True, False, False]
    assert "at most 1.1; got 1.2" in broken(result)[0]
    assert broken({**result, "quick": True}) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"device": "cpu", "sections": ["speed"]}, "sections must be among checks, passes.*; got speed"),
        ({"device": "cuda"}, "device must be one that torch sees; got 'cuda'"),
    ],
)
def test_bad_options_are_refused(arguments, text, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionError, match=text):
        run(**arguments)


def test_the_command_writes_json_and_tables(tmp_path):
    import typer

    app = typer.Typer()
    app.command()(bench)
    done = CliRunner().invoke(app, ["--quick", "--sections", "growth", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "cpu.json").read_text())["growth"]
    assert "### Growth" in (tmp_path / "cpu.md").read_text()


def test_the_page_is_the_one_made_from_the_committed_results():
    found = sorted((ROOT / "docs" / "results" / "performance").glob("*.json"))
    expected = page.page([json.loads(path.read_text()) for path in found])
    assert (ROOT / "docs" / "performance.md").read_text() == expected
