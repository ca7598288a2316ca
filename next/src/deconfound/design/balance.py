"""Weights under which labels and confounds are independent, and what they cost.

Break the association of a confound that only came along with the label, such as site or scanner.
Do not break that of a mediator, through which the label itself acts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from deconfound.design.design import Design
from deconfound.design.diagnosis import ALL_CONFOUNDS
from deconfound.design.entropy import entropy_weights
from deconfound.design.fitting import Unseen
from deconfound.design.terms import Term, source_columns, spline_columns
from deconfound.design.whitening import explained_share
from deconfound.errors import DeconfoundWarning, OptionError, TableError
from deconfound.table import Kind, Table, read_columns, read_table, to_levels

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]
BalanceKind = Literal["overlap", "entropy"]

# Fewer effective rows of a class are too few to learn it from.
FEWEST_EFFECTIVE = 10
# An R² below this is no association worth weights.
WEAK_ASSOCIATION = 0.02
# Where every row's own class is likelier than this, the logistic model has no finite solution.
_CERTAIN = 1 - 1e-7
_WHAT_TO_DO = "Collect rows, join levels, or leave out a confound."


@dataclass(frozen=True)
class AbsentClass:
    """A stratum without any row of some classes; its rows have weight 0.

    Attributes:
        column: A categorical confound.
        level: The level that is the stratum.
        classes: The classes of the label that it lacks.
        rows: The number of its rows.
    """

    column: str
    level: str
    classes: tuple[str, ...]
    rows: int

    def __str__(self) -> str:
        classes = " or ".join(self.classes)
        return f"no {classes} at {self.column} {self.level}: weight 0 for its {self.rows:,} rows"


@dataclass(frozen=True)
class LabelBalance:
    """What the weights of one label cost, and what they leave.

    Attributes:
        label: The label.
        rows: Rows that have the label, by class; "all" for a numeric label.
        effective: Effective sample size (Σw)² / Σw² of each class: the number of equally weighted
            rows with the same precision.
        effective_people: The same over people, whose weights are added up; None without `person`.
        largest: The largest weight. The mean is 1.
        association_before: R² of the label on all confounds and on each, without weights.
        association_after: The same under the weights.
        absent_classes: Strata that lack a class.
    """

    label: str
    rows: Mapping[str, int]
    effective: Mapping[str, float]
    effective_people: float | None
    largest: float
    association_before: Mapping[str, float]
    association_after: Mapping[str, float]
    absent_classes: tuple[AbsentClass, ...]

    @property
    def is_answerable(self) -> bool:
        """True if each class keeps at least 10 effective rows."""
        return min(self.effective.values()) >= FEWEST_EFFECTIVE

    @property
    def verdict(self) -> str:
        """One sentence on whether to use the weights."""
        before = self.association_before[ALL_CONFOUNDS]
        after = self.association_after[ALL_CONFOUNDS]
        if not self.is_answerable:
            few = [name for name, size in self.effective.items() if size < FEWEST_EFFECTIVE]
            return (
                f"This table cannot separate {self.label} from the confounds: too few effective "
                f"rows of {', '.join(few)}. {_WHAT_TO_DO}"
            )
        if before < WEAK_ASSOCIATION:
            return f"{self.label} hardly depends on the confounds: weights would only cost rows."
        if after >= WEAK_ASSOCIATION:
            return f"These weights do not balance {self.label}: R² falls only to {after:.3f}."
        return f"{self.label} can be balanced."

    def __str__(self) -> str:
        sizes = [f"{name} {n:.1f} of {self.rows[name]:,}" for name, n in self.effective.items()]
        lines = [f"{self.label}: largest weight {self.largest:.2f}"]
        lines.append(f"effective rows {', '.join(sizes)}")
        if self.effective_people is not None:
            lines.append(f"effective people {self.effective_people:.1f}")
        for name, before in self.association_before.items():
            lines.append(f"R² on {name} {before:.3f} → {self.association_after[name]:.3f}")
        lines += [*map(str, self.absent_classes), self.verdict]
        return "\n  ".join(lines)


@dataclass(frozen=True, eq=False)
class Balance:
    """Weights of rows, one column per label.

    Attributes:
        kind: "overlap" or "entropy".
        labels: The labels.
        weights: Shape `(n, labels)`; the mean over the rows that have the label is 1, and rows
            without the label have weight 0.
        row_weight: One weight per row for a model of all labels, the mean over labels, `(n,)`: the
            probability with which to draw it.
        design_weight: The weight for `Design.fit`. It is `row_weight`, but 1 at `unweighted`
            levels, so that the design knows them when it encodes other rows.
        reports: What the weights of each label cost and leave.
        unweighted: Levels `(column, level)` whose rows have no weight for any label.
    """

    kind: BalanceKind
    labels: tuple[str, ...]
    weights: Array
    row_weight: Array
    design_weight: Array
    reports: tuple[LabelBalance, ...]
    unweighted: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.kind} weights", *map(str, self.reports)]
        for column, level in self.unweighted:
            lines.append(f"{column} {level} has weight 0 for every label.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the reports as JSON-safe data, without the weights themselves."""
        reports = []
        for report in self.reports:
            verdict = {"is_answerable": report.is_answerable, "verdict": report.verdict}
            reports.append({**asdict(report), **verdict})
        levels = [list(pair) for pair in self.unweighted]
        return {"kind": self.kind, "reports": reports, "unweighted": levels}


