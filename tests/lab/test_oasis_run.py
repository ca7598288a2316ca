"""The OASIS-1 experiment as a run: it goes on where it stopped, and reports nothing about a single person."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.errors import OptionError, RunError
from deconfound_lab.__main__ import filled_page
from deconfound_lab.harness import Store, run_experiment
from deconfound_lab.harness.page import write_page
from deconfound_lab.oasis.experiment import OasisExperiment
from deconfound_lab.oasis.plan import ARMS, FULL, QUICK
from deconfound_lab.oasis.tables import lines_of, sentence
from tests.lab.docs import without_marks
from tests.lab.oasis_people import TINY, made_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A finished tiny experiment, stopped once on the way."""
    root = tmp_path_factory.mktemp("oasis")
    people, calls = made_up(), []

    def make(**changes):
        return OasisExperiment(people, plan=replace(TINY, **changes))

    assert run_experiment(make(), root, minutes=0).results is None
    results = run_experiment(make(), root, progress=lambda *state: calls.append(state)).results
    return root, make, results, calls


def test_every_arm_has_one_member_in_each_fold_before_any_has_two(tiny):
    root, make, _, calls = tiny
    assert [call[0] for call in calls][:3] == [
        "baseline, fold 0, member 0", "baseline, fold 1, member 0", "pmdn, fold 0, member 0",
    ]  # fmt: skip
    assert len(TINY.trainings()) == 8
    with pytest.raises(RunError, match=r"must hold this experiment; got one with plan\.seed 0 instead of 5"):
        run_experiment(make(seed=5), root)


def test_results_hold_numbers_about_groups_and_none_about_a_person(tiny):
    out, _, results, _ = tiny
    written = json.loads((out / "results.json").read_text())
    assert written["counts"]["people"] == 60
    assert written["provenance"][0]["data"] == "made up"
    assert {line["arm"] for line in written["lines"]} == {"age", "linear", *TINY.arms}
    assert {(v["model"], v["space"]) for v in written["audit"]["verdicts"]} >= {
        ("pmdn", "features"), ("pmdn", "outputs"), ("pmdn, W-score", "outputs"), ("linear", "outputs"),
    }  # fmt: skip

    def longest(value):
        if isinstance(value, dict):
            value = list(value.values())
            return max(map(longest, value), default=0)
        if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
            return len(value)
        return max(map(longest, value), default=0) if isinstance(value, list) else 0

    assert longest(written) < 10
    linear = next(line for line in lines_of(results, "as trained") if line.arm == "linear")
    assert linear.auc.mean > 0.8


def test_the_command_makes_the_report_again_without_the_data(tiny):
    out, *_ = tiny
    results = json.loads((out / "results.json").read_text())
    before = {name: (out / name).read_bytes() for name in ("tables.md", "figure.png", "report.html")}
    done = CliRunner().invoke(app, ["reproduce", "oasis", "nowhere", "--report-only", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {name: (out / name).read_bytes() for name in before} == before
    assert before["figure.png"].startswith(b"\x89PNG")
    tables = before["tables.md"].decode()
    assert "| ridge regression on voxels |" in tables
    assert "hidden features" in tables
    assert " ".join(sentence(results).split()) in " ".join(done.output.split())
    failed = CliRunner().invoke(app, ["reproduce", "oasis", "x", "--report-only", "--out", str(out / "none")])
    assert isinstance(failed.exception, RunError)


def test_the_sentence_says_what_was_reached_and_what_was_not(tiny):
    results = json.loads(json.dumps(tiny[2]))
    for line in results["lines"]:
        line["auc_old"]["mean"], line["r_age"]["mean"] = 0.6, 0.4
    bar = "ridge regression on voxels (AUC 0.60) among people of 60 and older with |r| below 0.1"
    assert f"No score beats {bar}." in sentence(results)
    chosen = next(line for line in results["lines"] if line["arm"] == "pmdn" and line["judged"] == "W-score")
    chosen["auc_old"]["mean"], chosen["r_age"]["mean"] = 0.75, -0.02
    assert f"1 of 5 scores beat {bar}" in sentence(results)
    assert ", W-score: AUC 0.75, r = -0.02" in sentence(results)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"arms": ("pmnd",)}, r"arms must be among baseline, .*; got 'pmnd'. Did you mean 'pmdn'\?"),
        ({"members": 1}, "members must be at least 2, so that each leaves people out; got 1"),
    ],
)
def test_plans_that_cannot_be_are_refused(changes, text):
    with pytest.raises(OptionError, match=text):
        replace(TINY, **changes)


def test_the_plans_have_five_folds_and_the_arms_of_the_mri_experiment():
    from deconfound_lab.mri.plan import PAPER

    assert FULL.folds == QUICK.folds == 5
    assert {*PAPER, "baseline-balanced", "pmdn-balanced"} <= set(ARMS)


@pytest.mark.slow
def test_processes_side_by_side_train_the_same_networks(tiny, tmp_path):
    out, make, _, _ = tiny
    run_experiment(make(), tmp_path, jobs=2)
    cells = make().cells()
    one, two = (Store(root, make().definition).read(cells) for root in (out, tmp_path))
    for cell in cells:
        assert one[cell.key].result["test"] == pytest.approx(two[cell.key].result["test"], abs=1e-4)


RESULTS = ROOT / "docs" / "results" / "oasis"


@pytest.mark.skipif(not (RESULTS / "results.json").exists(), reason="no results are committed")
def test_the_committed_tables_and_figure_are_those_of_the_committed_results(tmp_path):
    write_page(OasisExperiment.page(json.loads((RESULTS / "results.json").read_text()), RESULTS), tmp_path)
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "tables.md").read_text()
    assert (RESULTS / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (ROOT / "docs" / "results" / "oasis.md").read_text()
    assert "oasis/tables.md" in page
    assert without_marks(page) == without_marks(filled_page("oasis"))
