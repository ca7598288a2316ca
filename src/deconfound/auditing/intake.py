"""What an audit is given, checked and brought into one form before anything is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing.answers import LARGEST, Outputs, binary_cut, other_codes, read_outputs
from deconfound.auditing.class_names import (
    holds_numbers,
    listed_names,
    named_level,
    names_no_class,
    names_of,
    sorted_levels,
)
from deconfound.auditing.contradictions import refuse_other_order
from deconfound.auditing.records import Note
from deconfound.auditing.table_checks import doubts, person_doubts, refuse_texts_among_numbers
from deconfound.design.table import Table, absent, category_columns, column_names, in_rows, is_missing, read_columns
from deconfound.errors import OptionError, ShapeError, TableError, did_you_mean
from deconfound.metrics.columns import Column, category_codes, column
from deconfound.metrics.conditional import SMALLEST_GROUP

# Names of the level that a score counts down from, whatever the alphabet says.
_NEGATIVE = frozenset(
    ["0", "absent", "cn", "control", "controls", "ctrl", "false", "hc", "healthy", "nc", "neg", "negative", "no",
     "none", "normal", "td", "unaffected"]
)  # fmt: skip


@dataclass(frozen=True)
class Intake:
    """Everything an audit reads, on the rows that have all labels; `classes` of the outputs' columns by model."""

    spaces: dict[str, dict[str, Tensor]]
    confounds: list[Column]
    labels: list[Column]
    groups: Tensor
    units: Tensor
    folds: Tensor
    notes: list[Note]
    rows: Tensor
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Roles:
    """What each column of the table is for, as `audit` was told."""

    confounds: Sequence[str]
    labels: Sequence[str]
    person: str | None = None
    fold: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    positive: Mapping[str, str] = field(default_factory=dict)
    classes: Sequence[str] = ()

    @property
    def single(self) -> list[str]:
        """The columns of person and fold that are named."""
        return [name for name in (self.person, self.fold) if name is not None]


def read(outputs: Any, features: Any, table: Table, roles: Roles) -> Intake:
    """Read outputs and table, or say at once everything that is wrong with the columns."""
    _check_names(table, roles)
    columns = read_columns(table, [*roles.confounds, *roles.labels, *roles.single])
    categories = category_columns(table, [*roles.confounds, *roles.labels])
    types = {**dict.fromkeys(categories, "categorical"), **roles.types}
    refuse_texts_among_numbers(columns, [name for name in [*roles.confounds, *roles.labels] if name not in types])
    labels = [column(name, columns[name], types.get(name), codes_to=10) for name in roles.labels]
    positive = {**_named_levels(outputs, labels, roles), **roles.positive}
    labels = [directed(label, positive.get(label.name)) for label in labels]
    confounds = [column(name, columns[name], types.get(name)) for name in roles.confounds]
    for item in [*labels, *confounds]:
        if item.kind == "numeric" and (largest := float(item.values.abs().nan_to_num().max())) > LARGEST:
            raise TableError(f"column {item.name!r} must lie within ±{LARGEST:g}; got {largest:g}. Rescale it.")
    n = len(columns[roles.confounds[0]])
    notes = doubts(columns, types, labels, confounds) + ([] if roles.person else person_doubts(table))
    present = torch.ones(n, dtype=torch.bool)
    for label in labels:
        present &= label.present
        if missing := int((~label.present).sum()):
            text = f"{missing:,} of {n:,} rows have no {label.name} and are left out."
            notes.append(Note("missing", "note", "", text))
    refuse_other_order(outputs, table, "outputs")
    given = _models(outputs, labels, n, "outputs", _class_order(roles.classes, labels))
    spaces = {"outputs": {model: item.values for model, item in given.items()}}
    if features is not None:
        refuse_other_order(features, table, "features")
        hidden = _models(features, [], n, "features")
        spaces["features"] = {model: item.values for model, item in hidden.items()}
    if roles.fold is not None:
        present &= ~_alone(_codes(columns, roles.fold, n), present, roles.fold, notes)
    rows = present.nonzero()[:, 0]
    units = _codes(columns, roles.person, n)[rows] if roles.person else torch.arange(len(rows))
    people = len(torch.unique(units))
    if people < SMALLEST_GROUP:
        raise TableError(f"an audit must have at least {SMALLEST_GROUP} people with every label; got {people}.")
    for model, values in spaces["outputs"].items():
        if (values[rows] == values[rows][:1]).all():
            text = f"The outputs of {model} are the same in every row: they hold nothing, of a confound or of a label."
            notes.append(Note("constant outputs", "warning", "", text))
    labels = [label.take(rows) for label in labels]
    notes += [note for model, item in given.items() for note in _questions(model, item, labels, rows)]
    notes += [note for model, item in given.items() for note in _other_classes(model, item, labels, rows)]
    return Intake(
        {space: {model: values[rows] for model, values in models.items()} for space, models in spaces.items()},
        [item.take(rows) for item in confounds],
        labels,
        category_codes(labels, len(rows)),
        units,
        _codes(columns, roles.fold, n)[rows],
        notes,
        rows,
        {model: item.classes for model, item in given.items()},
    )