def balance(
    table: Table,
    labels: Sequence[str],
    confounds: Sequence[Term],
    kind: BalanceKind = "overlap",
    *,
    types: Mapping[str, Kind] | None = None,
    unseen: Unseen = "error",
    person: str | None = None,
) -> Balance:
    """Return weights of rows under which each label is independent of the confounds.

    With e_l(c) = P(label = l | confounds = c) from a logistic model, the overlap weight of a row is

        (1 / e_own) / Σ_l 1 / e_l

    which is 1 − e for cases and e for controls. The weighted means of all confound columns are then
    equal between two classes; between several classes a little remains, which is reported. Entropy
    weights are the nearest to equal ones under which label and confounds are uncorrelated, and
    the only kind for numeric labels.

    Args:
        table: The rows to weigh: the training rows alone, if a model is tested on others.
        labels: Label columns. Each has its own weights.
        confounds: Columns, `Spline` or `Interaction` terms, as in `Design`.
        kind: "overlap" or "entropy".
        types: Kinds of labels and confounds, as in `Design`.
        unseen: What a missing confound is, "error" or "mean", as in `Design`.
        person: The column of people, for the effective number of people.

    Raises:
        TableError: The confounds determine a label, or have more columns than there are rows.

    Example:
        >>> from deconfound import balance
        >>> table = {"site": ["A"] * 60 + ["B"] * 60, "dx": [1] * 40 + [0] * 70 + [1] * 10}
        >>> print(balance(table, ["dx"], ["site"]))
        overlap weights
        dx: largest weight 2.31
          effective rows 0 45.7 of 70, 1 41.2 of 50
          R² on all confounds 0.257 → 0.000
          R² on site 0.257 → 0.000
          dx can be balanced.
    """
    types = types or {}
    design = _check_options(labels, confounds, kind, types, unseen)
    names = [*labels, *source_columns(confounds), *([person] if person else []), *types]
    columns = read_columns(table, list(dict.fromkeys(names)))
    frame = pd.DataFrame({name: cells.reset_index(drop=True) for name, cells in columns.items()})
    people = to_levels(frame[person]) if person else None
    faults: list[Any] = []
    strata: dict[str, NDArray[np.object_]] = {}
    try:
        strata = _read_strata(frame, design)
    except TableError as error:
        faults += error.faults
    weights: list[Array] = []
    reports: list[LabelBalance] = []
    for name in labels:
        try:
            label = _read_label(frame, name, kind, types.get(name))
            weight, report = _balance_label(label, frame, strata, design, kind, people)
        except TableError as error:
            faults += [fault for fault in error.faults if fault not in faults]
        else:
            weights.append(weight)
            reports.append(report)
    if faults:
        raise TableError(*faults)
    row_weight = np.mean(weights, axis=0)
    design_weight, unweighted = _weigh_empty_levels(row_weight, strata)
    return Balance(
        kind=kind,
        labels=tuple(labels),
        weights=np.stack(weights, axis=1),
        row_weight=row_weight,
        design_weight=design_weight,
        reports=tuple(reports),
        unweighted=unweighted,
    )


@dataclass(frozen=True)
class _Label:
    """A label on the rows that have it.

    Attributes:
        name: The column.
        classes: The classes, sorted; empty for a numeric label.
        rows: The rows with a value, shape `(n,)`.
        values: One 0/1 column per class, or the numbers as a single column, shape `(rows, l)`.
    """

    name: str
    classes: tuple[str, ...]
    rows: Rows
    values: Array


def _check_options(
    labels: Sequence[str],
    confounds: Sequence[Term],
    kind: str,
    types: Mapping[str, Kind],
    unseen: Unseen,
) -> Design:
    """Return the design of the confounds, not fitted; raise all wrong options together."""
    faults = []
    if not isinstance(labels, list | tuple) or not labels or len(set(labels)) < len(labels):
        given = repr(labels) if isinstance(labels, str | list) else f"a {type(labels).__name__}"
        faults.append(f"labels must be a list of different columns; got {given}. Write ['dx'].")
        labels = []
    if kind not in get_args(BalanceKind):
        faults.append(f"kind must be 'overlap' or 'entropy'; got {kind!r}.")
    design = None
    try:
        design = Design(confounds, types=types, unseen=unseen)
        both = [name for name in labels if name in source_columns(confounds)]
        if both:
            faults.append(f"A column cannot be a label and a confound; got {both[0]!r} as both.")
    except OptionError as error:
        faults.append(str(error))
    if faults or design is None:
        raise OptionError("\n".join(faults))
    return design


