"""A network as a scikit-learn estimator, but for what its labels are."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from deconfound.methods import Method, Setting, method
from deconfound.methods.none import NoMethod
from deconfound.sklearn.intake import (
    LABEL,
    Columns,
    Roles,
    Terms,
    encoded,
    features_of,
    numbers_of,
    refuse_masked,
    roles_of,
    table_of,
    weights_of,
)
from deconfound.sklearn.problem import Builder, Task, as_device, check_options, home, make_network
from deconfound.training.in_memory import train_in_memory
from deconfound.training.samples import Samples, predict_in_memory
from deconfound.training.schedule import Epoch, Schedule

# Options of a method that differ here from those of a run.
DEFAULTS: dict[str, dict[str, Any]] = {
    "pmdn-alternating": {"beta_optimizer": "sgd", "beta_lr": 0.1, "layer_norm": False}
}


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
    def _read_labels(self, y: NDArray[Any], weight: NDArray[np.float64] | None) -> Task:
        """The labels as a task; keeps what `predict` needs to turn outputs back into labels."""

    def fit(self, X: Any, y: Any, confounds: Any = None, sample_weight: Any = None) -> Self:
        """Learn to predict y from features that the confounds have left.

        Args:
            X: `(n, features)`, or `(n, …)` for images and a network of your own; a DataFrame where the constructor's
                `confounds` are names of its columns.
            y: One label per sample. Labels are kept: their effect is not credited to the confounds.
            confounds: A table with one row per sample: a DataFrame, a mapping of column name to array, or an array.
            sample_weight: How much each row counts, wherever something is fitted: in the loss, the design, the layers,
                the refit and the loss of the rows held out. `dc.balance(…).row_weight` breaks the tie of labels and
                confounds.
        """
        check_options(self)
        device = as_device(self.device)
        refuse_masked(X, "X")
        refuse_masked(y, "y")
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
        sample_weight = weights_of(sample_weight, features)
        task = self._read_labels(y, sample_weight)
        table = table_of(X, confounds, roles, len(features), "fit")
        design = self._fit_design(table, roles, task, sample_weight)
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        with _seeded(seed, device):
            self._fit_network(features, table, design, task, sample_weight, rng, seed, device)
        self._roles = roles
        self.design_ = design
        return self

    def _fit_design(
        self, table: Columns | None, roles: Roles, task: Task, weight: NDArray[np.float64] | None
    ) -> Design | None:
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
        return design.fit({**table, LABEL: task.target}, weight=weight)

    def _fit_network(
        self,
        features: NDArray[Any],
        table: Columns | None,
        design: Design | None,
        task: Task,
        weight: NDArray[np.float64] | None,
        rng: np.random.RandomState,
        seed: int,
        device: torch.device,
    ) -> None:
        values = features.astype(np.float64)
        self._center = np.average(values, axis=0, weights=weight) if self.scale else np.zeros(1)
        spread = np.sqrt(np.average((values - self._center) ** 2, axis=0, weights=weight)) if self.scale else np.ones(1)
        self._spread = np.where(spread > 1e-12 * np.maximum(abs(self._center), 1e-300), spread, 1.0)
        network = make_network(self.network, self.hidden, features.shape[1:], task.outputs, device)
        dtype = home(network)[1]
        target = torch.from_numpy(task.target).to(device)
        known = {**(table or {}), LABEL: task.target}
        samples = self._samples(features, known, design, device, dtype)
        counts = None if weight is None else torch.from_numpy(weight).to(device, dtype)
        samples = replace(samples, target=target if task.classes else target.to(dtype), weight=counts)
        made = self._method_around(network, samples, design).to(device, dtype)
        task.check_output(predict_in_memory(made, samples.part(torch.arange(min(2, len(samples))))).logits)
        fraction = self.validation_fraction if self.early_stopping else 0.0
        learned, held = (part.to(device) for part in task.hold_out(fraction, rng, weight))
        schedule = Schedule(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            patience=self.patience,
            # A table is refitted in one batch, which needs a single pass.
            eval_batch=len(samples) if samples.x.ndim == 2 else self.batch_size,
        )
        show = self._show if self.verbose else None
        validation = samples.part(held) if len(held) else None
        learning = samples.part(learned)
        result = train_in_memory(made, learning, validation, task.criterion, schedule, seed=seed, progress=show)
        self.history_: tuple[Epoch, ...] = result.history
        self.n_iter_ = len(result.history)
        self._method: Method = made.cpu()
        self.model_: nn.Module = made.model

    def _method_around(self, network: nn.Module, samples: Samples, design: Design | None) -> Method:
        if design is None or self.layer is None:
            return NoMethod(network)
        kind = method(self.layer)
        given = {**DEFAULTS.get(self.layer, {}), **(self.layer_options or {})}
        own = {name: value for name, value in given.items() if name in kind.options()}
        further = {name: value for name, value in given.items() if name not in own}
        setting = Setting(design, self.at, lambda: samples.batches(256), self.lr, attach=further)
        return kind.prepare(network, setting, **own, refit=bool(self.refit))

    def _show(self, epoch: Epoch) -> None:
        validated = "" if epoch.validation is None else f", validation {epoch.validation:.4f}"
        print(f"epoch {epoch.number + 1}/{self.epochs}: loss {epoch.training:.4f}{validated}", flush=True)

    def _outputs(self, X: Any, confounds: Any, caller: str) -> Tensor:
        """The network's outputs for these rows, in double precision on the CPU."""
        check_is_fitted(self)
        features = numbers_of(self, X, self._roles, dtype=[np.float64, np.float32], allow_nd=True)
        table = table_of(X, confounds, self._roles, len(features), caller) if self.design_ is not None else None
        samples = self._samples(features, table, self.design_, *home(self.model_))
        return predict_in_memory(self._method, samples, self.batch_size).logits.double()

    def _samples(
        self,
        features: NDArray[Any],
        table: Columns | None,
        design: Design | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Samples:
        """Standardised features and encoded confounds, where the network is and in its precision."""
        x = torch.from_numpy((features - self._center) / self._spread).to(device, dtype)
        if design is None or table is None:
            return Samples(x)
        return Samples(x, torch.from_numpy(encoded(design, table)).to(device, dtype))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers start from the seed inside, and go on as before outside."""
    cuda = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
