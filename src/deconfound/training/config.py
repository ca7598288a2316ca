"""What a run is told: one frozen model a section, with every key, its default and what it means.

`deconfound init`, the schema for editors and the table in `docs/guides/run.md` are made from these models.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal

from deconfound.errors import need
from deconfound.metrics.resampling import LEAST_BOOTSTRAPS, LEAST_PERMUTATIONS
from deconfound.training.terms import columns_of, read_terms

need("pydantic", "train")
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator  # noqa: E402 - after the check


def _as_tuple(value: Any) -> Any:
    """A list as a tuple, and a single value as a tuple of one."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_number(value: Any) -> Any:
    """YAML reads 1e-3 as a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(_as_tuple)]
Number = Annotated[float, BeforeValidator(_as_number), Field(allow_inf_nan=False)]
Term = str | dict[str, Any]
Terms = Annotated[tuple[Term, ...], BeforeValidator(_as_tuple)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Fill = Literal["error", "mean"]
Augmentation = Literal["flip", "rotate", "shift", "crop", "brightness"]


class Section(BaseModel):
    """What all sections share: unknown keys are refused, and values are of their type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """`method: mdn` stands for `method: {name: mdn}`, and an empty section for its defaults."""
        if isinstance(data, str) and "name" in cls.model_fields:
            return {"name": data}
        return {} if data is None else data


class DataOptions(Section):
    """Where samples and their table come from, and what its columns mean."""

    source: str
    """A table of features (CSV, TSV, Parquet, XLSX), an array (NPY, NPZ), or a folder of images or scans."""
    label: str | Names
    """The column that is predicted; a list for several labels."""
    table: str | None = None
    """The table of people, where it is not the source itself."""
    id: str | None = None
    """The column that joins source and table, and names rows in predictions."""
    array: str | None = None
    """Which array of an NPZ holds the samples."""
    features: Names | None = None
    """Columns or globs that are inputs; if left out, all columns without another role, text coded by its levels."""
    exclude: Names = ()
    """Columns or globs that are no inputs."""
    person: str | None = None
    """The column that names the person of a row; a person's rows stay in one fold."""
    controls: dict[str, Any] | None = None
    """`{column: level}` of the rows that methods with `controls_only` learn from."""
    types: dict[str, Literal["numeric", "categorical", "boolean"]] = {}
    """`{column: numeric, categorical or boolean}` for columns that should not be read by their values."""
    positive: str | None = None
    """For a binary label, the level that a high score stands for."""
    missing_features: Fill = "error"
    """What an empty cell among the inputs is: an error, or the mean of the training rows."""
    scale: Literal["auto", "columns", "channels", "none"] = "auto"
    """Standardise on the training rows each of the columns or channels; auto: columns of tables, channels of images."""
    options: dict[str, Any] = {}
    """Further arguments of the reader of images (size, channels, resize) or of scans (shape, fit, skip_bad)."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def types_of(self, columns: Container[str]) -> dict[str, Any]:
        """The types that are given of these columns."""
        return {name: kind for name, kind in self.types.items() if name in columns}

    @property
    def audit_types(self) -> dict[str, str]:
        """The types in the words of an audit."""
        return {name: "categorical" if kind == "boolean" else kind for name, kind in self.types.items()}


class DesignOptions(Section):
    """What is removed and what is kept."""

    confounds: Terms
    """What is removed: columns, or terms such as spline(age, 4), poly(age, 2), age:sex, {age: spline}."""
    keep: Terms | None = None
    """What must survive; the labels if left out."""
    missing: Fill = "error"
    """What a missing confound is: an error, or the mean of the training rows."""
    unseen: Fill | None = None
    """The same for a level without training rows; if left out, mean where a split leaves levels out, else error."""
    site: str | None = None
    """The confound that says where a sample comes from; if left out, one that is called site, scanner, center."""

    @property
    def confound_columns(self) -> list[str]:
        """The columns that the confounds are made of, each once."""
        return columns_of(read_terms(self.confounds, "design.confounds")[0])


class NetworkOptions(Section):
    """What is trained."""

    name: str = "mlp"
    """mlp, cnn1d, cnn2d, resnet18, resnet3d, monai:NAME, hf:NAME, or module:callable of your own, beside the config."""
    options: dict[str, Any] = {}
    """Its arguments, such as hidden and dropout of the MLP."""
    weights: str | None = None
    """A safetensors file of weights to go on from; a last layer that does not fit is left new."""
    freeze: Names = ()
    """Modules or globs that stay as they are, batch normalisation included: [conv1, bn1, layer1]."""
    features: str | None = None
    """The module whose output is kept as hidden features; if left out, the input of the last linear layer."""


class MethodOptions(Section):
    """How it is trained."""

    name: str = "pmdn"
    """One of the methods, see docs/guides/which-method.md."""
    at: Names | None = None
    """Modules whose output is normalised; the library's choice if left out."""
    options: dict[str, dict[str, Any]] = {}
    """For each method by name, its own options."""

    @property
    def own_options(self) -> dict[str, Any]:
        """The options of the method that is trained."""
        return self.options.get(self.name, {})


