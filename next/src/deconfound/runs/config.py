"""The config of a run: what is predicted from which files, what is removed, and how.

It comes from a YAML file or a mapping, with changes such as `training.epochs=5`. All faults are
reported together. This module imports neither torch nor pandas, so that commands start quickly.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from deconfound.errors import OptionError
from deconfound.runs.config_faults import Key, describe_faults
from deconfound.runs.yaml_text import parse_yaml, read_yaml

if TYPE_CHECKING:
    from deconfound.data import Samples
    from deconfound.design import Term
    from deconfound.training import Recipe

# Keys that hold paths. In a config file they are relative to the file.
PATHS = ("data.source", "data.table", "network.weights", "run.folder")
# Keys without which no run starts; the first one is not needed if samples are given in Python.
REQUIRED = (("data", "source"), ("data", "labels"), ("design", "confounds"))
# Sections that may be written as a name alone.
NAMED = ("network", "method")
# What may change without making it another run. The data are known by their contents.
NO_IDENTITY: Any = {
    "data": {"source", "table"},
    "run": {"folder"},
    "compare": True,
    "launcher": True,
}


def _as_list(value: Any) -> Any:
    """Return a single name or term as a list of one."""
    return [value] if isinstance(value, str | Mapping) else value


def _as_text(value: Any) -> Any:
    """Return the level that True or False stands for."""
    return str(value) if isinstance(value, bool) else value


def _read_controls(value: Any) -> Any:
    """Return `{column: level}` from the text `column=level`."""
    if not isinstance(value, str):
        return value
    column, mark, level = value.rpartition("=")
    if not mark:
        raise ValueError(f"must be column=level, such as dx=CN; got {value!r}.")
    return {column: level}


def _check_term(value: Any) -> Any:
    """Refuse what `make_term` cannot read."""
    try:
        make_term(value)
    except OptionError:
        raise
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"a term must be a column, {{spline: age}}, {{spline: [age, 3]}} or "
            f"{{interaction: [age, sex]}}; got {value!r}."
        ) from None
    return value


def make_term(value: Any) -> Any:
    """Return the term that a name or a mapping means."""
    from deconfound.design import Interaction, Spline

    if not isinstance(value, Mapping):
        return value
    ((kind, arguments),) = value.items()
    arguments = [arguments] if isinstance(arguments, str) else arguments
    return {"spline": Spline, "interaction": Interaction}[kind](*map(make_term, arguments))


Text = Annotated[str, BeforeValidator(_as_text)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
OneTerm = Annotated[str | dict[str, Any], AfterValidator(_check_term)]
Terms = Annotated[tuple[OneTerm, ...], BeforeValidator(_as_list)]
Options = dict[str, Any]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Number = Annotated[float, Field(allow_inf_nan=False)]
AboveZero = Annotated[Number, Field(gt=0)]
Rule = Literal["error", "mean"]


class Section(BaseModel):
    """The base of all sections: they cannot be changed, and unknown keys are faults."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, content: Any) -> Any:
        """Return no keys for a section that is empty."""
        return {} if content is None else content


class DataSection(Section):
    """Where samples and their table come from, and what its columns mean.

    Attributes:
        source: A table of features, a file of arrays, or a folder of images or scans.
        table: The table of people, if it is not the source itself.
        labels: The columns that are predicted.
        positive: The level for which a high score stands, or one for each label.
        id: The column that names each row, and joins source and table.
        person: The column of people, whose rows stay in one part of a fold.
        controls: Rows from which effects of confounds are learned: `column=level`.
        types: The kind of single columns, numeric or categorical.
        features: Names or globs of the columns that are inputs; `-name` excludes one. Null takes
            all columns without another role.
        missing: What an empty cell of a feature is: the mean of the training rows, or an error.
        options: Further options of `deconfound.data.open_samples`: size, reader, skip_bad, cache.
    """

    source: str | None = None
    table: str | None = None
    labels: Names = ()
    positive: Text | dict[str, Text] | None = None
    id: str | None = None
    person: str | None = None
    controls: Annotated[dict[str, Text] | None, BeforeValidator(_read_controls)] = None
    types: dict[str, Literal["numeric", "categorical"]] = {}
    features: Names | None = None
    missing: Rule = "mean"
    options: Options = {}


class DesignSection(Section):
    """What is removed, and what must survive.

    Attributes:
        confounds: Columns, `{spline: age}`, `{spline: [age, 3]}` or `{interaction: [age, sex]}`.
        keep: Columns beside the labels whose effect must survive.
        unseen: What an unseen level or an empty cell of a confound is: an error, or the mean of the
            training rows.
        stratum: The categorical confound whose levels are strata; null takes the first one.
    """

    confounds: Terms = ()
    keep: Terms = ()
    unseen: Rule = "error"
    stratum: str | None = None


class NetworkSection(Section):
    """What is trained.

    Attributes:
        name: mlp, convnet, huggingface, or package.module:callable. Null takes mlp for tables and
            arrays, and convnet for images and scans.
        options: Options of the network.
        weights: A file with a state dict that the network starts from.
        freeze: Modules that are not trained: names or globs.
    """

    name: str | None = None
    options: Options = {}
    weights: str | None = None
    freeze: Names = ()


