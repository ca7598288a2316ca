"""The covariate method trains an additive head and averages it out at inference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from deconfound.errors import OptionError
from deconfound.methods.covariate import marginal
from tests.methods.problem import fit, make_network, make_problem, prepare


@pytest.fixture(scope="module")
def problem():
    return make_problem(90)


def with_target(problem, target):
    return replace(problem, target=target)


def naive(model, problem, predict):
    """One training person's confounds after the other."""
    total = 0.0
    for person in range(len(problem)):
        offset = problem.metadata[person, :4] @ model.head
        total = total + predict(model.model(problem.x) + offset)
    return (total / len(problem)).detach()


def test_training_adds_the_confounds_to_the_logits(problem):
    model = prepare("covariate", problem)
    with torch.no_grad():
        model.head.normal_()
    expected = model.model(problem.x) + problem.metadata[:, :4] @ model.head
    torch.testing.assert_close(model(problem.x, problem.metadata), expected)


def test_sigmoid_predictions_are_averaged_over_the_training_rows(problem):
    model = prepare("covariate", problem)
    fit(model, problem, epochs=10, lr=0.1)
    assert model.head.abs().max() > 0.3
    probabilities = torch.sigmoid(model.eval()(problem.x)).detach()
    torch.testing.assert_close(probabilities, naive(model, problem, torch.sigmoid))
    own = torch.sigmoid(model.train()(problem.x, problem.metadata))
    assert not torch.allclose(probabilities, own, atol=0.05)  # the control: a person's own confounds differ


def test_softmax_predictions_are_averaged_over_the_training_rows(problem):
    classes = with_target(problem, torch.from_numpy((problem.table["site"] == "B") + problem.table["dx"]))
    model = prepare("covariate", classes, make_network(8, 3))
    fit(model, classes, epochs=10, lr=0.1, criterion=cross_entropy)
    assert model.link == "softmax"
    probabilities = model.eval()(problem.x).softmax(1).detach()
    torch.testing.assert_close(probabilities, naive(model, problem, lambda z: z.softmax(1)))


def test_quantities_are_averaged_as_they_are(problem):
    quantity = with_target(problem, torch.from_numpy(problem.table["age"]).float()[:, None] / 10)
    model = prepare("covariate", quantity)
    fit(model, quantity, epochs=10, lr=0.1, criterion=mse_loss)
    assert model.link == "identity"
    torch.testing.assert_close(model.eval()(problem.x).detach(), naive(model, problem, lambda z: z))


def test_several_labels_are_averaged_each_by_itself(problem):
    labels = with_target(problem, torch.cat([problem.target, 1 - problem.target], 1))
    model = prepare("covariate", labels, make_network(8, 2))
    fit(model, labels, epochs=10, lr=0.1)
    assert model.link == "sigmoid"
    torch.testing.assert_close(torch.sigmoid(model.eval()(problem.x)).detach(), naive(model, problem, torch.sigmoid))


def test_the_link_travels_in_the_checkpoint_and_can_be_given(problem):
    model = prepare("covariate", problem, link="identity")
    fresh = prepare("covariate", problem)
    assert (model.link, fresh.link) == ("identity", "sigmoid")
    fresh.load_state_dict(model.state_dict())
    assert fresh.link == "identity"


def test_extreme_logits_stay_finite():
    logits, offsets = torch.tensor([[-500.0], [500.0]]), torch.tensor([[3.0], [-3.0]])
    ours = marginal(logits, offsets, torch.tensor([0.5, 0.5]), "sigmoid")
    assert torch.isfinite(ours).all()
    assert ours[0] < -400
    assert ours[1] > 400


def test_before_training_the_network_answers_alone(problem):
    model = prepare("covariate", problem).eval()
    torch.testing.assert_close(model(problem.x), model.model(problem.x))


def test_a_sample_stands_for_many_rows(problem):
    model = prepare("covariate", problem, samples=16)
    assert model.sample.shape == (16, 4)
    torch.testing.assert_close(model.share, torch.full((16,), 1 / 16))
    known = {tuple(row) for row in problem.metadata[:, :4].tolist()}
    drawn = {tuple(row) for row in model.sample.tolist()}
    assert drawn <= known
    assert len(drawn) == 16


def test_what_the_confounds_explain_is_explained_by_the_head(problem):
    older = with_target(problem, torch.from_numpy(problem.table["age"] > 70).float()[:, None])
    noise = replace(older, x=torch.randn_like(problem.x))
    model = prepare("covariate", noise)
    fit(model, noise, epochs=40, lr=0.03)
    by_head = problem.metadata[:, :4] @ model.head
    assert np.corrcoef(by_head[:, 0].detach(), problem.table["age"])[0, 1] > 0.8


def test_flat_logits_keep_their_shape(problem):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, x):
            return self.linear(x).squeeze(1)

    model = prepare("covariate", with_target(problem, problem.target[:, 0]), Flat())
    assert model(problem.x, problem.metadata).shape == (90,)
    assert model.eval()(problem.x).shape == (90,)
    assert model.link == "sigmoid"


def test_options_that_cannot_be_are_refused(problem):
    with pytest.raises(OptionError, match="link must be one of sigmoid, softmax, identity; got 'probit'"):
        prepare("covariate", problem, link="probit")
    with pytest.raises(OptionError, match="samples must be a whole number of at least 1; got 0"):
        prepare("covariate", problem, samples=0)
