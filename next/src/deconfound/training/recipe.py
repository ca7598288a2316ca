"""How one fold is trained: everything that two variants of a comparison may do differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deconfound.design import Term
from deconfound.table import Kind
from deconfound.training.schedule import Schedule


@dataclass(frozen=True)
class Recipe:
    """How one fold is trained.

    Attributes:
        confounds: Columns whose effect is removed, as in `Design`.
        keep: Columns beside the labels whose effect must survive.
        types: Kinds of columns, "numeric" or "categorical".
        unseen: What an unseen level or a missing cell of a confound is, as in `Design`.
        stratum: The categorical confound whose levels are strata: sites of ComBat, and groups
            within which cases and controls are ranked. None takes the first categorical one.
        network: "mlp", "convnet", "huggingface", or "package.module:callable". The callable returns
            a torch module, or is a class of scikit-learn.
        network_options: Options of the network.
        weights: A file with a state dict that the network starts from, as far as names and shapes
            agree; None starts at random.
        freeze: Modules that are not trained: names or globs.
        method: The method, as in `deconfound.methods.make_method`.
        at: The modules that the method attaches to; None takes the default of the network.
        method_options: Options of the method.
        loss: "focal" or "ranking"; None takes that of the task.
        balance: Draw training rows by weights that make label and confounds independent: "overlap"
            or "entropy". None takes each row once. Several labels have the mean of their weights,
            which leaves a part of each association.
        use_w_scores: Whether scores are standardised by those of held-out controls with the same
            confounds.
        controls: Rows from which effects of confounds are learned, as `{column: level}`: by layers,
            residualised inputs and W-scores. None takes all rows, and for W-scores those of the
            negative class.
        schedule: How long and how fast the network is trained.
        augment: Options of `Augment`.
    """

    confounds: Sequence[Term]
    keep: Sequence[Term] = ()
    types: Mapping[str, Kind] = field(default_factory=dict)
    unseen: Literal["error", "mean"] = "error"
    stratum: str | None = None
    network: str = "mlp"
    network_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    freeze: Sequence[str] = ()
    method: str = "pmdn"
    at: Any = None
    method_options: Mapping[str, Any] = field(default_factory=dict)
    loss: Literal["focal", "ranking"] | None = None
    balance: Literal["overlap", "entropy"] | None = None
    use_w_scores: bool = False
    controls: Mapping[str, str] | None = None
    schedule: Schedule = field(default_factory=Schedule)
    augment: Mapping[str, Any] = field(default_factory=dict)
