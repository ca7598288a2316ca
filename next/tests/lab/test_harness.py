"""Cells are computed once, failures are tried again, and pages come from the JSON alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

import deconfound
import deconfound_lab.harness
from deconfound.errors import OptionError, StateError
from deconfound_lab.harness import (
    Experiment,
    Page,
    Results,
    cell_file,
    cell_hash,
    describe_provenance,
    run_experiment,
)
from deconfound_lab.report import (
    describe_makers,
    fill_blocks,
    format_mean,
    mean_interval,
    to_markdown,
    write_page,
)

CELLS = [{"arm": arm, "seed": seed} for arm in ("plain", "pmdn") for seed in (0, 1)]


def square(cell):
    return {"value": cell["seed"] ** 2, "arm": cell["arm"]}


def fail_on_pmdn(cell):
    if cell["arm"] == "pmdn":
        raise ValueError("a fault of this arm")
    return square(cell)


def return_nan(cell):
    return {"value": float("nan")}


def show(results):
    means = [format_mean([cell["result"]["value"] for cell in results.find(arm="pmdn")])]
    return Page("Squares", {"finding": "<b>"}, {"means": pd.DataFrame({"": ["PMDN"], "x": means})})


def make_experiment(cells=CELLS, compute=square):
    return Experiment("squares", cells, compute, show)


def without_time(results):
    return [{key: cell[key] for key in ("config", "result")} for cell in results.cells]


def entry(arm, seed, value, release="1.0.0", dirty=False):
    made = {"release": release, "commit": "abc", "dirty": dirty, "device": "CPU", "versions": {}}
    config = {"arm": arm, "seed": seed}
    return {"config": config, "result": {"value": value}, "seconds": 1.0, "provenance": made}


def test_a_stopped_experiment_goes_on_and_equals_an_undisturbed_one(tmp_path):
    whole = run_experiment(make_experiment(), tmp_path / "whole")
    first = run_experiment(make_experiment(CELLS[:1]), tmp_path / "parts")
    before = cell_file(tmp_path / "parts", CELLS[0]).read_text()
    calls = []
    second = run_experiment(
        make_experiment(), tmp_path / "parts", on_progress=lambda *step: calls.append(step)
    )
    assert without_time(first) == without_time(whole)[:1]
    assert without_time(second) == without_time(whole)
    assert cell_file(tmp_path / "parts", CELLS[0]).read_text() == before
    assert [done for done, total, text in calls] == [2, 3, 4]


def test_several_processes_compute_the_same_cells(tmp_path):
    one = run_experiment(make_experiment(), tmp_path / "one")
    two = run_experiment(make_experiment(), tmp_path / "two", jobs=2)
    assert without_time(one) == without_time(two)


def test_a_cell_that_fails_is_kept_with_its_error_and_tried_again(tmp_path):
    failed = run_experiment(make_experiment(compute=fail_on_pmdn), tmp_path)
    errors = [cell.get("error") for cell in failed.cells]
    assert errors == [None, None, *["ValueError: a fault of this arm"] * 2]
    assert "a fault of this arm" in describe_makers(failed)
    assert failed.find(arm="pmdn") == []
    repaired = run_experiment(make_experiment(), tmp_path)
    assert all("error" not in cell for cell in repaired.cells)


def test_a_changed_setting_is_another_cell_and_the_order_of_settings_is_not(tmp_path):
    run_experiment(make_experiment(CELLS[:1]), tmp_path)
    changed = run_experiment(make_experiment([{**CELLS[0], "seed": 7}]), tmp_path)
    assert changed.cells[0]["result"]["value"] == 49
    assert len(list((tmp_path / "cells").iterdir())) == 2
    assert cell_hash({"a": 1, "b": None}) == cell_hash({"b": None, "a": 1})


def test_no_cell_is_started_after_the_last_minute(tmp_path):
    assert run_experiment(make_experiment(), tmp_path, minutes=0).cells == []


def test_a_result_that_json_cannot_hold_is_an_error_of_its_cell(tmp_path):
    results = run_experiment(make_experiment(CELLS[:1], return_nan), tmp_path)
    assert "not JSON compliant" in results.cells[0]["error"]


def test_equal_cells_and_broken_files_are_refused(tmp_path):
    with pytest.raises(OptionError, match="must differ"):
        run_experiment(make_experiment([CELLS[0], CELLS[0]]), tmp_path)
    run_experiment(make_experiment(CELLS[:1]), tmp_path)
    cell_file(tmp_path, CELLS[0]).write_text("{")
    with pytest.raises(StateError, match="is no JSON"):
        run_experiment(make_experiment(CELLS[:1]), tmp_path)


def test_results_survive_their_json_with_what_made_them(tmp_path):
    results = run_experiment(make_experiment(), tmp_path)
    results.save(tmp_path / "squares.json")
    assert Results.load(tmp_path / "squares.json") == results
    assert results.cells[0]["release"] == deconfound.__version__
    assert results.provenance[0]["versions"]["torch"]


def test_older_results_fill_gaps_and_never_replace_a_result():
    own = Results.join([entry("pmdn", 0, 2.0)])
    older = Results.join([entry("pmdn", 0, 9.0, "0.2.0"), entry("mdn", 0, 5.0, "0.2.0")])
    joined = own.add(older)
    values = {(cell["config"]["arm"], cell["release"]): cell["result"] for cell in joined.cells}
    assert values == {("pmdn", "1.0.0"): {"value": 2.0}, ("mdn", "0.2.0"): {"value": 5.0}}
    failed = Results.join([{**entry("mdn", 0, 0.0), "error": "no"}])
    del failed.cells[0]["result"]
    assert failed.add(older).find(arm="mdn")[0]["release"] == "0.2.0"


def test_changes_that_no_commit_has_are_named(tmp_path):
    """In a repository of its own, because the state of this one is not known."""
    package = tmp_path / "src" / "deconfound_lab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(deconfound_lab.harness.__file__, package)

    def run(*command):
        done = subprocess.run(
            command,
            cwd=tmp_path / "src",
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def provenance():
        code = (
            "import json, deconfound_lab.harness as h; print(json.dumps(h.describe_provenance()))"
        )
        return json.loads(run(sys.executable, "-c", code))

    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    run("git", "init", "-q")
    run("git", "add", ".")
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Add the lab")
    clean = provenance()
    with (package / "harness.py").open("a") as file:
        file.write("# changed\n")
    assert clean["commit"] == run("git", "rev-parse", "HEAD")
    assert (clean["dirty"], provenance()["dirty"]) == (False, True)
    assert "with later changes" in describe_makers(Results.join([entry("mdn", 0, 1.0, dirty=True)]))


def test_the_command_in_the_provenance_has_no_path_of_the_machine():
    assert "/" not in describe_provenance()["command"].split()[0]


def test_the_interval_is_that_of_students_t():
    values = [0.83, 0.85, 0.84, 0.80]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    estimate = mean_interval(values)
    assert estimate.mean == pytest.approx(np.mean(values))
    assert estimate.half_width == pytest.approx((high - low) / 2)
    # Two values have an interval that is wider than any finding.
    assert mean_interval(values[:2]).half_width is None
    assert mean_interval([None, 1.0]).count == 1
    assert mean_interval([None]) is None


def test_a_page_is_made_from_the_json_alone_and_data_are_never_markup(tmp_path):
    results = Results.join([entry("pmdn", seed, value) for seed, value in enumerate((1.0, 2.0))])
    results.save(tmp_path / "squares.json")
    page = tmp_path / "squares.md"
    page.write_text("# Squares\n\nMine. <!-- begin means -->old<!-- end means --> Mine too.\n")
    stored = Results.load(tmp_path / "squares.json")
    write_page("squares", show(stored), stored, tmp_path)
    once = page.read_text()
    assert "| PMDN | 1.5 |" in once
    assert once.startswith("# Squares\n\nMine. ")
    assert once.endswith(" Mine too.\n")
    assert "old" not in once
    write_page("squares", show(stored), stored, tmp_path)
    assert page.read_text() == once
    table = pd.DataFrame({"": ["<script>", "a|b"], "x": [None, "line\nbreak"]})
    assert to_markdown(table).splitlines()[2:] == [
        "| &lt;script> | – |",
        "| a\\|b | line break |",
    ]


def test_without_a_page_one_with_all_blocks_and_figures_is_written(tmp_path):
    results = Results.join([entry("pmdn", 0, 1.0)])
    figure = Figure()
    figure.add_subplot().plot([0, 1], [0, 1])
    write_page("squares", Page("Squares", {}, {}, {"A figure": figure}), results, tmp_path)
    text = (tmp_path / "squares.md").read_text()
    assert "![A figure](squares/a-figure.png)" in text
    assert "Made with release 1.0.0 at commit abc: 1 cells" in text
    first = (tmp_path / "squares" / "a-figure.png").read_bytes()
    write_page("squares", Page("Squares", {}, {}, {"A figure": figure}), results, tmp_path)
    assert (tmp_path / "squares" / "a-figure.png").read_bytes() == first


def test_text_is_wrapped_as_in_the_documentation(tmp_path):
    long = Page("Squares", {"finding": "word " * 60})
    write_page("squares", long, Results.join([entry("pmdn", 0, 1.0)]), tmp_path)
    assert max(map(len, (tmp_path / "squares.md").read_text().splitlines())) <= 100


def test_a_block_without_content_is_refused():
    with pytest.raises(OptionError, match=r"block 'meens'.*'means'"):
        fill_blocks("<!-- begin meens --><!-- end meens -->", {"means": "1"})


def test_files_are_named_by_the_hash_of_their_cell(tmp_path):
    assert cell_file(tmp_path, CELLS[0]) == Path(tmp_path, "cells", f"{cell_hash(CELLS[0])}.json")