def _read_strata(frame: pd.DataFrame, design: Design) -> dict[str, NDArray[np.object_]]:
    """Return the level of each row in each categorical confound; a missing cell is a level."""
    names = source_columns(design.confounds)
    numeric: dict[str, Kind] = dict.fromkeys(spline_columns(design.confounds), "numeric")
    types = {name: kind for name, kind in design.types.items() if name in names}
    typed = read_table(frame[list(names)], names, types=types | numeric)
    categorical = [name for name in names if isinstance(typed[name].dtype, pd.CategoricalDtype)]
    return {name: typed[name].astype(object).fillna("missing").to_numpy() for name in categorical}


def _read_label(
    frame: pd.DataFrame, name: str, kind: BalanceKind, label_kind: Kind | None
) -> _Label:
    """Return a label with its classes; a label with one value, or without any, is refused."""
    column = read_table(frame, [name], types={name: label_kind} if label_kind else None)[name]
    rows = column.notna().to_numpy()
    column = column[rows]
    if column.nunique() < 2:
        given = f"only the value {str(column.iloc[0])!r}" if len(column) else "no value"
        raise TableError(f"Label {name!r} must vary; it has {given}. Add rows, or leave it out.")
    if isinstance(column.dtype, pd.CategoricalDtype):
        members = pd.get_dummies(column.cat.remove_unused_categories(), dtype=np.float64)
        return _Label(name, tuple(map(str, members.columns)), rows, members.to_numpy())
    if kind != "entropy":
        raise TableError(
            f"Label {name!r} is numeric, and overlap weights need classes. Write "
            f"kind='entropy', or types={{{name!r}: 'categorical'}} if its numbers are codes."
        )
    return _Label(name, (), rows, column.to_numpy(np.float64)[:, None])


def _balance_label(
    label: _Label,
    frame: pd.DataFrame,
    strata: Mapping[str, NDArray[np.object_]],
    design: Design,
    kind: BalanceKind,
    people: NDArray[np.object_] | None,
) -> tuple[Array, LabelBalance]:
    """Return the weights of one label, shape `(n,)`, and their report."""
    rows = frame.loc[label.rows]
    is_used = np.ones(len(rows), dtype=bool)
    absent: tuple[AbsentClass, ...] = ()
    if label.classes:
        own = {name: levels[label.rows] for name, levels in strata.items()}
        is_used, absent = _exclude_strata(label, own)
    fitted = _fit_quietly(design, rows.loc[is_used])
    encoded = fitted.encode(rows.loc[is_used], dtype=np.float64)
    values = label.values[is_used]
    # The last class follows from the others, so that one column is left out.
    if kind == "entropy":
        columns = values[:, 1:] if label.classes else values
        inside = entropy_weights(columns, encoded, label.name, fitted.names)
    else:
        inside = _overlap_weights(encoded @ fitted.whitening, values.argmax(axis=1), label.name)
    weight = np.zeros(len(rows))
    weight[is_used] = inside / inside.mean() * len(is_used) / is_used.sum()
    whole = np.zeros(len(frame))
    whole[label.rows] = weight
    owners = None if people is None else people[label.rows]
    return whole, _report(label, weight, rows, design, owners, absent)


def _report(
    label: _Label,
    weight: Array,
    rows: pd.DataFrame,
    design: Design,
    people: NDArray[np.object_] | None,
    absent: tuple[AbsentClass, ...],
) -> LabelBalance:
    """Return what the weights of one label cost and leave."""
    members = {"all": np.ones(len(rows), dtype=bool)}
    if label.classes:
        members = dict(zip(label.classes, label.values.T > 0, strict=True))
    by_person = None
    if people is not None:
        codes, _ = pd.factorize(people)
        # A row without an id is a person of its own.
        sums = np.bincount(codes[codes >= 0], weight[codes >= 0])
        by_person = _effective_size(np.concatenate([sums, weight[codes < 0]]))
    fitted = _fit_quietly(design, rows)
    metadata = fitted.encode(rows, dtype=np.float64)
    return LabelBalance(
        label=label.name,
        rows={name: int(where.sum()) for name, where in members.items()},
        effective={name: _effective_size(weight[where]) for name, where in members.items()},
        effective_people=by_person,
        largest=float(weight.max()),
        association_before=_associations(label.values, metadata, fitted, np.ones(len(rows))),
        association_after=_associations(label.values, metadata, fitted, weight),
        absent_classes=absent,
    )


