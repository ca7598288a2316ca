"""Methods side by side: the same folds, paired differences, and a page that only reads the results."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from deconfound.auditing import comparison_page, comparison_sentences
from deconfound.auditing.figures import Value
from deconfound.auditing.forest import Panel, forest
from deconfound.errors import DeconfoundWarning, OptionError, RunError
from deconfound.metrics import within_group_dcor_sqr
from deconfound.training.comparison import compare, entries
from deconfound.training.jobs import open_runs, plan
from tests.training import tiny

METHODS = ["none", "input-residualize"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods and two seeds on confounded rows: the config, its entries, results and audit."""
    folder = tmp_path_factory.mktemp("compared")
    config = tiny.config(
        tiny.write(folder, tiny.cohort(160)),
        folder / "runs",
        training={"epochs": 6, "lr": 0.03},
        splits={"folds": 2},
        compare={"methods": METHODS, "seeds": [0, 1], "permutations": 39, "bootstraps": 40},
    )
    found = compare(config)
    assert found.failures == ()
    return folder / "runs", config, found.results, found.audit


def test_differences_are_those_of_the_same_folds_and_seeds(compared):
    folder, _, content, _ = compared
    values = {method: [] for method in METHODS}
    for method in METHODS:
        for seed in (0, 1):
            for fold in json.loads((folder / f"{method}-seed-{seed}" / "results.json").read_text())["folds"]:
                values[method].append(fold["metrics"]["auc"])
    found = content["lines"][1]["measures"]["auc"]
    assert found["mean"] == pytest.approx(np.mean(values["input-residualize"]))
    assert found["difference"]["mean"] == pytest.approx(np.mean(values["input-residualize"]) - np.mean(values["none"]))
    assert found["sets"] == 4  # every seed draws its own two folds
    assert content["lines"][0]["measures"]["auc"]["difference"]["mean"] == 0


def test_what_is_left_is_measured_within_label_groups_of_each_test_set(compared):
    folder, config, content, _ = compared
    table = pd.read_csv(config.data.source)
    values = []
    for seed in (0, 1):
        for fold in range(2):
            said = pd.read_csv(folder / f"none-seed-{seed}" / f"fold-{fold}" / "predictions.csv")
            age = torch.tensor(table["age"].to_numpy()[said["row"]])
            groups = torch.tensor((said["dx"] == "asd").to_numpy())
            values.append(float(within_group_dcor_sqr(torch.tensor(said["logit_dx"].to_numpy()), age, groups)))
    assert content["lines"][0]["measures"]["left/outputs/age"]["mean"] == pytest.approx(np.mean(values))


def test_a_classical_regression_leaves_less_of_age_and_site_than_nothing(compared):
    _, _, content, audited = compared
    plain, cleared = (line["measures"] for line in content["lines"])
    for name, factor in (("age", 2), ("site", 1)):
        assert plain[f"left/features/{name}"]["mean"] > factor * cleared[f"left/features/{name}"]["mean"]
    assert audited.about["models"] == METHODS
    assert audited.about["fold"] == "test fold"


def test_the_page_is_made_from_the_results_alone(compared):
    folder, _, content, _ = compared
    page = comparison_page(json.loads((folder / "results.json").read_text()))
    assert page == comparison_page(content)
    for text in (
        "What each method costs, and what it leaves",
        "The audit of each method",
        "Nadeau and Bengio 2003",
        "<svg",
    ):
        assert text in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    for sentence in comparison_sentences(content):
        assert sentence.split("(")[0] in page
    auc = content["lines"][0]["measures"]["auc"]["mean"]
    assert f"{auc:.3f}" in page


def test_more_methods_do_not_repeat_finished_runs(compared):
    folder, config, _, _ = compared
    more = tiny.config(
        config.data.source,
        folder,
        training={"epochs": 6, "lr": 0.03},
        splits={"folds": 2},
        compare={"methods": [*METHODS, "batchnorm"], "seeds": [0, 1], "permutations": 39, "bootstraps": 40},
    )
    jobs, done = plan(open_runs([run for line in entries(more) for run in line.runs.values()]))
    assert (len(jobs), done) == (4, 8)
    assert {job.config.method.name for job in jobs} == {"batchnorm"}


def test_a_variant_is_trained_with_its_own_batch_size(tmp_path):
    variants = {"small": {"method": "none", "training": {"batch_size": 8}}}
    compared = {"methods": ["none", "small"], "variants": variants}
    config = tiny.config(tiny.write(tmp_path), tmp_path / "runs", compare=compared)
    sizes = [run.training.batch_size for line in entries(config) for run in line.runs.values()]
    assert sizes == [config.training.batch_size, 8]
    config = tiny.config(tiny.write(tmp_path), tmp_path / "runs", compare={**compared, "batch_sizes": [16]})
    with pytest.raises(OptionError, match=r"leave batch_size to compare\.batch_sizes where both are given; got it in"):
        entries(config)


def test_the_name_of_a_variant_is_no_path(tmp_path):
    compared = {"methods": ["lr 1/10"], "variants": {"lr 1/10": {"method": "none"}}}
    config = tiny.config(tiny.write(tmp_path), tmp_path / "runs", compare=compared)
    with pytest.raises(OptionError, match=r"names that can be folders; got 'lr 1/10'\. Leave slashes out"):
        entries(config)


