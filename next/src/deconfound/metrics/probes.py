"""Probes: how well simple models read a confound from the outputs of a network.

A probe describes. Whether a confound is left is tested by `leak`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deconfound.errors import OptionError
from deconfound.metrics.arrays import Array, as_codes, as_matrix, as_vector, check_lengths
from deconfound.metrics.sampled_scores import (
    RowNumbers,
    auc_within_cells,
    mean_of_classes,
    r_squared_of_samples,
)

# The ridge penalty of the linear probe, as a share of the mean eigenvalue of XᵀX.
PENALTY = 0.1
# The nonlinear probe compares each row with this many training rows.
LANDMARKS = 200


@dataclass(frozen=True)
class ProbeScore:
    """How well probes read a confound on people whom they have not seen.

    For levels the scores are AUCs of each level against the rest, averaged over levels and folds:
    .5 is chance. For numbers they are R² over all folds together: 0 or less is chance.

    Attributes:
        linear: The score of a ridge regression.
        nonlinear: The score of a ridge regression on Gaussian kernels.
    """

    linear: float
    nonlinear: float


def probe(
    outputs: ArrayLike,
    target: Sequence[Any] | ArrayLike,
    *,
    categorical: bool,
    person: ArrayLike | None = None,
    folds: int = 5,
    seed: int = 0,
) -> ProbeScore:
    """Cross-validate a linear and a nonlinear probe for a confound.

    Args:
        outputs: Features or scores, shape `(n,)` or `(n, d)`.
        target: The confound: levels, or numbers, shape `(n,)`.
        categorical: True if the target holds levels, False if it holds numbers.
        person: Person of each row, shape `(n,)`. All rows of a person are in one fold. None if each
            row is another person.
        folds: Number of folds, at least 2.
        seed: Seed of the folds and of the nonlinear probe.

    Example:
        One site has its outputs on either side of the other's.

        >>> import numpy as np
        >>> outputs = np.linspace(-1, 1, 200)
        >>> site = np.where(abs(outputs) > 0.5, "A", "B")
        >>> score = probe(outputs, site, categorical=True)
        >>> score.linear < 0.6, score.nonlinear > 0.99
        (True, True)
    """
    x = as_matrix(outputs, "outputs")
    if categorical:
        codes, names = as_codes(target, "target")
        wanted = np.eye(len(names))[codes]
    else:
        wanted = as_vector(target, "target")[:, None]
    people = np.arange(len(x)) if person is None else as_codes(person, "person")[0]
    check_lengths(outputs=x, target=wanted, person=people)
    count = len(np.unique(people))
    if not isinstance(folds, int | np.integer) or not 2 <= folds <= count:
        raise OptionError(
            f"`folds` cannot be {folds!r} for {count} people. "
            f"Pass a whole number from 2 to {count}."
        )
    splitter = GroupKFold(folds, shuffle=True, random_state=seed)
    splits = list(splitter.split(x, groups=people))
    predictions = [np.empty_like(wanted), np.empty_like(wanted)]
    for train, test in splits:
        for predicted, model in zip(predictions, _models(x[train], seed), strict=True):
            fitted = model.fit(x[train], wanted[train])
            predicted[test] = fitted.predict(x[test]).reshape(len(test), -1)
    test_folds = [test for _, test in splits]
    scores = [_score(predicted, wanted, test_folds, categorical) for predicted in predictions]
    return ProbeScore(*scores)


def _models(outputs: Array, seed: int) -> tuple[Any, Any]:
    """Return the linear and the nonlinear probe for the outputs of the training rows, `(n, d)`."""
    n, d = outputs.shape
    # Standardised outputs have n d as the trace of XᵀX, and min(n, d) eigenvalues.
    linear = make_pipeline(StandardScaler(), Ridge(PENALTY * max(n, d)))
    kernels = Nystroem(gamma=1 / (2 * d), n_components=min(LANDMARKS, n), random_state=seed)
    return linear, make_pipeline(StandardScaler(), kernels, RidgeCV(np.logspace(-3, 3, 7)))


def _score(
    predicted: Array, wanted: Array, folds: Sequence[RowNumbers], categorical: bool
) -> float:
    weights = np.ones((1, len(wanted)))
    if not categorical:
        return float(r_squared_of_samples(predicted[:, 0], wanted[:, 0], weights)[0])
    pairs = zip(predicted.T, wanted.T == 1, strict=True)
    return float(mean_of_classes([auc_within_cells(*pair, folds, weights) for pair in pairs])[0])
