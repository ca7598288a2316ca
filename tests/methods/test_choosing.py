"""The weight of a method is the largest that validation rows allow, and a collapse is noticed."""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError
from deconfound.methods import method
from deconfound.methods.choosing import LADDER, HeldOutLoss, climb, held_out_loss
from deconfound.training import Samples, Schedule, bce, train_choosing_weight
from tests.methods.problem import Problem, make_network, make_problem, prepare
from tests.training import tiny


def ladder(means, gain=0.3, error=0.02):
    """A climb over trainings whose validation losses are known."""
    asked = []

    def train(options):
        asked.append(options)
        return options["weight"], HeldOutLoss(means[len(asked) - 1], error, gain, error)

    rungs = [[{"weight": weight}] for weight in (0.0, 1.0, 3.0, 10.0)]
    return climb(rungs, train), asked


def test_the_largest_weight_within_one_standard_error_of_weight_zero_is_chosen():
    found, asked = ladder([0.50, 0.51, 0.519, 0.521])
    assert found.result == 3.0
    assert found.sentence == "chose weight 3: beyond it the validation loss rises by more than a standard error"
    assert found.warning is None
    assert len(asked) == 4
    assert ladder([0.50, 0.40, 0.45, 0.52])[0].result == 10.0  # the bound is that of weight 0, not of the best
    assert ladder([0.50, 0.53, 0.40, 0.40])[0].result == 0.0  # the first that fails ends the climb


def test_a_network_that_knows_nothing_at_weight_zero_climbs_no_further():
    found, asked = ladder([0.69, 0.69, 0.69, 0.69], gain=0.01)
    assert found.result == 0.0
    assert len(asked) == 1
    assert found.sentence == "chose weight 0: the outputs tell nothing about the labels even at weight 0"


def test_a_weight_whose_outputs_are_a_constant_does_not_pass_though_its_loss_may_seem_harmless():
    def train(options):
        flat = options["weight"] > 1
        return options, HeldOutLoss(0.69 if flat else 0.68, 0.05, 0.0 if flat else 0.2, 0.02)

    found = climb([[{"weight": weight}] for weight in (0.0, 1.0, 3.0)], train)
    assert found.chosen == {"weight": 1.0}
    assert found.tried[-1].loss.collapsed
    assert found.sentence == "chose weight 1: beyond it outputs collapse"


def test_a_rung_may_be_tried_in_several_ways():
    asked = []

    def train(options):
        asked.append(options)
        return options, HeldOutLoss(0.5 + 0.1 * (options["weight"] > 0 and "warmup" not in options), 0.02, 0.3, 0.02)

    rungs = method("adversarial").rungs({}, 100)
    assert [rung[0]["weight"] for rung in rungs] == list(LADDER)
    found = climb(rungs, train)
    assert found.chosen == {"weight": 10.0, "warmup": 20}
    assert len(asked) == 1 + 2 * 4
    assert method("adversarial").rungs({"weight": 0.5}, 100) == ()
    assert method("adversarial").rungs({"warmup": 7}, 100)[1] == [{"weight": 0.3}]
    assert method("none").rungs({}, 100) == ()


def test_the_held_out_loss_is_the_weighted_mean_with_its_error_and_the_gain_over_the_mean_output():
    problem = make_problem(90)
    made = prepare("none", problem)
    weights = torch.rand(90, generator=torch.Generator().manual_seed(0)) * 2
    batches = [replace(b, weight=w) for b, w in zip(problem.batches(40), weights.split(40), strict=True)]
    found = held_out_loss(made, batches, bce)
    with torch.no_grad():
        logits, y = made(problem.x).double().numpy()[:, 0], problem.target.numpy()[:, 0]
    share = weights.double().numpy() / weights.double().numpy().sum()

    def loss(values):
        return np.logaddexp(0, values) - y * values

    own, flat = loss(logits), loss(np.full(90, logits.mean()))
    for values, mean, error in ((own, found.mean, found.error), (flat - own, found.gain, found.gain_error)):
        assert mean == pytest.approx(share @ values, rel=1e-5)
        assert error == pytest.approx(np.sqrt(share**2 @ (values - share @ values) ** 2), rel=1e-5)
    with pytest.raises(OptionError, match="a criterion must return one loss per row where a weight is chosen"):
        held_out_loss(made, batches, torch.nn.functional.binary_cross_entropy_with_logits)


