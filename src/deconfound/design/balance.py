"""Weights under which labels and confounds are independent, fitted on the rows that they weigh."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.design.balance_report import Balance, LabelBalance, NoOverlap, describe
from deconfound.design.codecs import Kind, LevelCodec, Policy, fit_codec
from deconfound.design.design import Design
from deconfound.design.propensity import Array, cell_shares, class_weights, entropy_weights, fit_logistic
from deconfound.design.table import (
    Table,
    absent_columns,
    category_columns,
    column_names,
    is_missing,
    level_names,
    plain,
    read_columns,
)
from deconfound.design.terms import Linear, Term, as_terms, source_columns
from deconfound.errors import DeconfoundWarning, OptionError, TableError

BalanceKind = Literal["overlap", "inverse", "entropy"]
KINDS: tuple[BalanceKind, ...] = ("overlap", "inverse", "entropy")
# Crossed cells with fewer rows have shares that are mostly noise: a logistic model takes their place.
FEWEST_IN_CELL = 20
# Where every row's own class is likelier than this, the logistic model has no finite solution.
SURE = 1 - 1e-7
NOT_TO_BE_TOLD = (
    "This table cannot tell the label from the confounds: collect rows, join levels, or leave a confound out."
)


def balance(
    table: Table,
    labels: Sequence[str],
    confounds: Sequence[str | Term],
    kind: BalanceKind = "overlap",
    *,
    types: Mapping[str, Kind] | None = None,
    missing: Policy = "error",
    clip: float = 10.0,
    folds: int = 0,
    person: str | None = None,
    seed: int = 0,
) -> Balance:
    """Weights of rows under which each label is independent of the confounds.

    With `e_l(c) = P(label = l | confounds = c)`: "overlap" is `(1/e_l) / Σ_k 1/e_k` (of two classes: 1 − e for
    cases, e for controls), "inverse" is `P(l) / e_l`, "entropy" are the weights nearest to equal ones under which label
    and confounds are uncorrelated, the choice for a numeric label. Where all confounds are categories and every crossed
    cell holds at least 20 rows, `e` are the cells' own shares and independence is exact; else a logistic model on the
    design's columns. Whether a tie should be broken at all, weights cannot say: see `docs/guides/balance.md`.

    Args:
        table: The rows to weigh: the training rows alone, for a model that is tested on others.
        labels: Columns; each gets weights of its own.
        confounds: Columns, or terms such as `Spline("age")`.
        kind: "overlap", "inverse" or "entropy".
        types: Force how a column is read, as in `Design`.
        missing: What a missing confound is: an error, or the mean (a level of its own among categories). Rows without a
            label have weight 0 for it.
        clip: With "inverse", the largest weight, in multiples of their mean.
        folds: Estimate `e` for each row from other rows, in so many parts, instead of in-sample. Independence is then
            not exact, and what is left is reported.
        person: The column of people, for effective sample sizes and for parts that keep people whole.
        seed: Of the parts.

    Example:
        >>> table = {"site": ["A"] * 60 + ["B"] * 60, "dx": ([1] * 40 + [0] * 20) + ([1] * 10 + [0] * 50)}
        >>> weights = balance(table, ["dx"], ["site"]).weights[:, 0]
        >>> [round(float(weights[i] / weights[0]), 3) for i in (0, 59, 60, 119)]  # 1 − e of cases, e of controls
        [1.0, 2.0, 2.5, 0.5]
    """
    _check_options(labels, confounds, kind, clip, folds)
    names = [*labels, *([person] if person else [])]
    faults = absent_columns(names, column_names(table), "labels and person")
    faults += absent_columns(source_columns(as_terms(confounds, "confounds")), column_names(table), "confounds")
    if faults:
        raise TableError(faults)
    types = {**dict.fromkeys(category_columns(table, labels), "categorical"), **(types or {})}
    columns = read_columns(table, [*names, *source_columns(as_terms(confounds, "confounds"))])
    design = _design(table, confounds, {k: v for k, v in types.items() if k not in labels}, missing)
    people = _people(columns[person]) if person else None
    fitted = [
        _one_label(table, name, columns[name], design, kind, types.get(name), clip, folds, people, seed)
        for name in labels
    ]
    return describe(fitted, kind, _strata(design, table), people)


def _check_options(labels: Any, confounds: Any, kind: str, clip: float, folds: int) -> None:
    if isinstance(labels, str) or not len(labels):
        raise OptionError(f"labels must be a list of at least one column; got {labels!r}. Write ['dx'].")
    both = [name for name in labels if name in [str(term) for term in confounds]]
    if both:
        raise OptionError(f"a column must be a label or a confound; got {both[0]!r} as both.")
    if kind not in KINDS:
        raise OptionError(f"kind must be one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
    if not clip > 1:
        raise OptionError(f"clip must be above 1, the mean of the weights; got {clip}.")
    if not isinstance(folds, int) or folds < 0 or folds == 1:
        raise OptionError(f"folds must be 0 (in-sample) or at least 2; got {folds!r}.")


def _design(table: Table, confounds: Sequence[str | Term], types: Any, missing: Policy) -> Design:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the design of the run warns of the same
        return Design(confounds, types=types, missing=missing).fit(table)


def _people(column: NDArray[Any]) -> NDArray[np.intp]:
    return np.unique([str(plain(value)) for value in column.tolist()], return_inverse=True)[1].astype(np.intp)


def _strata(design: Design, table: Table) -> dict[str, tuple[NDArray[np.intp], tuple[str, ...]]]:
    """The level of each row in each categorical confound, and the names of the levels; a missing cell is a level."""
    columns = read_columns(table, list(design.levels))
    found = {}
    for name, levels in design.levels.items():
        coded = LevelCodec(name, levels, ()).encode(columns[name], "mean")
        assert coded.index is not None
        empty = ("missing",) if (coded.index == len(levels)).any() else ()
        found[name] = coded.index, (*level_names(levels), *empty)
    return found


def _one_label(
    table: Table,
    name: str,
    values: NDArray[Any],
    design: Design,
    kind: BalanceKind,
    forced: Kind | None,
    clip: float,
    folds: int,
    people: NDArray[np.intp] | None,
    seed: int,
) -> LabelBalance:
    """The weights of one label, zero where it is missing or a stratum lacks a class."""
    present = np.array([not is_missing(value) for value in values.tolist()])
    classes, codes = _classes(name, values[present], forced, kind)
    metadata = design.encode(table, np.float64)[present]
    strata = {column: (index[present], levels) for column, (index, levels) in _strata(design, table).items()}
    whole = np.zeros(len(codes), np.intp) if classes is None else codes.astype(np.intp)
    y = codes[:, None] if classes is None else np.eye(len(classes))[whole][:, 1:]
    lacking: tuple[NoOverlap, ...] = ()
    how, separated = "entropy", False
    if classes is None or kind == "entropy":
        names = (name,) if classes is None else tuple(f"{name}[{level}]" for level in classes[1:])
        inside = _entropy(y, metadata, names, design.names)
    else:
        used, lacking = _overlapping(name, whole, classes, strata)
        cells = _cells(design, strata, used)
        parts = _parts(used, folds, None if people is None else people[present], seed)
        shares, separated = _shares(metadata, cells, whole, len(classes), parts, name)
        how = "cells" if cells is not None else "logistic"
        _refuse_determined(name, shares[used, whole[used]], how)
        inside = class_weights(kind, shares, whole, used, clip)
    weight, code = np.zeros(len(values)), np.full(len(values), -1)
    weight[present], code[present] = inside, whole
    terms = tuple(column.term for column in design.columns)
    return LabelBalance(name, classes, code, weight, lacking, how, y, metadata, terms, present, separated)


def _classes(name: str, values: NDArray[Any], forced: Kind | None, kind: str) -> tuple[tuple[str, ...] | None, Array]:
    """The names of the classes and the code of each row; None and the numbers for a numeric label."""
    if not len(values):
        raise TableError(f"label {name!r} must have a value in at least one row; got none.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        codec, _ = fit_codec(name, values, forced, "error", np.ones(len(values)))
    if not isinstance(codec, LevelCodec):
        distinct = np.unique(values.astype(np.float64))
        if len(distinct) > 2 or (forced == "numeric" and kind == "entropy"):
            if kind != "entropy":
                raise OptionError(
                    f"kind must be 'entropy' for a numeric label; got {kind!r} for {name!r}. Pass types={{{name!r}: "
                    "'categorical'} if its numbers are names of classes."
                )
            return None, (values.astype(np.float64) - codec.mean) / codec.sd
        codec, _ = fit_codec(name, values, "categorical", "error", np.ones(len(values)))
    assert isinstance(codec, LevelCodec)
    names = level_names(codec.levels)
    if len(names) < 2:
        raise TableError(f"label {name!r} must have at least two classes; got {names[0]!r} alone.")
    index = codec.encode(values, "error").index
    assert index is not None
    return names, index.astype(np.float64)


def _entropy(y: Array, metadata: Array, y_names: tuple[str, ...], names: tuple[str, ...]) -> Array:
    """Weights on standardised columns, so that one tolerance serves all."""
    scaled = [(block - block.mean(0)) / np.where(block.std(0) > 1e-12, block.std(0), 1.0) for block in (y, metadata)]
    return entropy_weights(scaled[0], scaled[1], y_names, names)


def _overlapping(
    name: str, codes: NDArray[np.intp], classes: tuple[str, ...], strata: Mapping[str, Any]
) -> tuple[NDArray[np.bool_], tuple[NoOverlap, ...]]:
    """The rows of strata that hold every class, and the strata that do not; leaving one out may empty another."""
    used = np.ones(len(codes), bool)
    lacking: list[NoOverlap] = []
    before = -1
    while before != used.sum():
        before = used.sum()
        for column, (index, levels) in strata.items():
            counts = np.zeros((len(levels) + 1, len(classes)), dtype=int)
            np.add.at(counts, (index[used], codes[used]), 1)
            for level in range(len(levels)):
                absent = tuple(classes[c] for c in range(len(classes)) if not counts[level, c])
                if counts[level].any() and absent:
                    lacking.append(NoOverlap(name, column, levels[level], absent, int(counts[level].sum())))
                    used &= index != level
    if not used.any():
        listed = "; ".join(str(item) for item in lacking[:5])
        raise TableError(
            f"label {name!r} must vary within the strata of the confounds to be balanced; got none where it does "
            f"({listed}). {NOT_TO_BE_TOLD}"
        )
    return used, tuple(lacking)


def _refuse_determined(name: str, own: Array, how: str) -> None:
    """Refuse a label that a logistic model tells from the confounds in every row: weights would be rounding errors."""
    if how == "logistic" and bool((own > SURE).all()):
        raise TableError(
            f"label {name!r} must vary among rows of like confounds to be balanced; got confounds that determine it in "
            f"every row. {NOT_TO_BE_TOLD}"
        )


def _cells(design: Design, strata: Mapping[str, Any], used: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """The crossed cell of each row, where all confounds are categories and no cell has few rows; else None."""
    if not all(isinstance(term, Linear) and term.column in strata for term in design.confounds):
        return None
    crossed = np.stack([index for index, _ in strata.values()], axis=1)
    cells = np.unique(crossed, axis=0, return_inverse=True)[1].reshape(-1).astype(np.intp)
    counts = np.bincount(cells[used])
    return cells if counts[counts > 0].min() >= FEWEST_IN_CELL else None


def _parts(
    used: NDArray[np.bool_], folds: int, people: NDArray[np.intp] | None, seed: int
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of rows to estimate from and rows to estimate for; people stay whole."""
    rows = np.flatnonzero(used)
    if not folds:
        return [(rows, rows)]
    units = rows if people is None else people[rows]
    distinct = np.unique(units)
    if len(distinct) < folds:
        raise OptionError(f"folds must be at most the number of people, {len(distinct)}; got {folds}.")
    shuffled = np.random.default_rng(seed).permutation(len(distinct)) % folds
    part = shuffled[np.searchsorted(distinct, units)]
    return [(rows[part != fold], rows[part == fold]) for fold in range(folds)]


