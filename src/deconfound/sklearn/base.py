"""A network as a scikit-learn estimator, but for what its labels are."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_regressor  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_is_fitted,
    check_X_y,
    validate_data,
)
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.design.codecs import Kind, Policy
from deconfound.errors import DeconfoundWarning
from deconfound.sklearn.intake import LABEL, Columns, Roles, Terms, features_of, numbers_of, roles_of, table_of
from deconfound.sklearn.loop import Epoch, Rows, Schedule, outputs, train
from deconfound.sklearn.network import Builder, home, make_network, precision
from deconfound.sklearn.options import as_device, check_options
from deconfound.sklearn.tasks import Task, hold_out
from deconfound.surgery import normalize


class DeconfoundedNetwork(BaseEstimator, ABC):  # type: ignore[misc]
    """Base of `DeconfoundedClassifier`, where the options are described, and `DeconfoundedRegressor`."""

    def __init__(
        self,
        confounds: Terms | None = None,
        *,
        layer: str | None = "pmdn",
        at: Any = None,
        layer_options: Mapping[str, Any] | None = None,
        network: nn.Module | Builder | None = None,
        hidden: Sequence[int] = (32,),
        types: Mapping[str, Kind] | None = None,
        missing: Policy = "error",
        unseen: Policy = "error",
        scale: bool = True,
        epochs: int = 200,
        batch_size: int = 64,
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        patience: int = 20,
        refit: bool = True,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.confounds = confounds
        self.layer = layer
        self.at = at
        self.layer_options = layer_options
        self.network = network
        self.hidden = hidden
        self.types = types
        self.missing = missing
        self.unseen = unseen
        self.scale = scale
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.refit = refit
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @abstractmethod
    def _read_labels(self, y: NDArray[Any]) -> Task:
        """The labels as a task; keeps what `predict` needs to turn outputs back into labels."""

    def fit(self, X: Any, y: Any, confounds: Any = None) -> Self:
        """Learn to predict y from features that the confounds have left.

        Args:
            X: `(n, features)`, or `(n, …)` for images and a network of your own; a DataFrame where the constructor's
                `confounds` are names of its columns.
            y: One label per sample. Labels are kept: their effect is not credited to the confounds.
            confounds: A table with one row per sample: a DataFrame, a mapping of column name to array, or an array.
        """
        check_options(self)
        device = as_device(self.device)
        roles = roles_of(X, self.confounds, confounds)
        validate_data(self, X, skip_check_array=True)
        features, y = check_X_y(
            features_of(X, roles),
            y,
            dtype=[np.float64, np.float32],
            allow_nd=True,
            y_numeric=is_regressor(self),
            estimator=self,
        )
        task = self._read_labels(y)
        table = table_of(X, confounds, roles, len(features), "fit")
        design = self._fit_design(table, roles, task)
        rng = check_random_state(self.random_state)
        with _seeded(int(rng.randint(2**31 - 1)), device):
            self._fit_network(features, table, design, task, rng, device)
        self._roles = roles
        self.design_ = design
        return self

    def _fit_design(self, table: Columns | None, roles: Roles, task: Task) -> Design | None:
        if self.layer is None:
            return None
        if table is None:
            warnings.warn(
                f"{type(self).__name__} was fitted without confounds and is a plain network. Name columns of X in "
                "confounds, pass fit(X, y, confounds=table), or say layer=None.",
                DeconfoundWarning,
                stacklevel=3,
            )
            return None
        types: dict[str, Kind] = {**(self.types or {}), LABEL: task.kind}
        design = Design(roles.confounds, [LABEL], types=types, missing=self.missing, unseen=self.unseen)
        return design.fit({**table, LABEL: task.kept})

    def _fit_network(
        self,
        features: NDArray[Any],
        table: Columns | None,
        design: Design | None,
        task: Task,
        rng: np.random.RandomState,
        device: torch.device,
    ) -> None:
        self._center = features.mean(0, dtype=np.float64) if self.scale else np.zeros(1)
        spread = features.std(0, dtype=np.float64) if self.scale else np.ones(1)
        self._spread = np.where(spread > 1e-12 * np.maximum(abs(self._center), 1e-300), spread, 1.0)
        network = make_network(self.network, self.hidden, features.shape[1:], task.outputs, device)
        dtype = precision(network)
        x = self._scaled(features, dtype, device)
        metadata, model = None, network
        if design is not None and table is not None and self.layer is not None:
            encoded = design.encode({**table, LABEL: task.kept}, np.float64)
            metadata = torch.from_numpy(encoded).to(device, dtype)
            options = dict(self.layer_options or {})
            model = normalize(network, design, self.at, self.layer, example=x[:2], **options).to(device, dtype)
        task.check_output(outputs(model, x[:2], None if metadata is None else metadata[:2], 2))
        rows = Rows(x, metadata, torch.from_numpy(task.target).to(device))
        fraction = self.validation_fraction if self.early_stopping else 0.0
        learned, held = (part.to(device) for part in hold_out(task, fraction, rng))
        validation = rows.part(held) if len(held) else None
        schedule = Schedule(
            self.epochs,
            self.batch_size,
            self.lr,
            self.weight_decay,
            self.patience,
            bool(self.refit),
            bool(self.verbose),
        )
        self.history_: tuple[Epoch, ...] = train(model, rows.part(learned), validation, task.criterion, schedule)
        self.model_: nn.Module = model.cpu()

    def _outputs(self, X: Any, confounds: Any, caller: str) -> Tensor:
        """The network's outputs for these rows, in double precision on the CPU."""
        check_is_fitted(self)
        features = numbers_of(self, X, self._roles, dtype=[np.float64, np.float32], allow_nd=True)
        dtype, device = precision(self.model_), home(self.model_)
        metadata = None
        if self.design_ is not None:
            table = table_of(X, confounds, self._roles, len(features), caller)
            assert table is not None
            metadata = torch.from_numpy(self.design_.encode(table, np.float64)).to(device, dtype)
        x = self._scaled(features, dtype, device)
        return outputs(self.model_, x, metadata, self.batch_size).double().cpu()

    def _scaled(self, features: NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.from_numpy((features - self._center) / self._spread).to(device, dtype)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers start from the seed inside, and go on as before outside."""
    cuda = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
