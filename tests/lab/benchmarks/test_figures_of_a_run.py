"""What is measured, what is claimed of it, and the page made from it."""

import gc
import json
import weakref

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound_lab.benchmarks import claims, layers, others, page
from deconfound_lab.benchmarks.experiment import run
from deconfound_lab.benchmarks.jobs import rows
from deconfound_lab.benchmarks.timing import Clock, kept_bytes, ratio
from tests.test_words import ROOT


@pytest.fixture(scope="module")
def quick():
    return run("cpu", ["checks", "passes", "steps", "host", "growth", "loading"], quick=True)


def result(device, **sections):
    jobs = {name: {"section": name, "name": name, "rows": found, "whole": True} for name, found in sections.items()}
    return {"device": device, "quick": False, "origin": {}, "jobs": jobs}


def test_a_quick_run_measures_every_method_on_every_network(quick):
    steps = rows(quick, "steps")
    assert {row["network"] for row in steps} == {"synthetic CNN", "3D ResNet", "encoder"}
    assert {"none", "batchnorm", "layernorm", "mdn", "rmdn", "pmdn", "pmdn-alternating"} == {
        row["method"] for row in steps
    }
    assert all(row["ratio"] == 1 for row in steps if row["method"] == "none")
    every = [row for section in ("passes", "steps", "host", "growth", "loading") for row in rows(quick, section)]
    assert all(row["seconds"] > 0 for row in every)
    assert quick["origin"]["packages"]["torch"]
    assert all(job["whole"] for job in quick["jobs"].values())


def test_whole_networks_keep_no_copy_of_the_features_for_pmdn(quick):
    kept = {(row["network"], row["method"]): row["kept_bytes"] - row["needed_bytes"] for row in rows(quick, "steps")}
    features = {row["network"]: row["features_bytes"] for row in rows(quick, "steps")}
    for network, size in features.items():
        assert kept[network, "pmdn"] < 0.1 * size
        assert kept[network, "batchnorm"] > 0.9 * size


def test_pmdn_keeps_no_copy_of_the_features_for_backward_where_batch_norm_does(cohort):
    torch.manual_seed(0)
    x, metadata = torch.randn(64, 512), cohort.metadata[:64].float()
    first, relu = nn.Linear(512, 512), nn.ReLU()
    plain = kept_bytes(lambda: relu(first(x)))
    layer, norm = dc.PMDN(cohort.design, 512), nn.BatchNorm1d(512)
    features = 64 * 512 * 4
    assert kept_bytes(lambda: relu(layer(first(x), metadata))) - plain < 0.05 * features
    assert kept_bytes(lambda: relu(norm(first(x)))) - plain >= features


def test_looking_at_what_is_kept_keeps_nothing():
    """A leak of every network's activations: the captured steps at the end of a run would find no memory left."""
    x, seen = torch.randn(4, requires_grad=True), []

    def forward():
        hidden = x.exp()
        seen.append(weakref.ref(hidden))
        return hidden.exp()

    assert kept_bytes(forward) == 2 * 4 * 4
    gc.collect()
    assert seen[0]() is None


def test_calls_that_are_compared_take_turns():
    order = []
    times = Clock("cpu").together({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0, 4)
    assert order == ["a", "b"] * 5
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}
    assert ratio([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]) == 2.0