def _fit_quietly(design: Design, rows: pd.DataFrame) -> Design:
    """Fit a copy of the design. The design of the training warns of dropped columns itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        return Design(design.confounds, types=design.types, unseen=design.unseen).fit(rows)


def _exclude_strata(
    label: _Label, strata: Mapping[str, NDArray[np.object_]]
) -> tuple[Rows, tuple[AbsentClass, ...]]:
    """Return the rows of strata that have every class, and the strata that do not.

    Rows of one stratum may be the only ones of a class in another, so this repeats until every
    stratum that is left has all classes.
    """
    coded = {column: pd.factorize(levels) for column, levels in strata.items()}
    is_used = np.ones(len(label.values), dtype=bool)
    absent: list[AbsentClass] = []
    while True:
        is_complete = np.ones(len(is_used), dtype=bool)
        for column, (codes, names) in coded.items():
            # Rows of each class (columns) in each level.
            counts = np.zeros((len(names), len(label.classes)))
            np.add.at(counts, codes[is_used], label.values[is_used])
            rows = counts.sum(axis=1)
            for code in np.flatnonzero((rows > 0) & (counts == 0).any(axis=1)):
                lacks = tuple(np.array(label.classes)[counts[code] == 0].tolist())
                absent.append(AbsentClass(column, str(names[code]), lacks, int(rows[code])))
                is_complete &= codes != code
        if (is_used <= is_complete).all():
            return is_used, tuple(absent)
        is_used &= is_complete
        if not is_used.any():
            raise TableError(
                f"Label {label.name!r} must vary within the strata of the confounds; it does in "
                f"none ({'; '.join(map(str, absent[:3]))}). {_WHAT_TO_DO}"
            )


def _overlap_weights(columns: Array, codes: NDArray[np.intp], label: str) -> Array:
    """Return (1 / e_own) / Σ_l 1 / e_l from a logistic model without penalty, shape `(n,)`.

    Without a penalty the model's score equations hold exactly, Σ (y − e) c = 0. For two classes
    they state that the weighted sums of c are equal.
    """
    # Imported here, because it takes nearly as long as torch, and only weights need it.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    n, q = columns.shape
    if q + 1 >= n:
        raise TableError(
            f"Weights for {label!r} need more rows than columns of confounds; there are {n} rows "
            f"and {q} columns. Leave out confounds or join levels."
        )
    if not q:
        return np.ones(n)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-14, max_iter=1000)
    with warnings.catch_warnings():
        # Classes that the confounds separate have no finite solution; this is checked below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        scores = model.fit(columns, codes).decision_function(columns)
    # For two classes scikit-learn returns the score of the second one alone.
    if scores.ndim == 1:
        scores = np.stack([np.zeros(n), scores], axis=1)
    log_shares = log_softmax(scores, axis=1)
    own = np.arange(n), codes
    if (log_shares[own] > np.log(_CERTAIN)).all():
        raise TableError(
            f"The confounds determine label {label!r} in every row, so no weights make them "
            f"independent. {_WHAT_TO_DO}"
        )
    return np.asarray(softmax(-log_shares, axis=1)[own])


def _weigh_empty_levels(
    row_weight: Array, strata: Mapping[str, NDArray[np.object_]]
) -> tuple[Array, tuple[tuple[str, str], ...]]:
    """Return the weights with 1 at levels that have no weight at all, and these levels."""
    design_weight, unweighted = row_weight.copy(), []
    for column, levels in strata.items():
        for level in pd.unique(levels).tolist():
            if not row_weight[levels == level].any():
                design_weight[levels == level] = 1.0
                unweighted.append((column, str(level)))
    return design_weight, tuple(unweighted)


def _effective_size(weight: Array) -> float:
    """Return (Σw)² / Σw², 0 if all weights are 0."""
    squares = float(weight @ weight)
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def _associations(y: Array, metadata: Array, design: Design, weight: Array) -> dict[str, float]:
    """Return R² of the label on all confounds and on each; of classes, Σ explained / Σ variance."""
    together = np.concatenate([metadata, y], axis=1)
    share = weight / weight.sum()
    # Under other weights the columns have other means.
    together = together - share @ together
    gram = together.T @ (share[:, None] * together)
    p = metadata.shape[1]
    targets = np.arange(p, len(gram))
    variance = np.diag(gram)[targets]
    terms = np.array([str(column.term) for column in design.columns], dtype=object)
    places = {ALL_CONFOUNDS: np.arange(p)}
    places |= {name: np.flatnonzero(terms == name) for name in dict.fromkeys(terms.tolist())}
    explained = {name: explained_share(gram, at, targets) @ variance for name, at in places.items()}
    return {name: float(value / variance.sum()) for name, value in explained.items()}