def test_batch_sizes_are_lines_of_their_own(tmp_path):
    config = tiny.config(tiny.write(tmp_path), tmp_path / "runs", compare={"methods": ["none"], "batch_sizes": [8, 32]})
    lines = entries(config)
    assert [line.name for line in lines] == ["none, batch 8", "none, batch 32"]
    assert [run.training.batch_size for line in lines for run in line.runs.values()] == [8, 32]


def test_a_comparison_that_cannot_be_made_is_refused_before_training(tmp_path):
    options = {"methods": ["nonee", "mdn"], "seeds": []}
    with pytest.raises(OptionError) as caught:
        entries(tiny.config(tiny.write(tmp_path), tmp_path / "runs", compare=options))
    for said in ("got 'nonee'. Did you mean 'none'?", "compare.seeds must name at least one"):
        assert said in str(caught.value)


def test_a_run_and_a_comparison_do_not_share_a_folder(compared, tmp_path):
    _, config, _, _ = compared
    with pytest.raises(RunError, match="must be empty or hold a run; got a folder with other files"):
        tiny.fit(config)
    path = tiny.write(tmp_path)
    options = {"methods": ["none"], "permutations": 39, "bootstraps": 40}
    both = tiny.config(path, tmp_path / "run", compare=options, training={"epochs": 1})
    tiny.fit(both)
    before = {item: item.read_bytes() for item in (tmp_path / "run").rglob("*") if item.is_file()}
    with pytest.raises(RunError, match=r"got a run of `fit`, .* such as run\.folder=.*run-compare after the config"):
        compare(both)
    assert {item: item.read_bytes() for item in (tmp_path / "run").rglob("*") if item.is_file()} == before
    assert not (tmp_path / "run" / "none-seed-0").exists()
    assert compare(both, f"run.folder={tmp_path / 'compare'}").files[0].exists()


def test_the_figure_holds_every_value_and_survives_missing_ones():
    missing = Value(math.nan, math.nan, math.nan)
    panel = Panel("a < b", "note", (Value(0.1, 0.0, 0.2), Value(-0.3, math.nan, math.nan), missing))
    drawn = forest(["x", "y & z", "w"], [panel], "figure").svg
    assert drawn.count("<circle") == 2
    assert "x: a &lt; b 0.100 (0.000 to 0.200)" in drawn
    assert "y &amp; z" in drawn
    assert "nan" not in drawn
    assert "<circle" in forest(["x"], [Panel("alone", "", (Value(0.0, 0.0, 0.0),))], "no spread").svg


def test_one_method_is_compared_with_itself_under_names_of_its_own(tmp_path):
    variants = {
        "frozen": {"method": "pmdn", "options": {"gradient": "frozen"}},
        "balanced": {"method": "pmdn", "training": {"balance": "overlap"}},
    }
    path = tiny.write(tmp_path, tiny.cohort(120))
    chosen = {"methods": ["none", "pmdn", "frozen", "balanced"], "variants": variants, "seeds": [0, 1]}
    lines = {line.name: line for line in entries(tiny.config(path, tmp_path / "runs", compare=chosen))}
    assert [line.method for line in lines.values()] == ["none", "pmdn", "pmdn", "pmdn"]
    frozen, plain, balanced = (lines[name].runs[1] for name in ("frozen", "pmdn", "balanced"))
    assert frozen.method.options["pmdn"] == {"gradient": "frozen"}
    assert plain.method.options.get("pmdn", {}) == {}
    assert (balanced.training.balance, plain.training.balance) == ("overlap", "none")
    assert frozen.run.folder.endswith("frozen-seed-1")
    wrong = {"methods": ["frozen"], "variants": {"frozen": {"method": "pmnd"}, "mdn": {"method": "pmdn"}}}
    with pytest.raises(OptionError) as caught:
        entries(tiny.config(path, tmp_path / "runs", compare=wrong))
    assert "got 'pmnd'. Did you mean 'pmdn'?" in str(caught.value)
    assert "compare.variants must have names that no method has; got 'mdn'" in str(caught.value)
    unknown = {"methods": ["a"], "variants": {"a": {"method": "pmdn", "training": {"balance": "much"}}}}
    with pytest.raises(OptionError, match=r"compare\.variants must have keys of training that can be"):
        entries(tiny.config(path, tmp_path / "runs", compare=unknown))
    unknown["variants"]["a"]["training"] = {"lrr": 3}
    with pytest.raises(OptionError, match=r"training must hold known keys; got 'lrr'\. Did you mean 'lr'\?$"):
        entries(tiny.config(path, tmp_path / "runs", compare=unknown))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_variant_that_fails_does_not_take_its_method_along(tmp_path):
    path = tiny.write(tmp_path)
    chosen = {
        "methods": ["none", "mad"],
        "variants": {"mad": {"method": "none", "training": {"lr": 1e30}}},
        "seeds": [0],
        "permutations": 19,
        "bootstraps": 40,
    }
    with pytest.warns(DeconfoundWarning, match="left out of the comparison, for folds failed: mad"):
        found = compare(tiny.config(path, tmp_path / "runs", compare=chosen, training={"epochs": 3}))
    assert [line["name"] for line in found.lines] == ["none"]
    assert len(found.failures) == 2
    assert not found.sentences[0].startswith("Differences")
    chosen["methods"] = ["mad", "none"]
    with pytest.warns(DeconfoundWarning, match="left out"):
        found = compare(tiny.config(path, tmp_path / "runs", compare=chosen, training={"epochs": 3}))
    assert found.sentences[0] == "Differences are to none, for folds of mad failed."
