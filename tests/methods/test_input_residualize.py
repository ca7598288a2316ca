"""Input residualisation is ordinary least squares on the training rows, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from deconfound.errors import ShapeError
from deconfound.methods import Setting, TrainingBatch, method
from tests.methods.problem import make_network, make_problem, prepare


@pytest.fixture(scope="module")
def problem():
    return make_problem(200)


def columns(table, keep=True):
    """In the user's own units, categories as 0/1 columns: nothing of the design."""
    parts = [table["age"], table["sex"] == "M", table["site"] == "B", table["site"] == "C"]
    return np.column_stack([*parts, *([table["dx"]] if keep else [])]).astype(float)


def expected_residual(problem, keep=True):
    regressors, x = columns(problem.table, keep), problem.x.double().numpy()
    fitted = np.linalg.lstsq(np.column_stack([np.ones(len(x)), regressors]), x, rcond=None)[0]
    confounds = regressors[:, :4]
    return x - (confounds - confounds.mean(0)) @ fitted[1:5]


def test_it_is_ordinary_least_squares_less_the_confounds_part(problem):
    model = prepare("input-residualize", problem)
    residual = model.residual(problem.x, problem.metadata)
    np.testing.assert_allclose(residual.numpy(), expected_residual(problem), atol=2e-5)
    assert np.abs(expected_residual(problem) - expected_residual(problem, keep=False)).max() > 0.1  # keep matters


def test_residuals_have_no_linear_trace_of_the_confounds_beside_keep(problem):
    model = prepare("input-residualize", problem)
    regressors = np.column_stack([np.ones(len(problem)), columns(problem.table)])

    def strongest(x):
        return np.abs(np.linalg.lstsq(regressors, x.numpy(), rcond=None)[0][2:5]).max()

    assert strongest(problem.x) > 0.5
    assert strongest(model.residual(problem.x, problem.metadata)) < 1e-4


def test_rows_outside_the_training_set_change_nothing(problem):
    def fitted(source):
        def training():
            for rows in torch.arange(100).split(30):
                yield TrainingBatch(source.x[rows], source.metadata[rows], source.target[rows])

        return method("input-residualize").prepare(make_network(), Setting(problem.design, None, training)).beta

    late = (torch.arange(200) >= 100)[:, None]
    garbled = replace(problem, x=torch.where(late, 1e3 * problem.x.flip(0), problem.x))
    assert torch.equal(fitted(problem), fitted(garbled))
    early = replace(problem, x=torch.where(late, problem.x, 1e3 * problem.x.flip(0)))
    assert not torch.equal(fitted(problem), fitted(early))


def test_the_batches_of_the_fit_do_not_matter(problem):
    whole, single = (
        method("input-residualize").prepare(make_network(), problem.setting(size=size)).beta for size in (200, 1)
    )
    torch.testing.assert_close(whole, single, atol=1e-6, rtol=1e-6)


def test_images_keep_their_shape(problem):
    images = problem.x.reshape(200, 1, 2, 4)
    network = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(6, 1))
    model = prepare("input-residualize", replace(problem, x=images), network)
    flat = prepare("input-residualize", problem)
    assert model.beta.shape == (4, 1, 2, 4)
    ours = model.residual(images, problem.metadata)
    torch.testing.assert_close(ours.flatten(1), flat.residual(problem.x, problem.metadata))


def test_without_metadata_in_eval_the_person_is_the_mean_one(problem):
    model = prepare("input-residualize", problem).eval()
    assert torch.equal(model(problem.x), model.model(problem.x))
    with pytest.raises(ShapeError, match="metadata must be given in training; got None"):
        model.train()(problem.x)


def test_codes_are_not_regressed(problem):
    tokens = replace(problem, x=torch.ones(200, 8, dtype=torch.int64))
    with pytest.raises(
        ShapeError, match=r"inputs of method 'input-residualize' must be floating point; got torch\.int64"
    ):
        prepare("input-residualize", tokens)


def test_unknown_labels_in_the_training_rows_are_refused(problem):
    blind = problem.metadata.clone()
    blind[3, -1] = torch.nan
    with pytest.raises(ShapeError, match="training metadata must hold every keep column; got NaN in dx"):
        prepare("input-residualize", replace(problem, metadata=blind))