def _class_order(classes: Sequence[str], labels: Sequence[Column]) -> tuple[str, ...]:
    given = tuple(str(level) for level in classes)
    if given and (len(labels) != 1 or not set(given) >= set(labels[0].levels) or len(set(given)) < len(given)):
        levels = ", ".join(labels[0].levels) if len(labels) == 1 else f"{len(labels)} labels"
        raise OptionError(f"classes must name every level of the one label; got {', '.join(given)} for {levels}.")
    return given


def _named_levels(outputs: Any, labels: Sequence[Column], roles: Roles) -> dict[str, str]:
    """The level that a single column of outputs is called by, such as `prob_AD`, of the one binary label."""
    if len(labels) != 1 or labels[0].kind != "binary" or labels[0].name in roles.positive or len(roles.classes):
        return {}
    (label,), found = labels, dict[str, str]()
    for model, values in _by_model(outputs).items():
        names = names_of(values)
        if len(names) == 1 and (level := named_level(names[0], label.levels)) and holds_numbers(values):
            found[str(model)] = level
    if len(set(found.values())) > 1:
        said = ", ".join(f"{level} for {model!r}" for model, level in found.items())
        raise OptionError(
            f"the outputs of all models must be scores of the same level of {label.name!r}; got {said}, by the names "
            "of their columns. Turn some of them around (1 - p, or -score), or pass positive={label: level} "
            "(--positive LABEL=LEVEL) where the names say something else."
        )
    return dict.fromkeys([label.name] if found else [], next(iter(found.values()), ""))


def _questions(model: str, given: Outputs, labels: Sequence[Column], rows: Tensor) -> list[Note]:
    """Columns whose names are no classes, and scores that all lie on one side of the cut."""
    notes, values = [], given.values[rows]
    if len(labels) == 1 and not given.classes and names_no_class(given.names, labels[0].levels):
        text = (
            f"The columns of {model} are called {listed_names(given.names)}, no classes of {labels[0].name}, and "
            f"are read as {listed_names(sorted_levels(labels[0].levels))}, in this order. Rename them, or say in "
            "classes (--classes) what each stands for."
        )
        notes.append(Note("unknown classes", "warning", "", text))
    if (cut := binary_cut(values, labels)) is not None:
        notes += [note for i, label in enumerate(labels) for note in _one_side(model, values[:, i], cut, label)]
    return notes


def _one_side(model: str, values: Tensor, cut: float, label: Column) -> list[Note]:
    """A note where the same class is predicted in every row: the scores may be cut elsewhere."""
    above = values > cut
    if above.any() != above.all() or bool((values == values[0]).all()):
        return []
    text = (
        f"Every {'probability' if cut else 'score'} of {model} lies {'above' if above[0] else 'at or below'} {cut:g}, "
        f"and above {cut:g} is taken to mean {label.name} = {label.levels[1]}: the same class in every row."
    )
    advice = " If they are percentages, divide them by 100; if they are cut elsewhere, subtract the cut."
    return [Note("points away", "note", "", text + ("" if cut else advice))]


def _other_classes(model: str, given: Outputs, labels: Sequence[Column], rows: Tensor) -> list[Note]:
    """Predicted classes that the label does not have, and whole numbers that may be some."""
    if len(labels) != 1 or labels[0].kind == "numeric":
        return []
    (label,), values, classes = labels, given.values[rows], given.classes
    if odd := other_codes(values, label):
        text = (
            f"The outputs of {model} are whole numbers, among them the codes of {label.name} "
            f"({', '.join(label.levels)}) and {listed_names(odd)}, and are read as scores. If they are predicted "
            "classes, give their names instead."
        )
        return [Note("codes", "note", "", text)]
    if len(classes) != values.shape[1] or not set(label.levels) <= set(classes):
        return []
    names = [classes[place] for place in values.argmax(1).tolist()]
    other = [name for name in names if name not in label.levels]
    if not other:
        return []
    text = (
        f"The outputs of {model} predict {listed_names(list(dict.fromkeys(other)))} in {len(other):,} of "
        f"{len(names):,} rows, which is no class of {label.name} ({listed_names(label.levels)}): these rows count as "
        "wrong."
    )
    return [Note("unknown classes", "warning", "", text)]