class MethodSection(Section):
    """How confounds are kept out of the network.

    Attributes:
        name: none, mdn, rmdn, pmdn, adversarial, residualized-inputs, or package.module:Class.
        at: Modules that the method attaches to; null takes the default of the network.
        options: Options of the method.
    """

    name: str = "pmdn"
    at: Names | None = None
    options: Options = {}


class TrainingSection(Section):
    """How long and how fast the network is trained; see `deconfound.training.Schedule`.

    Attributes:
        loss: focal or ranking; null takes that of the labels.
        balance: Draw training rows by weights that make label and confounds independent: overlap
            or entropy.
        w_scores: Whether outputs are standardised by held-out controls with the same confounds.
        epochs: The largest number of passes over the training rows.
        patience: The number of epochs without a better validation loss after which training stops.
        batch_size: The largest number of rows of a batch.
        optimizer: adamw, adam or sgd.
        lr: The learning rate.
        weight_decay: The weight decay passed to the optimiser.
        rate: constant, cosine or one-cycle.
        clip: The largest norm of the gradient.
        augment: Options of `deconfound.training.Augment`: flip, shift, noise.
    """

    loss: Literal["focal", "ranking"] | None = None
    balance: Literal["overlap", "entropy"] | None = None
    w_scores: bool = False
    epochs: Positive = 30
    patience: Positive | None = None
    batch_size: Positive = 64
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: AboveZero = 1e-3
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-4
    rate: Literal["constant", "cosine", "one-cycle"] = "constant"
    clip: AboveZero | None = None
    augment: Options = {}


class SplitsSection(Section):
    """How rows are divided into folds; see `deconfound.training.split_folds`.

    Attributes:
        kind: k-fold, holdout, leave-one-out (of each level of `column`), or column (it names the
            fold of each row).
        folds: The number of folds of k-fold.
        column: The column of leave-one-out and column.
        validation: The share of validation rows among the rows that are not tested.
        seed: The seed of the division; null takes `run.seed`.
    """

    kind: Literal["k-fold", "holdout", "leave-one-out", "column"] = "k-fold"
    folds: Annotated[int, Field(ge=2)] = 5
    column: str | None = None
    validation: Annotated[Number, Field(gt=0, lt=1)] = 0.15
    seed: Seed | None = None


class RunSection(Section):
    """Where the run lies.

    Attributes:
        folder: Its folder. Null takes `runs/` and the name of the config file, or of the source.
        seed: The seed of first weights, batches and folds.
        features: Whether features of the test rows are kept and audited.
    """

    folder: str | None = None
    seed: Seed = 0
    features: bool = True


class CompareSection(Section):
    """What `compare` trains.

    Attributes:
        variants: From the name of a variant to what differs, such as `{method: none}` or
            `{training.balance: overlap}`. The first one is the base.
        seeds: Each variant is trained with each of these seeds.
    """

    variants: dict[str, dict[str, Any]] = {}
    seeds: tuple[Seed, ...] = (0,)


Launcher = dict[Literal["accelerator", "devices", "num_nodes", "strategy", "precision"], Any]


