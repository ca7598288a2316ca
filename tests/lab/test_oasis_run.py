"""The OASIS-1 experiment as a run: it goes on where it stopped, and reports nothing about a single person."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.errors import OptionError, RunError
from deconfound_lab.oasis import ARMS, FULL, QUICK, run_oasis
from deconfound_lab.oasis.member import read_outcome
from deconfound_lab.oasis.page import write_report
from deconfound_lab.oasis.tables import lines_of, sentence
from tests.lab.oasis_people import TINY, made_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A finished tiny experiment, stopped once on the way."""
    root = tmp_path_factory.mktemp("oasis")
    people = made_up()
    options = {"plan": TINY, "out": root / "out", "device": "cpu"}
    assert run_oasis(people, **options, minutes=0) is None
    calls = []
    results = run_oasis(people, **options, progress=lambda *state: calls.append(state))
    return root / "out", people, options, results, calls


def test_a_second_call_goes_on_and_a_third_trains_nothing(tiny, monkeypatch):
    _, people, options, results, calls = tiny
    assert [call[0] for call in calls][:3] == [
        "baseline, fold 0, member 0", "baseline, fold 1, member 0", "pmdn, fold 0, member 0",
    ]  # fmt: skip
    assert len(calls) == len(TINY.cells()) == 8
    monkeypatch.setattr("deconfound_lab.oasis.running.train_member", lambda *_: pytest.fail("trained again"))
    assert run_oasis(people, **options)["lines"] == results["lines"]
    with pytest.raises(RunError, match="must hold this experiment; got one with another plan or data"):
        run_oasis(people, **(options | {"plan": replace(TINY, seed=5)}))


def test_results_hold_numbers_about_groups_and_none_about_a_person(tiny):
    out, _, _, results, _ = tiny
    written = json.loads((out / "results.json").read_text())
    assert written["counts"]["people"] == 60
    assert written["provenance"]["data"] == "made up"
    assert {line["arm"] for line in written["lines"]} == {"age", "linear", *TINY.arms}
    assert {(v["model"], v["space"]) for v in written["audit"]["verdicts"]} >= {
        ("pmdn", "features"), ("pmdn", "outputs"), ("pmdn, afterwards", "outputs"), ("linear", "outputs"),
    }  # fmt: skip

    def longest(value):
        if isinstance(value, dict):
            value = list(value.values())
            return max(map(longest, value), default=0)
        if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
            return len(value)
        return max(map(longest, value), default=0) if isinstance(value, list) else 0

    assert longest(written) < 10
    linear = next(line for line in lines_of(results, False) if line.arm == "linear")
    assert linear.auc.mean > 0.8


def test_the_command_makes_the_report_again_without_the_data(tiny):
    out, *_ = tiny
    results = json.loads((out / "results.json").read_text())
    write_report(results, out)
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
    results = json.loads(json.dumps(tiny[3]))
    for line in results["lines"]:
        line["auc_old"]["mean"], line["r_age"]["mean"] = 0.6, 0.4
    assert "No score beats AUC 0.66 among people of 60 and older with |r| below 0.1." in sentence(results)
    chosen = next(line for line in results["lines"] if line["arm"] == "pmdn" and line["afterwards"])
    chosen["auc_old"]["mean"], chosen["r_age"]["mean"] = 0.75, -0.02
    assert "1 of 6 scores beat AUC 0.66" in sentence(results)
    assert "beside controls of the same age and sex: AUC 0.75, r = -0.02" in sentence(results)


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
    with pytest.raises(OptionError, match="jobs must be at least 1; got 0"):
        run_oasis(made_up(6), plan=TINY, jobs=0)


def test_the_plans_have_five_folds_and_the_arms_of_the_mri_experiment():
    from deconfound_lab.mri import ARMS as MRI_ARMS

    assert FULL.folds == QUICK.folds == 5
    assert set(MRI_ARMS) <= set(ARMS)


@pytest.mark.slow
def test_processes_side_by_side_train_the_same_networks(tiny, tmp_path):
    out, people, options, _, _ = tiny
    run_oasis(people, **(options | {"out": tmp_path, "jobs": 2}))
    for cell in ("baseline-fold0-member0", "pmdn-fold1-member1"):
        one, two = (read_outcome(root / "trainings" / f"{cell}.npz") for root in (out, tmp_path))
        assert one.test == pytest.approx(two.test, abs=1e-4)


RESULTS = ROOT / "docs" / "results" / "oasis"


@pytest.mark.skipif(not (RESULTS / "results.json").exists(), reason="no results are committed")
def test_the_committed_tables_and_figure_are_those_of_the_committed_results(tmp_path):
    write_report(json.loads((RESULTS / "results.json").read_text()), tmp_path)
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "tables.md").read_text()
    assert (RESULTS / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (ROOT / "docs" / "oasis.md").read_text()
    assert "results/oasis/tables.md" in page
    assert "results/oasis/figure.png" in page
