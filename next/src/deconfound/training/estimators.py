"""Estimators of scikit-learn on the same folds: the same inputs, removal, weights and outputs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.methods import Batches, Method, Setting, make_method
from deconfound.training.tasks import TaskKind

Array = NDArray[np.float64]

# Probabilities of 0 and 1, as of a forest whose trees agree, have no finite log-odds.
SMALLEST_PROBABILITY = 1e-6


class EstimatorMethod(Method):
    """An estimator of scikit-learn, perhaps after removal of confounds from its inputs.

    It is not trained by steps: `fit` fits it to all training rows. Several labels get a copy of the
    estimator each.

    Args:
        estimator: A classifier or regressor that is not fitted.
        setting: The problem.
        kind: The kind of the task.
        seed: The estimator's `random_state`, where it has one.
        method: "none" or "residualized-inputs".
        options: Options of the latter.
    """

    def __init__(
        self,
        estimator: Any,
        setting: Setting,
        *,
        kind: TaskKind,
        seed: int = 0,
        method: str = "none",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(nn.Identity(), setting)
        if method not in ("none", "residualized-inputs"):
            raise OptionError(
                f"Method {method!r} needs a network of torch, and network.name is "
                f"{type(estimator).__name__}. Write method.name: none or residualized-inputs."
            )
        needed = "predict" if kind == "numeric" else "predict_proba"
        if not hasattr(estimator, needed):
            raise OptionError(
                f"network.name {type(estimator).__name__} has no {needed}, which a label of kind "
                f"{kind!r} needs. Choose another estimator; sklearn.calibration's "
                "CalibratedClassifierCV makes probabilities of scores."
            )
        self.removal = make_method(method, nn.Identity(), setting, options or {})
        self.needs_confounds = self.removal.needs_confounds
        self.kind = kind
        if estimator.get_params().get("random_state", seed) is None:
            estimator.set_params(random_state=seed)
        self.estimators = [estimator]

    def fit(self, batches: Batches) -> None:
        """Fit the removal, then one estimator per column of the target, under the rows' weights.

        Weights become `sample_weight`; an estimator that takes none is fitted to drawn rows.
        """
        from sklearn.base import clone

        self.removal.fit(batches)
        rows = list(batches())
        x = np.concatenate([self._read(batch.x, batch.metadata) for batch in rows])
        target = torch.cat([batch.target for batch in rows]).cpu().numpy()
        weights = [batch.weight for batch in rows if batch.weight is not None]
        weight = torch.cat(weights).cpu().numpy() if weights else None
        targets = target[:, None] if target.ndim == 1 else target
        blank = self.estimators[0]
        self.estimators = [_fit(clone(blank), x, one, weight) for one in targets.T]

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return log-odds `(n, k)`, the logarithms of probabilities of classes, or numbers."""
        values = self._read(x, metadata)
        if self.kind == "numeric":
            columns = [one.predict(values) for one in self.estimators]
            return torch.as_tensor(np.stack(columns, axis=1), dtype=torch.float32)
        shares = [one.predict_proba(values) for one in self.estimators]
        shares = [np.clip(one, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY) for one in shares]
        if self.kind == "classes":
            logits = np.log(shares[0])
        else:
            logits = np.stack([np.log(one[:, 1] / one[:, 0]) for one in shares], axis=1)
        return torch.as_tensor(logits, dtype=torch.float32)

    def get_extra_state(self) -> Tensor:
        """Return the fitted estimators as pickled bytes."""
        return torch.frombuffer(bytearray(pickle.dumps(self.estimators)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over fitted estimators. Unpickling runs code, so the caller must trust the file."""
        self.estimators = pickle.loads(bytes(state.cpu().numpy()))

    def _read(self, x: Tensor, metadata: Tensor | None) -> Array:
        with torch.no_grad():
            values = self.removal(x, metadata)
        return np.asarray(values.flatten(1).cpu().numpy(), dtype=np.float64)


def _fit(estimator: Any, x: Array, target: Array, weight: Array | None) -> Any:
    from sklearn.utils.validation import has_fit_parameter

    if weight is None:
        return estimator.fit(x, target)
    if has_fit_parameter(estimator, "sample_weight"):
        return estimator.fit(x, target, sample_weight=weight)
    shares = weight.astype(np.float64) / weight.sum(dtype=np.float64)
    rows = np.random.default_rng(0).choice(len(x), len(x), p=shares)
    return estimator.fit(x[rows], target[rows])