class TrainingOptions(Section):
    """The training loop, and what is passed through to Lightning."""

    task: Literal["auto", "binary", "multilabel", "multiclass", "regression"] = "auto"
    """What is predicted; found from the labels if auto."""
    loss: Literal["auto", "cross-entropy", "bce", "focal", "mse", "within"] = "auto"
    """The loss; the usual one of the task if auto. focal helps with rare labels, within ranks inside a stratum."""
    within: str | None = None
    """For loss within: the column inside whose levels cases and controls are compared, such as the site."""
    balance: Literal["none", "overlap", "inverse", "entropy"] = "none"
    """Weights of the training rows under which labels and confounds are independent; see docs/guides/balance.md."""
    balance_by: Literal["weight", "sample"] = "weight"
    """Whether a row's loss is weighted, or rows are drawn by their weight."""
    w_scores: bool = False
    """Whether outputs are standardised by held-out controls with the same confounds; see docs/guides/balance.md."""
    focal_gamma: Annotated[Number, Field(ge=0)] = 2.0
    """How far the focal loss turns away from easy samples; 0 is plain cross-entropy."""
    epochs: AtLeastOne = 100
    """The most epochs."""
    patience: AtLeastOne | None = 15
    """Epochs without a better validation loss before training stops; null never stops early."""
    batch_size: AtLeastOne = 64
    """Samples in a batch, per device."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimiser."""
    lr: Annotated[Number, Field(gt=0)] = 1e-3
    """The learning rate."""
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-2
    """The optimiser's weight decay."""
    accumulate: AtLeastOne = 1
    """Batches whose gradients are summed for one step."""
    clip: Number | None = None
    """The largest norm of the gradient; null leaves it alone."""
    accelerator: str = "auto"
    """Lightning's: auto, cpu, gpu, …"""
    devices: int | str | Numbers = 1
    """Lightning's: how many, or which."""
    nodes: AtLeastOne = 1
    """How many machines."""
    strategy: str = "auto"
    """Lightning's: auto, ddp, fsdp, …"""
    precision: str = "32-true"
    """Lightning's: 32-true, bf16-mixed, 16-mixed, …"""
    augment: Annotated[tuple[Augmentation, ...], BeforeValidator(_as_tuple)] = ()
    """Random changes of training images: flip, rotate (10°), shift (5 %), crop (to 80 %), brightness (20 %)."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that read samples."""
    threads: AtLeastOne | None = None
    """CPU threads of a fold; if left out, 1 for tables and torch's own number for images."""
    loggers: Annotated[tuple[Literal["tensorboard", "mlflow"], ...], BeforeValidator(_as_tuple)] = ()
    """Loggers beside the history, which is always written as CSV: tensorboard, mlflow."""


