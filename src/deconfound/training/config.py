"""What a run is told: nested frozen dataclasses, one section each, with every default in sight."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Term = str | dict[str, Any]


@dataclass(frozen=True)
class Data:
    """Where samples and their table come from, and what its columns mean.

    Attributes:
        source: A table of features (CSV, TSV, Parquet), an array (NPY, NPZ), or a folder of scans.
        label: The column that is predicted; a list for several labels.
        table: The table of people, where it is not the source itself.
        id: The column that joins source and table, and names rows in predictions.
        array: Which array of an NPZ holds the samples.
        features: Columns or globs of the source that are inputs; all numeric columns without another role if None,
            but for those that are called like the name of a row or person (id, subject_id, …).
        person: The column that names the person of a row; a person's rows stay in one part of a split. A folder of
            scans has one by itself.
        controls: `{column: level}` of the rows that methods with `controls_only` learn from.
        types: "numeric", "categorical" or "boolean" for columns that should not be read by their values.
        positive: For a binary label, the level that a high score stands for.
        missing_features: What an empty cell among the inputs is: an error, or the mean of the training rows.
        scale: "columns" standardises each input on the training rows; "auto" does so for tables, not for images.
        options: Further arguments of a reader of scans.
    """

    source: str
    label: str | tuple[str, ...]
    table: str | None = None
    id: str | None = None
    array: str | None = None
    features: tuple[str, ...] | None = None
    person: str | None = None
    controls: dict[str, Any] | None = None
    types: dict[str, str] = field(default_factory=dict)
    positive: str | None = None
    missing_features: Literal["error", "mean"] = "error"
    scale: Literal["auto", "columns", "none"] = "auto"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label


@dataclass(frozen=True)
class DesignOptions:
    """What is removed and what is kept.

    Attributes:
        confounds: Columns, or terms: `age`, `spline(age, 4)`, `poly(age, 2)`, `age:sex`, or `{age: spline}`.
        keep: Columns whose effect survives; the labels if None.
        missing: What a missing confound is: an error, or the mean of the training rows.
        unseen: The same for a level without training rows; if None "mean" where a split leaves levels out, or "error".
        site: The confound that says where a sample comes from; if None, one that is called like it.
    """

    confounds: tuple[Term, ...]
    keep: tuple[Term, ...] | None = None
    missing: Literal["error", "mean"] = "error"
    unseen: Literal["error", "mean"] | None = None
    site: str | None = None


@dataclass(frozen=True)
class Network:
    """What is trained.

    Attributes:
        name: `mlp`, `synthetic_cnn`, `resnet3d`, or `package.module:callable`, called with `outputs=` and options.
        options: Its arguments, such as `hidden` and `dropout` of the MLP.
        features: The module whose output is kept as hidden features; the input of the last linear layer if None.
    """

    name: str = "mlp"
    options: dict[str, Any] = field(default_factory=dict)
    features: str | None = None


@dataclass(frozen=True)
class MethodOptions:
    """How it is trained.

    Attributes:
        name: One of the methods, see `docs/which-method.md`.
        at: Modules whose output is normalised; None for the library's choice.
        options: For each method by name, its own options.
    """

    name: str = "pmdn"
    at: tuple[str, ...] | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """The loop, and what is passed through to Lightning.

    Attributes:
        task: "binary", "multilabel", "multiclass" or "regression"; found from the labels if "auto".
        loss: "cross-entropy", "bce", "focal" or "mse"; the task's usual one if "auto".
        focal_gamma: How far the focal loss turns away from easy samples; 0 is plain cross-entropy.
        epochs: The most epochs.
        patience: Epochs without a better validation loss before training stops; None never stops early.
        batch_size: Samples in a batch, per device.
        optimizer: "adam", "adamw" or "sgd".
        lr: The learning rate.
        weight_decay: The optimiser's weight decay.
        accumulate: Batches whose gradients are summed for one step.
        clip: The largest norm of the gradient; None leaves it alone.
        accelerator: Lightning's, as are `devices`, `nodes`, `strategy` and `precision`.
        devices: How many, or which.
        nodes: How many machines.
        strategy: "auto", "ddp", "fsdp", …
        precision: "32-true", "bf16-mixed", "16-mixed", …
        workers: Processes that read samples.
        threads: CPU threads of a fold; None is 1 for tables and torch's own number for images. Part of the config
            because sums in another order differ in the last bits.
        loggers: "tensorboard", "mlflow"; the history is written as CSV in any case.
    """

    task: Literal["auto", "binary", "multilabel", "multiclass", "regression"] = "auto"
    loss: Literal["auto", "cross-entropy", "bce", "focal", "mse"] = "auto"
    focal_gamma: float = 2.0
    epochs: int = 100
    patience: int | None = 15
    batch_size: int = 64
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    accumulate: int = 1
    clip: float | None = None
    accelerator: str = "auto"
    devices: int | str | tuple[int, ...] = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    workers: int = 0
    threads: int | None = None
    loggers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Splits:
    """How rows are divided into folds, and each fold's training rows again for early stopping.

    Attributes:
        kind: "kfold" (stratified, and by person where `data.person` is given), "leave-one-out" (each level of
            `column`, such as a site, is the test set once) or "column" (a column holds the fold of each row).
        folds: How many folds of "kfold".
        column: For "leave-one-out" and "column".
        stratify: Columns whose levels are spread evenly; the labels if None.
        validation: The share of each fold's training rows that is held out for early stopping.
        seed: Of the division; None takes the run's, so that several seeds are repeated cross-validation.
    """

    kind: Literal["kfold", "leave-one-out", "column"] = "kfold"
    folds: int = 5
    column: str | None = None
    stratify: tuple[str, ...] | None = None
    validation: float = 0.15
    seed: int | None = None


@dataclass(frozen=True)
class Run:
    """Where the run lives.

    Attributes:
        folder: Everything is written below it; a second run with the same config goes on where it stopped.
        seed: Of networks, batches and the division.
        features: Whether each fold's hidden features of the test rows are kept.
        checkpoint_seconds: How much training a killed run may have to repeat; it ends with the same numbers.
    """

    folder: str = "runs/run"
    seed: int = 0
    features: bool = True
    checkpoint_seconds: float = 30.0


@dataclass(frozen=True)
class Compare:
    """What `deconfound compare` trains: every combination of these.

    Attributes:
        methods: The first is the one that the others are compared with.
        seeds: A run for each.
        batch_sizes: A run for each; `training.batch_size` if empty.
        permutations: Of the audit, for each p-value.
        bootstraps: Of the audit, for each interval.
    """

    methods: tuple[str, ...] = ("none", "mdn", "pmdn", "adversarial")
    seeds: tuple[int, ...] = (0,)
    batch_sizes: tuple[int, ...] = ()
    permutations: int = 199
    bootstraps: int = 200


@dataclass(frozen=True)
class Config:
    """A whole run."""

    data: Data
    design: DesignOptions
    network: Network = field(default_factory=Network)
    method: MethodOptions = field(default_factory=MethodOptions)
    training: Training = field(default_factory=Training)
    splits: Splits = field(default_factory=Splits)
    run: Run = field(default_factory=Run)
    compare: Compare = field(default_factory=Compare)

    def for_run(self, method: str, seed: int, batch_size: int, folder: str) -> Config:
        """The config of one run of a comparison."""
        return replace(
            self,
            method=replace(self.method, name=method),
            training=replace(self.training, batch_size=batch_size),
            run=replace(self.run, seed=seed, folder=folder),
        )

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data, as YAML and JSON hold it."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return plain

    def identity(self) -> dict[str, Any]:
        """What decides a run's numbers beside the content of its files: not where these and the run lie."""
        data = self.to_dict()
        del data["compare"], data["run"]["folder"], data["run"]["checkpoint_seconds"]
        del data["data"]["source"], data["data"]["table"]
        data["training"].pop("workers")
        data["training"].pop("loggers")
        chosen = data["method"]["options"].get(self.method.name, {})
        data["method"]["options"] = {self.method.name: chosen} if chosen else {}
        return data


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