def sampled(units: Tensor, most: int, seed: int) -> Tensor:
    """Row numbers of as many people, drawn at random, as have at most so many rows together; in order."""
    if len(units) <= most:
        return torch.arange(len(units))
    _, codes, counts = torch.unique(units, return_inverse=True, return_counts=True)
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    taken = order[counts[order].cumsum(0) <= most]
    return torch.isin(codes, taken).nonzero()[:, 0]


def _check_names(table: Table, roles: Roles) -> None:
    """Refuse roles and columns that cannot be, all of them at once."""
    confounds, labels = roles.confounds, roles.labels
    for role, names in (("confounds", confounds), ("labels", labels)):
        if isinstance(names, str):
            raise OptionError(f"{role} must be a list of column names; got {names!r}. Write [{names!r}].")
    if not confounds:
        raise OptionError("confounds must name at least one column; got none.")
    available = column_names(table)
    faults = absent(confounds, available, "confounds") + absent(labels, available, "labels")
    faults += absent(roles.single, available, "person and fold")
    faults += [f"a column must be a confound or a label; got {name!r} as both." for name in confounds if name in labels]
    for role, names in (("confounds", confounds), ("labels", labels)):
        twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        faults += [f"{role} must name each column once; got {name!r} twice." for name in twice]
    for role, given, what, known in (
        ("types", roles.types, "confounds or labels", [*confounds, *labels]),
        ("positive", roles.positive, "labels", labels),
    ):
        for name in (name for name in given if name not in known):
            hint = did_you_mean(name, known, f"There are: {', '.join(known) or 'none'}.")
            faults.append(f"{role} must name {what}; got {name!r}.{hint}")
    if faults:
        raise TableError(" ".join(faults))


def _alone(folds: Tensor, present: Tensor, name: str, notes: list[Note]) -> Tensor:
    """`(n,)` the rows that are alone in their fold, where nothing can be measured; told, or refused if all are."""
    counts = torch.zeros(int(folds.max()) + 1, dtype=torch.long).index_add(0, folds, present.long())
    alone = present & (counts[folds] < 2)
    if int(alone.sum()) == int(present.sum()):
        raise TableError(
            f"column {name!r} must have folds of at least 2 rows; got 1 in each. Leave fold out where each row has a "
            "model of its own."
        )
    if alone.any():
        count = int(alone.sum())
        text = f"{count:,} {'row is' if count == 1 else 'rows are'} alone in a fold, where nothing can be measured."
        notes.append(Note("missing", "note", "", f"{text} Left out."))
    return alone


def _by_model(given: Any) -> dict[Any, Any]:
    return dict(given) if isinstance(given, Mapping) else {"model": given}


def _models(given: Any, labels: list[Column], n: int, space: str, classes: Sequence[str] = ()) -> dict[str, Outputs]:
    models = _by_model(given)
    if not models:
        raise OptionError(f"{space} must hold at least one model; got none.")
    out = {str(model): read_outputs(values, labels, str(model), space, classes) for model, values in models.items()}
    for model, item in out.items():
        if len(item.values) != n:
            raise ShapeError(
                f"{space} of {model!r} must have one row per row of the table; got {len(item.values)} for {n}. "
                "Bring both into the same rows and order."
            )
    return out


def directed(label: Column, positive: str | None) -> Column:
    """A binary label with its positive level last: the named one, or the one that does not sound like "control"."""
    if positive is not None and positive not in label.levels:
        raise OptionError(
            f"positive[{label.name!r}] must be one of its levels; got {positive!r} for {', '.join(label.levels)}."
        )
    if label.kind != "binary":
        return label
    calm = [level.strip().lower() in _NEGATIVE for level in label.levels]
    turned = positive == label.levels[0] if positive is not None else calm == [False, True]
    return Column(label.name, "binary", 1 - label.values, label.levels[::-1]) if turned else label


def _codes(columns: dict[str, NDArray[Any]], name: str | None, n: int) -> Tensor:
    """`(n,)` codes of the distinct values of a column that must be full; zeros without one."""
    if name is None:
        return torch.zeros(n, dtype=torch.long)
    empty = [row for row, value in enumerate(columns[name].tolist()) if is_missing(value)]
    if empty:
        raise TableError(f"column {name!r} must have a value in every row; got none {in_rows(empty)}.")
    codes = np.unique(columns[name].astype(str), return_inverse=True)[1]
    return torch.from_numpy(codes.astype(np.int64))