class Config(Section):
    """A whole run, with all defaults.

    Attributes:
        launcher: Arguments of Lightning Fabric for several GPUs or another precision; null trains
            on the first GPU, or the CPU.

    Example:
        >>> from deconfound.runs import Config
        >>> config = Config.load(
        ...     {
        ...         "data": {"source": "people.csv", "labels": ["dx"]},
        ...         "design": {"confounds": ["age", "site"]},
        ...     },
        ...     "training.epochs=5",
        ...     "method=mdn",
        ... )
        >>> config.training.epochs, config.method.name
        (5, 'mdn')
        >>> config.change({"method": "none", "training.balance": "overlap"}).training.balance
        'overlap'
    """

    data: DataSection = DataSection()
    design: DesignSection = DesignSection()
    network: NetworkSection = NetworkSection()
    method: MethodSection = MethodSection()
    training: TrainingSection = TrainingSection()
    splits: SplitsSection = SplitsSection()
    run: RunSection = RunSection()
    compare: CompareSection = CompareSection()
    launcher: Launcher | None = None

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | Config,
        *overrides: str,
        data: Samples | None = None,
    ) -> Config:
        """Return the config that a file or mapping and some overrides make.

        Args:
            source: A YAML file, a mapping of sections, or a config.
            *overrides: Changes such as `training.epochs=5`; what follows the mark is YAML.
            data: The samples, if they are given in Python.

        Raises:
            OptionError: Lists all faults, each with the nearest key. If there are any, columns of
                the table and names of methods, networks and their options are checked as well.
        """
        name, file = "The config", None
        if isinstance(source, Config):
            content: Mapping[str, Any] = source.to_dict()
        elif isinstance(source, Mapping):
            content = copy.deepcopy(dict(source))
        else:
            name, file = f"The config {str(source)!r}", Path(source)
            content = read_yaml(file)
        config, faults = cls._build(content, _read_overrides(overrides), file)
        for section, key in REQUIRED if data is None else REQUIRED[1:]:
            if not getattr(getattr(config, section), key):
                faults.setdefault((section, key), f"{section}.{key} must be given; got nothing.")
        sentences = [*faults.values()]
        for variant, changes in config.compare.variants.items():
            _, own = cls._build(config.to_dict(), changes)
            sentences += [f"compare.variants.{variant}: {fault}" for fault in own.values()]
        if sentences:
            # A config without faults is checked against the table when its samples are open.
            from deconfound.runs.problem import find_faults

            sentences += find_faults(config, data)
            raise OptionError("\n- ".join([f"{name} cannot be used:", *dict.fromkeys(sentences)]))
        return config

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Return another config, validated as a whole.

        Args:
            changes: From a key, such as "training.balance", or a section to what it becomes. A
                section changes in the keys that are given; "method" and "network" may be a name
                alone. A new name starts from no options.

        Raises:
            OptionError: Lists all faults.
        """
        config, faults = self._build(self.to_dict(), changes)
        if faults:
            raise OptionError("\n".join(faults.values()))
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return all keys as plain data."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return what decides the numbers of a run, beside the contents of its files."""
        return self.model_dump(mode="json", exclude=NO_IDENTITY)

    def fingerprint(self) -> str:
        """Return a digest of `identity()`."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def terms(self, key: Literal["confounds", "keep"]) -> tuple[Term, ...]:
        """Return the terms of the design."""
        return tuple(make_term(term) for term in getattr(self.design, key))

    def network_name(self, kind: str) -> str:
        """Return the network for samples of a kind: "table", "array", "image" or "scan"."""
        default = "convnet" if kind in ("image", "scan") else "mlp"
        return self.network.name or default

    def recipe(self, kind: str = "table") -> Recipe:
        """Return how one fold is trained.

        Args:
            kind: The kind of the samples, which chooses the network if none is named.
        """
        from deconfound.training import Recipe, Schedule

        training = self.training
        others = {"loss", "balance", "w_scores", "augment"}
        return Recipe(
            confounds=self.terms("confounds"),
            keep=self.terms("keep"),
            types=self.data.types,
            unseen=self.design.unseen,
            stratum=self.design.stratum,
            network=self.network_name(kind),
            network_options=self.network.options,
            weights=self.network.weights,
            freeze=self.network.freeze,
            method=self.method.name,
            at=self.method.at,
            method_options=self.method.options,
            loss=training.loss,
            balance=training.balance,
            use_w_scores=training.w_scores,
            controls=self.data.controls,
            schedule=Schedule(**training.model_dump(exclude=others)),
            augment=training.augment,
        )

    @classmethod
    def _build(
        cls, first: Mapping[str, Any], changes: Mapping[str, Any], file: Path | None = None
    ) -> tuple[Self, dict[Key, str]]:
        """Return a config, and a sentence for each key with a fault, which has its default.

        Args:
            first: The content of the file, if there is one.
            changes: What is changed in it. Paths are relative to the current folder.
            file: The config file.
        """
        content: dict[str, Any] = {}
        _merge(content, first, Path() if file is None else file.parent)
        _merge(content, changes, Path())
        faults = {}
        try:
            config = cls.model_validate(content)
        except ValidationError as error:
            faults = describe_faults(error, cls)
            for section, *keys in faults:
                if keys:
                    content[section].pop(keys[0])
                else:
                    content.pop(section)
            config = cls.model_validate(content)
        if config.run.folder is None:
            name = file or Path(Path(config.data.source or "run").name)
            config = config.change({"run.folder": str(name.with_name("runs") / name.stem)})
        return config, faults


def _read_overrides(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the changes that texts such as `training.lr=1e-2` mean."""
    changes = {}
    for text in overrides:
        key, mark, value = text.partition("=")
        if not (key and mark):
            raise OptionError(
                f"A change must be key=value, such as training.lr=1e-2; got {text!r}."
            )
        changes[key] = parse_yaml(value, f"The value of {key}")
    return changes


def _merge(content: dict[str, Any], changes: Mapping[str, Any], folder: Path) -> None:
    """Change the content of a config in place.

    Args:
        content: From sections to their keys.
        changes: From sections, or keys such as "data.types.site", to what they become.
        folder: The folder to which paths among the changes are relative.
    """
    by_key: dict[str, Any] = {}
    for name, value in changes.items():
        if name in Config.model_fields and isinstance(value, Mapping):
            by_key |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            by_key[f"{name}.name" if name in NAMED and value is not None else str(name)] = value
    for section in NAMED:
        # A new name forgets the options of the old one.
        old = content.get(section) or {}
        old_name = old.get("name", Config.model_fields[section].default.name)
        if by_key.get(f"{section}.name", old_name) != old_name:
            old.pop("options", None)
    for key, value in by_key.items():
        *parents, last = key.split(".")
        place = content
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        is_path = key in PATHS and isinstance(value, str)
        # Absolute, because a worker may run in another folder.
        place[last] = os.path.abspath(folder / Path(value).expanduser()) if is_path else value