def test_to_compile_each_call_runs_once():
    order = []
    Clock("cpu", once=True).together({"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order == ["a", "b"]


def test_distance_correlation_is_compared_with_packages_in_their_own_precision(monkeypatch):
    def package(x, y):
        return {"dcor": (lambda: 0.25, lambda x, y: torch.tensor(0.5 if x.dtype == torch.float64 else 0.0))}

    monkeypatch.setattr(others, "_packages", package)
    (job,) = others.metric_jobs("cpu", quick=True)
    ours, double, theirs = job.rows(Clock("cpu"))
    assert (ours["type"], double["type"], theirs["by"]) == ("float32", "float64", "dcor")
    assert theirs["gap"] == 0.25
    refuted = [claim for claim in claims.check(result("cpu", metrics=[ours, double, theirs])) if not claim.holds]
    assert "difference from dcor" in refuted[0].text


def test_claims_are_ratios_that_a_run_confirms_or_refutes():
    row = {"layer": "pmdn", "pass": "train", "type": "float32", "n": 240, "d": 262_144, "ratio": 1.3}
    where = {"network": "3D ResNet", "batch": 80, "mode": "eager"}
    steps = [
        {
            **where,
            "method": "none",
            "seconds": 1.0,
            "ratio": 1.0,
            "kept_bytes": 100,
            "needed_bytes": 100,
            "features_bytes": 50,
        },
        {**where, "method": "batchnorm", "seconds": 1.5, "ratio": 1.5},
        {
            **where,
            "method": "pmdn",
            "seconds": 1.2,
            "ratio": 1.2,
            "kept_bytes": 150,
            "needed_bytes": 100,
            "features_bytes": 50,
        },
    ]
    found = result("cuda", passes=[row], steps=steps)
    assert [(claim.found, claim.holds) for claim in claims.check(found)] == [
        (1.3, True),
        (1.2, False),
        (pytest.approx(0.8), True),
        (1.0, False),
    ]
    assert "at most 1.1; got 1.2" in claims.broken(found)[0]
    assert claims.broken({**found, "quick": True}) == []


def test_the_host_time_of_a_layer_and_of_a_step_on_tables_are_claims():
    step = {"network": "MLP 200-64-32-1", "batch": 64, "threads": 1, "method": "pmdn", "seconds": 1e-3, "ratio": 1.9}
    alone = {"layer": "pmdn", "n": 64, "d": 64, "seconds": 0.3e-3}
    found = {device: claims.check(result(device, host=[step, alone])) for device in ("cpu", "cuda")}
    assert [(claim.limit, claim.holds) for claim in found["cpu"]] == [(2.0, True), (0.25, False)]
    assert [(claim.limit, claim.holds) for claim in found["cuda"]] == [(1.5, False), (0.25, False)]
    assert found["cpu"][0].text.endswith("MLP 200-64-32-1, batch 64, 1 thread")


def test_a_layer_is_checked_against_itself_in_float64(monkeypatch):
    """On a CPU float32 and bfloat16 go the same way as float64: what is left is rounding."""
    monkeypatch.setattr(layers, "CHECKED", ((37, 101, 4),))
    for row in layers.check("cpu"):
        assert row["beta"] < 1e-5
        assert max(row["residual"], row["eval"]) < row["allowed"]


def test_cost_that_grows_faster_than_its_size_refutes_a_claim():
    def along(power):
        return [{"axis": "n", "n": n, "d": 8, "p": 4, "layers": 1, "seconds": 1e-6 * n**power} for n in (1, 10, 100)]

    assert [claim.holds for claim in claims.check(result("cpu", growth=along(1)))] == [True]
    assert [claim.holds for claim in claims.check(result("cpu", growth=along(2)))] == [False]


def test_the_page_says_plainly_which_claims_held(quick):
    steps = [
        {"network": "net", "batch": 2, "mode": "eager", "method": method, "seconds": taken, "ratio": taken}
        for method, taken in {"none": 1.0, "batchnorm": 1.2, "pmdn": 1.15}.items()
    ]
    found = {**result("cpu", steps=steps), "origin": quick["origin"], "left_out": ["growth: samples"]}
    text = page.page([found])
    assert "1 of 2 held; those that did not come first." in text
    assert "| training step with PMDN over the plain one: net, batch 2, eager | 1.1 | 1.15 | **not held** |" in text
    assert "| net | 2 | eager | 1.00 s | 1.20 | 1.15 |" in text
    assert "Not measured: growth: samples." in text
    assert "No figures of a GPU are here yet." in text


def test_all_sections_become_tables_and_growth_a_figure(quick):
    saved = json.loads(json.dumps(quick))
    text = page.page([saved])
    for title in (
        "Whole training steps", "One layer's passes", "What a layer costs the host", "Growth", "Loading and encoding",
    ):  # fmt: skip
        assert f"### {title}" in text
    assert "its figures mean nothing" in text
    drawn = page.growth([saved])
    assert drawn == page.growth([saved])
    assert all(label in drawn for label in page.AXES.values())


def test_the_page_is_the_one_made_from_the_committed_results():
    found = sorted((ROOT / "docs" / "results" / "performance").glob("*.json"))
    expected = page.page([json.loads(path.read_text()) for path in found])
    assert (ROOT / "docs" / "results" / "performance.md").read_text() == expected
