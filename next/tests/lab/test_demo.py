"""The demo's text follows its numbers, and the lab's commands do what they say."""

import pytest
import torch
import typer
from typer.testing import CliRunner

from deconfound.errors import OptionError
from deconfound_lab import commands
from deconfound_lab.commands import COMMANDS, load_experiment, select_cells
from deconfound_lab.demo import MARGIN, DemoResult, describe, run_demo
from deconfound_lab.harness import Experiment, Page, Results
from deconfound_lab.synthetic import CEILING


def result(accuracy, independent=CEILING):
    return DemoResult(torch.zeros(1, 1), accuracy, independent, 0.0)


def app():
    joined = typer.Typer()
    for function in COMMANDS:
        joined.command()(function)
    return joined


def run(*arguments):
    return CliRunner().invoke(app(), [str(argument) for argument in arguments])


def test_the_confound_is_blamed_beyond_three_standard_errors_only():
    ours = result(CEILING)
    for surplus, is_blamed in ((1.1, True), (0.9, False), (-3.0, False)):
        text = describe(result(CEILING + surplus * MARGIN, 0.72), ours)
        assert ("surplus comes from the confound" in text) == is_blamed
        assert ("does not show" in text) != is_blamed


@pytest.mark.parametrize("sign", [-1, 1])
def test_pmdn_is_praised_within_three_standard_errors_only(sign):
    plain = result(0.94, 0.72)
    near, far = CEILING + 0.9 * sign * MARGIN, CEILING + 1.1 * sign * MARGIN
    assert "as good as possible" in describe(plain, result(near, near))
    for ours in (result(far), result(CEILING, far)):
        text = describe(plain, ours)
        assert "as good as possible" not in text
        assert "raise --steps" in text


def test_three_standard_errors_are_those_of_a_proportion():
    draws = torch.distributions.Binomial(4000, torch.tensor(CEILING)).sample((20_000,)) / 4000
    assert pytest.approx(3 * draws.std().item(), rel=0.03) == MARGIN


@pytest.mark.slow
def test_the_demo_shows_what_it_claims():
    results, audit = run_demo()
    plain, ours = results.values()
    assert plain.accuracy > CEILING + MARGIN
    assert abs(ours.accuracy - CEILING) <= MARGIN
    text = describe(plain, ours)
    assert "surplus comes from the confound" in text
    assert "as good as possible" in text
    answers = {verdict.model: verdict.answer for verdict in audit.verdicts}
    assert answers["plain network"] == "found"


def test_the_demo_never_overwrites_a_page(tmp_path):
    page = tmp_path / "demo.html"
    page.write_text("mine")
    done = run("demo", "--out", page)
    assert isinstance(done.exception, OptionError)
    assert page.read_text() == "mine"


def compute(cell):
    return {"value": 2 * cell["seed"]}


def show(results):
    return Page("Doubles", {"sum": str(sum(cell["result"]["value"] for cell in results.find()))})


def doubles():
    cells = [{"arm": arm, "seed": seed} for arm in ("a", "b") for seed in (1, 2)]
    return Experiment("doubles", cells, compute, show)


@pytest.fixture
def experiments(monkeypatch):
    monkeypatch.setitem(commands.EXPERIMENTS, "doubles", f"{__name__}:doubles")


def test_reproduce_computes_what_is_missing_and_joins_it_to_the_committed_json(
    experiments, tmp_path
):
    docs, cells = tmp_path / "docs", tmp_path / "cells"
    docs.mkdir()
    options = ("--folder", cells, "--docs", docs)
    first = run("reproduce", "doubles", "--only", "arm=a", "--only", "seed=2", *options)
    assert first.exit_code == 0, first.output
    assert "1 cells of doubles" in first.output
    # On another machine, whose folder has no cells, the committed ones stay.
    second = run(
        "reproduce", "doubles", "--only", "arm=b", "--folder", tmp_path / "other", *options[2:]
    )
    assert second.exit_code == 0, second.output
    results = Results.load(docs / "doubles.json")
    values = {tuple(cell["config"].values()): cell["result"]["value"] for cell in results.cells}
    assert values == {("a", 2): 4, ("b", 1): 2, ("b", 2): 4}
    text = (docs / "doubles.md").read_text()
    assert "<!-- begin sum -->\n\n10\n" in text
    (docs / "doubles.md").write_text(text.replace("10", "old"))
    again = run("reproduce", "doubles", "--report-only", *options)
    assert again.exit_code == 0, again.output
    assert (docs / "doubles.md").read_text() == text


def test_an_unknown_experiment_or_setting_names_the_nearest_one(experiments):
    with pytest.raises(OptionError, match=r"'doubels'.*doubles"):
        load_experiment("doubels")
    with pytest.raises(OptionError, match=r"'sed'.*seed"):
        select_cells(doubles(), ["sed=1"])
    with pytest.raises(OptionError, match="No cell has the settings seed=9"):
        select_cells(doubles(), ["seed=9"])


def test_the_experiments_are_those_of_the_paper():
    assert load_experiment("synthetic").name == "synthetic"
    assert set(commands.EXPERIMENTS) == {"synthetic", "mri"}


def test_help_of_each_command_is_one_line():
    for function in COMMANDS:
        assert run(function.__name__, "--help").exit_code == 0
        assert len(function.__doc__.splitlines()) == 1


def test_results_hold_no_not_a_number(tmp_path):
    cell = {"config": {}, "result": {"value": float("nan")}, "seconds": 0}
    with pytest.raises(ValueError, match="not JSON compliant"):
        Results([], [cell]).save(tmp_path / "bad.json")
