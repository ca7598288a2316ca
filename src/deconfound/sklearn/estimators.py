"""The two estimators: a classifier and a regressor whose features the confounds have left."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score, r2_score  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]

from deconfound.errors import TableError
from deconfound.sklearn.base import DeconfoundedNetwork
from deconfound.sklearn.intake import refuse_masked
from deconfound.sklearn.problem import Task


class DeconfoundedClassifier(ClassifierMixin, DeconfoundedNetwork):  # type: ignore[misc]
    """A network that predicts classes from features without the confounds.

    `fit` standardises X, fits a design on the confounds with y as `keep`, attaches a layer to the network
    (`normalize`) and trains it. `predict` needs the confounds of its rows, never their labels, and raises where it
    lacks them. All that is fitted is fitted on the rows given to `fit`.

    Args:
        confounds: Which columns are confounds: names, or `Spline`, `Polynomial`, `Interaction` terms. They are looked
            for in the table given to `fit`, else in the DataFrame X, from which they are taken out: confounds
            are no features. None takes every column of the table.
        layer: "pmdn", "mdn", "rmdn", "pmdn-alternating" (β by descent of rate 0.1), "pmdn-joint" (λ = 1), or None for
            the plain network, which reads no confounds: the control of a comparison.
        at: Where the layer goes, as in `normalize`; None is every linear layer with flat features. The modules of
            the default network are `fc1`, `fc2`, …, `out`.
        layer_options: Further options of `normalize`: `{"gradient": "frozen"}`, `{"where": "before"}`.
        network: A module, which is copied and goes on from its weights; or a function or class called as
            `network(inputs, outputs)`, with the number of features (the shape of a sample if it has several axes) and
            of logits: one for two classes. None is an `MLP`.
        hidden: Sizes of the hidden layers of the MLP.
        types: See `Design`.
        missing: See `Design`.
        unseen: See `Design`.
        scale: Standardise every feature by the rows given to `fit`.
        epochs: At most so many passes over the rows.
        batch_size: Samples in a step. "mdn" wants many more than there are confound columns.
        lr: The learning rate of AdamW.
        weight_decay: Its weight decay.
        early_stopping: Hold out some of the rows, stop when their loss falls no more, and go back to its best epoch.
        validation_fraction: The share that is held out, of each class. The network does not learn from it. Rows whose
            `sample_weight` is 0 are neither held out nor counted.
        patience: How many epochs without a better loss end training.
        refit: Fit β to the rows held out, before they judge an epoch and in the end, so that no epoch is chosen for
            what it leaks; see `NormalizedModel.refit`. Without early stopping β stays as training leaves it.
        random_state: Seeds the hold-out, the weights of a network that is built, the order of the batches and dropout.
        device: Where training runs: "cpu", "cuda", or "auto" for a GPU if there is one. The fitted model comes
            back to the CPU, so that it can be unpickled anywhere; `model_.to("cuda")` predicts there.
        verbose: Print the losses of each epoch.

    Attributes:
        classes_: The labels, sorted.
        model_: The trained `NormalizedModel`, or the plain network.
        design_: The fitted design; None for a plain network.
        history_: The losses of each epoch.
        n_iter_: How many epochs were trained.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from deconfound.sklearn import DeconfoundedClassifier
        >>> rng = np.random.default_rng(0)
        >>> dx = rng.integers(0, 2, 200)
        >>> X = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
        >>> X["age"] = 60 + 8 * dx + rng.normal(0, 8, 200)  # patients are older
        >>> X["a"] += dx
        >>> X["b"] += X["age"] / 8
        >>> model = DeconfoundedClassifier(confounds=["age"], epochs=20, random_state=0).fit(X, dx)
        >>> model.predict(X.head(1)).shape
        (1,)
    """

    classes_: NDArray[Any]

    def _read_labels(self, y: NDArray[Any], weight: NDArray[np.float64] | None) -> Task:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TableError(f"y must hold at least two classes; got one class: {self.classes_.tolist()[0]!r}.")
        return Task(codes.astype(np.int64), len(self.classes_))

    def decision_function(self, X: Any, confounds: Any = None) -> NDArray[np.float64]:
        """Logits: `(n,)` for two classes, positive for the second; else `(n, classes)`."""
        return self._logits(X, confounds, "decision_function").numpy()

    def predict_proba(self, X: Any, confounds: Any = None) -> NDArray[np.float64]:
        """The probability of each class, `(n, classes)`."""
        found = self._logits(X, confounds, "predict_proba")
        if found.ndim == 2:
            return found.softmax(1).numpy()
        return torch.stack([torch.sigmoid(-found), torch.sigmoid(found)], dim=1).numpy()

    def predict(self, X: Any, confounds: Any = None) -> NDArray[Any]:
        """The most probable class of each row."""
        found = self._logits(X, confounds, "predict").numpy()
        codes = (found > 0).astype(np.intp) if found.ndim == 1 else found.argmax(1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, confounds: Any = None) -> float:
        """Accuracy."""
        refuse_masked(y, "y")
        refuse_masked(sample_weight, "sample_weight")
        return float(accuracy_score(y, self.predict(X, confounds=confounds), sample_weight=sample_weight))

    def _logits(self, X: Any, confounds: Any, caller: str) -> torch.Tensor:
        """`(n,)` for two classes, positive for the second; `(n, classes)` for more."""
        output = self._outputs(X, confounds, caller)
        if len(self.classes_) > 2:
            return output
        return output.reshape(-1) if output.ndim == 1 or output.shape[1] == 1 else output[:, 1] - output[:, 0]


class DeconfoundedRegressor(RegressorMixin, DeconfoundedNetwork):  # type: ignore[misc]
    """A network that predicts a number from features without the confounds.

    y is standardised inside and enters the design as `keep`. The options are those of `DeconfoundedClassifier`.

    Example:
        >>> import numpy as np
        >>> from deconfound.sklearn import DeconfoundedRegressor
        >>> rng = np.random.default_rng(0)
        >>> table = {"age": rng.normal(60, 10, 300), "site": rng.choice(["A", "B"], 300)}
        >>> score = table["age"] / 10 + rng.normal(size=300)
        >>> X = np.column_stack([score + rng.normal(size=300), table["age"], rng.normal(size=300)])
        >>> model = DeconfoundedRegressor(epochs=20, random_state=0).fit(X, score, confounds=table)
        >>> model.predict(X[:1], confounds={"age": [71.0], "site": ["B"]}).shape
        (1,)
    """

    def _read_labels(self, y: NDArray[Any], weight: NDArray[np.float64] | None) -> Task:
        values = np.asarray(y, dtype=np.float64)
        self._label_mean = float(np.average(values, weights=weight))
        self._label_sd = float(np.sqrt(np.average((values - self._label_mean) ** 2, weights=weight))) or 1.0
        return Task((values - self._label_mean) / self._label_sd)

    def predict(self, X: Any, confounds: Any = None) -> NDArray[np.float64]:
        """The expected y of each row."""
        found: NDArray[np.float64] = self._outputs(X, confounds, "predict").reshape(-1).numpy()
        return found * self._label_sd + self._label_mean

    def score(self, X: Any, y: Any, sample_weight: Any = None, confounds: Any = None) -> float:
        """R², the share of the variance of y that is predicted."""
        refuse_masked(y, "y")
        refuse_masked(sample_weight, "sample_weight")
        return float(r2_score(y, self.predict(X, confounds=confounds), sample_weight=sample_weight))
