"""Networks as scikit-learn estimators: one training without folds, for pipelines and searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    FLOAT_DTYPES,
    _check_y,
    check_array,
    check_is_fitted,
    validate_data,
)

from deconfound.data import open_samples
from deconfound.design import source_columns
from deconfound.errors import TableError
from deconfound.sklearn.residualizer import LABEL
from deconfound.sklearn.tables import (
    Columns,
    ColumnTerm,
    column_names,
    columns_beside,
    columns_of,
    is_frame,
    name_types,
    split_columns,
)
from deconfound.table import Kind, Table
from deconfound.training import FittedModel, Recipe, Schedule, Task, fit_model, split_folds

Floats = NDArray[np.float64]

FEWEST_ROWS = 4


class _DeconfoundedNetwork(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share. Subclasses define the task of y."""

    def __init__(  # noqa: PLR0913
        self,
        confounds: Sequence[ColumnTerm] | None = None,
        *,
        network: str = "mlp",
        network_options: Mapping[str, Any] | None = None,
        method: str = "pmdn",
        at: Any = None,
        method_options: Mapping[str, Any] | None = None,
        balance: Literal["overlap", "entropy"] | None = None,
        types: Mapping[Any, Kind] | None = None,
        unseen: Literal["error", "mean"] = "error",
        epochs: int = 50,
        batch_size: int = 64,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        patience: int | None = 10,
        validation: float = 0.15,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.confounds = confounds
        self.network = network
        self.network_options = network_options
        self.method = method
        self.at = at
        self.method_options = method_options
        self.balance = balance
        self.types = types
        self.unseen = unseen
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation = validation
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, task: Task, confounds: Table | None) -> Self:
        """Train on X `(n, columns)`, with the values of y as they stand in `task`."""
        roles = split_columns(X, confounds, self.confounds, None)
        if LABEL in roles.columns:
            raise TableError(
                f"A confound has the name {LABEL!r}, which stands for the labels of fit(X, y). "
                "Rename the column."
            )
        if len(y) < FEWEST_ROWS:
            raise TableError(
                f"fit needs {FEWEST_ROWS} rows or more, some of which are held out; got n_samples="
                f"{len(y)}. Add rows."
            )
        self._features = roles.features
        self._terms = list(roles.confounds)
        self._has_confounds_in_x = confounds is None
        seed = int(check_random_state(self.random_state).randint(2**31))
        rows = {name: np.asarray(values) for name, values in roles.columns.items()}
        table = pd.DataFrame({**rows, LABEL: y})
        kind: Kind = "numeric" if task.kind == "numeric" else "categorical"
        types = {**name_types(self.types, column_names(X)), LABEL: kind}
        # The test part of this division is what a caller would hold out: here, validation rows.
        fold = split_folds(
            table, task, kind="holdout", test=self.validation, validation=self.validation, seed=seed
        )[0]
        recipe = Recipe(
            roles.confounds,
            types=types,
            unseen=self.unseen,
            network=self.network,
            network_options=self.network_options or {},
            method=self.method,
            at=self.at,
            method_options=self.method_options or {},
            balance=self.balance,
            schedule=Schedule(
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=self.weight_decay,
                patience=self.patience,
            ),
        )
        samples = open_samples(self._read_features(X), table)
        training = np.sort(np.concatenate([fold.train, fold.validation]))
        self.model_: FittedModel = fit_model(samples, task, training, fold.test, recipe, seed=seed)
        self.n_iter_ = len(self.model_.history)
        return self

    def _outputs(self, X: Any, confounds: Table | None) -> Floats:
        """Return logits or numbers, shape `(n, k)`."""
        check_is_fitted(self)
        X = self._check(X, reset=False)
        columns: Columns = {}
        if self.model_.needed_columns:
            wanted = source_columns(self._terms)
            if self._has_confounds_in_x:
                columns = columns_of(X, wanted)
            elif confounds is None:
                raise TableError(
                    "predict was given no confounds, and fit had a table of them. Write "
                    "predict(X, confounds=table), or make the confounds columns of X."
                )
            else:
                columns = columns_beside(X, confounds, wanted)
        table = pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})
        return self.model_.outputs(self._read_features(X), table).astype(np.float64)

    def _check(self, X: Any, reset: bool) -> Any:
        """Return X as a table or as a two-dimensional array, with the columns of `fit`."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        must_be_finite = self.unseen == "error"
        return validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=must_be_finite)

    def _read_features(self, X: Any) -> NDArray[np.float32]:
        columns = _safe_indexing(X, self._features, axis=1)
        checked = check_array(columns, dtype=FLOAT_DTYPES, estimator=self, input_name="X")
        features: NDArray[np.float32] = checked.astype(np.float32)
        return features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True  # Confounds may be levels such as names of sites.
        tags.non_deterministic = self.random_state is None
        return tags


class DeconfoundedClassifier(ClassifierMixin, _DeconfoundedNetwork):  # type: ignore[misc]
    """A network that classifies X without the confounds, as a scikit-learn estimator.

    A share of the rows of `fit` is held out: it chooses the best epoch, and coefficients of
    confounds are refitted to it. `predict` reads the confounds of new rows if the method needs
    them, and never labels.

    Args:
        confounds: Column names, `Spline` or `Interaction` terms, or numbers of columns of X, which
            are then taken out of it. None takes all columns of the table beside X.
        network: "mlp", or "package.module:callable".
        network_options: Options of the network, such as `{"hidden": [64, 32]}`.
        method: "none", "mdn", "rmdn", "pmdn", "adversarial" or "residualized-inputs".
        at: The modules that the method attaches to; None takes the network's default.
        method_options: Options of the method.
        balance: "overlap" or "entropy" draws training rows by weights under which labels and
            confounds are independent. None takes each row once.
        types: Kinds of confounds (by name or number), "numeric" or "categorical".
        unseen: "error" refuses an unseen level or a missing confound. "mean" replaces it by the
            mean of the rows of `fit`.
        epochs: The largest number of passes over the rows.
        batch_size: The largest number of rows of a batch.
        lr: The learning rate.
        weight_decay: The weight decay passed to the optimiser.
        patience: Training stops after this number of epochs without a better validation loss. None
            trains for all epochs.
        validation: The share of held-out rows.
        random_state: The seed of the held-out rows, the first weights and the order of rows.

    Attributes:
        classes_: The classes.
        model_: The `deconfound.training.FittedModel`.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X.

    Example:
        >>> import deconfound as dc
        >>> from deconfound.sklearn import DeconfoundedClassifier
        >>> features, ill, people = dc.example("heart")
        >>> X, y = features.numpy(), ill.numpy()
        >>> confounds = people[["age", "sex", "hospital"]]
        >>> classifier = DeconfoundedClassifier(epochs=3, random_state=0)
        >>> classifier.fit(X, y, confounds=confounds).predict_proba(X, confounds=confounds).shape
        (920, 2)
    """

    def fit(self, X: Any, y: ArrayLike, confounds: Table | None = None) -> Self:
        """Train the network.

        Args:
            X: Features, and the confounds if they are columns of X; shape `(n, columns)`.
            y: Classes, shape `(n,)`.
            confounds: A table with one row for each row of X.
        """
        X = self._check(X, reset=True)
        labels = _check_y(y, estimator=self)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        levels = tuple(map(str, range(len(self.classes_))))
        if len(levels) < 2:
            raise TableError(
                f"y must have two classes or more; got 1 class: {self.classes_[0]!r}. "
                "Add rows of another class."
            )
        task = Task("binary" if len(levels) == 2 else "classes", (LABEL,), (levels,))
        return self._fit(X, codes.astype(str), task, confounds)

    def decision_function(self, X: Any, confounds: Table | None = None) -> Floats:
        """Return the log-odds of the second class, shape `(n,)`, or logits `(n, classes)`."""
        logits = self._outputs(X, confounds)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def predict_proba(self, X: Any, confounds: Table | None = None) -> Floats:
        """Return the probability of each class, shape `(n, classes)`."""
        logits = self._outputs(X, confounds)
        if logits.shape[1] == 1:
            # The log-odds of two classes are the difference of their logits.
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        return np.asarray(softmax(logits, axis=1))

    def predict(self, X: Any, confounds: Table | None = None) -> NDArray[Any]:
        """Return the most probable class of each row, shape `(n,)`."""
        most_probable = self.predict_proba(X, confounds).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[most_probable]
        return classes

    def score(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        confounds: Table | None = None,
    ) -> float:
        """Return the accuracy."""
        predicted = self.predict(X, confounds)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))


class DeconfoundedRegressor(RegressorMixin, _DeconfoundedNetwork):  # type: ignore[misc]
    """A network that predicts a number from X without the confounds, as a scikit-learn estimator.

    The arguments are those of `DeconfoundedClassifier`.

    Attributes:
        model_: The `deconfound.training.FittedModel`.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X.

    Example:
        >>> import deconfound as dc
        >>> from deconfound.sklearn import DeconfoundedRegressor
        >>> features, ill, people = dc.example("heart")
        >>> regressor = DeconfoundedRegressor(["hospital"], epochs=3, random_state=0)
        >>> X = people[["hospital"]].assign(rate=features[:, 2].numpy(), st=features[:, 3].numpy())
        >>> regressor.fit(X, people["age"]).predict(X[:2]).shape
        (2,)
    """

    def fit(self, X: Any, y: ArrayLike, confounds: Table | None = None) -> Self:
        """Train the network.

        Args:
            X: Features, and the confounds if they are columns of X; shape `(n, columns)`.
            y: Numbers, shape `(n,)`.
            confounds: A table with one row for each row of X.
        """
        X = self._check(X, reset=True)
        numbers = _check_y(y, y_numeric=True, estimator=self).astype(np.float64)
        return self._fit(X, numbers, Task("numeric", (LABEL,), ((),)), confounds)

    def predict(self, X: Any, confounds: Table | None = None) -> Floats:
        """Return the predicted numbers, shape `(n,)`."""
        return self._outputs(X, confounds)[:, 0]

    def score(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        confounds: Table | None = None,
    ) -> float:
        """Return R²."""
        return float(r2_score(y, self.predict(X, confounds), sample_weight=sample_weight))
