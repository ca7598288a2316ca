"""What each method does to a plainly confounded problem, next to the plain network that shows the confound."""

import inspect
from functools import cache

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.methods import METHODS, TrainingBatch, method
from deconfound.methods.base import Setting
from deconfound.training import bce
from tests.methods.problem import fit, make_problem, prepare, within_groups

LAYERS = {"mdn": dc.MDN, "pmdn": dc.PMDN, "rmdn": dc.RMDN}


@cache
def problems():
    people = make_problem(600)
    return people, make_problem(2000, seed=5, like=people)


@cache
def left(name, **options):
    """Trained on some people, how strongly the logit of new people follows each confound within label groups."""
    people, new = problems()
    model = prepare(name, people, **dict(options))
    fit(model, people, epochs=12, lr=3e-3)
    with torch.no_grad():
        scores = model.eval()(new.x, new.metadata)[:, 0]
    auc = (scores[new.target[:, 0] == 1][:, None] > scores[new.target[:, 0] == 0]).float().mean()
    return within_groups(scores, new), float(auc)


def test_the_plain_network_shows_the_confounds():
    found, auc = left("none")
    assert found["age"] > 0.3
    assert found["site"] > 0.25
    assert auc > 0.85


# A gradient that takes β as a constant (pmdn-alternating, rmdn) pays more of the label for the same removal.
@pytest.mark.parametrize(
    ("name", "least"),
    [("mdn", 0.8), ("pmdn", 0.8), ("input-residualize", 0.8), ("pmdn-alternating", 0.7), ("rmdn", 0.6)],
)
def test_linear_methods_remove_the_confounds_from_the_logits_of_new_people_and_keep_the_label(name, least):
    found, auc = left(name)
    assert max(found.values()) < 0.15
    assert auc > least


def test_the_adversary_hides_much_of_the_confounds():
    found, _ = left("adversarial")
    plain, _ = left("none")
    assert found["age"] < 0.5 * plain["age"]
    assert found["site"] < 0.6 * plain["site"]


def test_batchnorm_leaves_the_confounds_where_they_are():
    found, _ = left("batchnorm")
    assert found["age"] > 0.3


def test_combat_takes_the_site_and_leaves_the_age():
    found, _ = left("combat")
    plain, _ = left("none")
    assert found["site"] < 0.6 * plain["site"]
    assert found["age"] > 0.3


@pytest.mark.parametrize("name", LAYERS)
def test_the_options_of_a_layer_method_have_the_layers_defaults(name):
    theirs = inspect.signature(LAYERS[name]).parameters
    for option, default in method(name).options().items():
        if option not in ("layer_norm", "controls_only", "refit"):
            assert theirs[option].default == default


@pytest.mark.parametrize("name", [name for name in METHODS if name != "combat"])
@pytest.mark.parametrize("at", [None, ("0",)])
def test_images_train_at_flat_and_at_convolutional_places(name, at):
    people = make_problem(24)
    images = torch.randn(24, 1, 6, 6)

    def training():
        for rows in torch.arange(24).split(10):
            yield TrainingBatch(images[rows], people.metadata[rows], people.target[rows])

    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 1))
    model = method(name).prepare(network, Setting(people.design, at, training, site="site"))
    optimizer = torch.optim.Adam(model.network_parameters())
    for batch in training():
        model.before_step(batch)
        loss = model.loss(batch, bce).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(model.eval()(images, people.metadata)).all()