def tied_problem(n, seed):
    """A label that nearly is the site: what hides the site hides the label."""
    rng = np.random.default_rng(seed)
    dx = rng.integers(0, 2, n)
    site = np.where(rng.random(n) < 0.95, dx, 1 - dx)
    table = {"site": np.array(["A", "B"])[site], "dx": dx}
    x = np.column_stack([site + 0.4 * rng.normal(size=n), dx + rng.normal(size=n), rng.normal(size=(n, 6))])
    return table, torch.from_numpy(x).float(), torch.tensor(dx).float()[:, None]


def climbed(name, options=None):
    """A climb on rows of the tied problem, and its validation rows."""
    parts = []
    for n, seed in ((200, 0), (100, 1)):
        table, x, target = tied_problem(n, seed)
        design = parts[0][0] if parts else dc.Design(confounds=["site"], keep=["dx"]).fit(table)
        parts.append((design, x, torch.from_numpy(design.encode(table)), target))
    (design, *train), (_, *validation) = parts
    problem = Problem({}, design, *train)

    def make(options):
        return method(name).prepare(make_network(), problem.setting(), **options)

    schedule, held = Schedule(epochs=6, batch_size=50, lr=0.02), Samples(*validation)
    return train_choosing_weight(make, Samples(*train), held, bce, schedule, options=options), held


@pytest.mark.parametrize("name", ["dependence", "adversarial"])
def test_a_weight_that_collapses_is_noticed_in_a_real_training(name):
    # The adversary without a limit fails at the first weight above 0 already.
    adversary = name == "adversarial"
    with pytest.warns(DeconfoundWarning, match="nothing is removed") if adversary else nullcontext():
        found, held = climbed(name, {"limit": None} if adversary else {})
    assert found.tried[0].passed
    assert not found.tried[-1].passed
    assert found.chosen["weight"] < 10
    made, _ = found.result
    chosen = held_out_loss(made, held.batches(100), bce)
    assert not chosen.collapsed
    assert chosen.mean <= found.tried[0].loss.mean + found.tried[0].loss.error


def test_a_user_hears_that_every_weight_collapses_and_nothing_is_removed(monkeypatch):
    monkeypatch.setattr("deconfound.methods.dependence.LADDER", (0.0, 10.0))
    with pytest.warns(DeconfoundWarning) as heard:
        found, held = climbed("dependence")
    assert [str(each.message) for each in heard] == [
        "chose weight 0: beyond it outputs collapse. At weight 0 nothing is removed: read it as the plain network."
    ]
    assert found.chosen == {"weight": 0.0}
    assert found.tried[1].loss.collapsed
    assert not held_out_loss(found.result[0], held.batches(100), bce).collapsed
    forced, _ = climbed("dependence", {"weight": 10.0})  # who gives a weight has no rule, and no choice to hear of
    assert held_out_loss(forced.result[0], held.batches(100), bce).collapsed
    assert forced.warning is None


def test_a_run_tells_what_was_tried_in_each_fold_and_leaves_no_file_of_it(tmp_path):
    path = tiny.write(tmp_path)
    config = tiny.config(path, tmp_path / "run", method={"name": "dependence"}, training={"epochs": 2, "lr": 0.01})
    weights = set()
    for fold in tiny.fit(config)["folds"]:
        told = json.loads((tmp_path / "run" / f"fold-{fold['fold']}" / "result.json").read_text())["chosen"]
        assert told["tried"][0]["weight"] == 0.0
        assert told["weight"] in {each["weight"] for each in told["tried"]}
        assert told["told"].startswith(f"chose weight {told['weight']:g}")
        texts = [problem["text"] for problem in fold["problems"] if problem["kind"] == "nothing removed"]
        assert len(texts) == (told["weight"] == 0)
        assert all(text.endswith("At weight 0 nothing is removed: read it as the plain network.") for text in texts)
        weights.add(told["weight"])
    assert 0 in weights
    assert not list((tmp_path / "run").rglob("*last.ckpt"))