def _shares(
    metadata: Array, cells: NDArray[np.intp] | None, codes: NDArray[np.intp], classes: int, parts: Any, name: str
) -> tuple[Array, bool]:
    """`(n, classes)`: P(class | confounds) of each row that is used; and whether confounds separate the classes."""
    shares = np.zeros((len(codes), classes))
    separated = False
    for source, target in parts:
        if cells is not None:
            learned = np.zeros((int(cells.max()) + 1, classes))
            known = cell_shares(cells[source], codes[source], classes)
            learned[: len(known)] = known
            shares[target] = learned[cells[target]]
            continue
        columns = metadata[source]
        varying = columns[:, columns.std(0) > 1e-9]
        if varying.shape[1] + 1 >= len(source):
            raise TableError(
                f"balance must have more rows than columns of confounds; got {len(source)} rows and "
                f"{varying.shape[1]} columns for {name!r}. Leave confounds out or join levels."
            )
        fit = fit_logistic(columns, codes[source], classes)
        separated |= fit.separated
        shares[target] = fit.predict(metadata[target])
    return shares, separated


def try_balance(design: Design, table: Table) -> Balance | TableError:
    """What balancing these rows would give, numeric labels by entropy, or the error that says why it gives nothing."""
    try:
        try:
            return design.balance(table)
        except OptionError:
            return design.balance(table, "entropy")
    except TableError as fault:
        return fault