class SplitOptions(Section):
    """How rows are divided into folds, and each fold's training rows again for early stopping."""

    kind: Literal["kfold", "leave-one-out", "column", "isolated"] = "kfold"
    """kfold (stratified), leave-one-out of each level of column, column (it names the folds), or isolated."""
    folds: Annotated[int, Field(ge=2)] = 5
    """How many folds of kfold, or test sets of isolated."""
    column: str | None = None
    """For leave-one-out (such as the site) and column."""
    stratify: Names | None = None
    """Columns whose levels are spread evenly over the folds; the labels if left out."""
    validation: Annotated[Number, Field(gt=0, le=0.5)] = 0.15
    """The share of each fold's training rows that chooses the epoch."""
    seed: Seed | None = None
    """Of the division; if left out the run's, so that several seeds are repeated cross-validation."""


class RunOptions(Section):
    """Where the run lies, and what it writes."""

    folder: str = "runs/run"
    """Everything is written below it; the same command goes on where a run stopped."""
    seed: Seed = 0
    """Of networks, batches and the division."""
    features: bool = True
    """Whether hidden features of the test rows are kept."""
    audit: bool = True
    """Whether fit audits its out-of-fold outputs and writes audit.html."""
    checkpoint_seconds: Annotated[Number, Field(ge=0)] = 30.0
    """How much training a killed run may have to repeat; it ends with the same numbers."""


class Variant(Section):
    """One method under a name of its own: its options (instead of method.options), and keys of training that differ."""

    method: str
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}


class CompareOptions(Section):
    """What compare trains: every combination of these."""

    methods: Names = ("none", "mdn", "pmdn", "adversarial")
    """Methods, or names of variants; the first is the one that the others are compared with."""
    variants: dict[str, Variant] = {}
    """For each name: a method, its options, and keys of training that differ."""
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_as_tuple)] = (0,)
    """A run for each."""
    batch_sizes: Annotated[tuple[AtLeastOne, ...], BeforeValidator(_as_tuple)] = ()
    """A run for each; training.batch_size if empty."""
    permutations: Annotated[int, Field(ge=LEAST_PERMUTATIONS)] = 199
    """Permutations for each p-value of the audit (of fit as well)."""
    bootstraps: Annotated[int, Field(ge=LEAST_BOOTSTRAPS)] = 200
    """Bootstrap samples for each confidence interval of the audit (of fit as well)."""


class Config(Section):
    """A whole run."""

    data: DataOptions
    design: DesignOptions
    network: NetworkOptions = NetworkOptions()
    method: MethodOptions = MethodOptions()
    training: TrainingOptions = TrainingOptions()
    splits: SplitOptions = SplitOptions()
    run: RunOptions = RunOptions()
    compare: CompareOptions = CompareOptions()

    def updated(self, **sections: Mapping[str, Any]) -> Config:
        """The config with other values: `config.updated(run={"seed": 1})`."""
        changed = {name: getattr(self, name).model_copy(update=dict(values)) for name, values in sections.items()}
        return self.model_copy(update=changed)

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data, as YAML and JSON hold it."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """What decides a run's numbers beside the content of its files: not where these and the run lie."""
        left_out: Any = {"compare": True, "data": {"source", "table"}, "network": {"weights"}}
        left_out |= {"run": {"folder", "checkpoint_seconds", "audit"}, "training": {"workers", "loggers"}}
        data = self.model_dump(mode="json", exclude=left_out)
        chosen = data["method"]["options"].get(self.method.name, {})
        data["method"]["options"] = {self.method.name: chosen} if chosen else {}
        return data


def sections() -> dict[str, type[Section]]:
    """The sections of a config by name."""
    return {name: kind for name, field in Config.model_fields.items() if isinstance(kind := field.annotation, type)}
