"""Folds: which rows a network is trained on, which choose its best epoch, and which test it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from deconfound.errors import OptionError, TableError, nearest_names
from deconfound.table import Table, format_rows, read_columns, read_table
from deconfound.training.tasks import Task

Codes = NDArray[np.int64]
FoldKind = Literal["k-fold", "holdout", "leave-one-out", "column"]

# Numeric labels are stratified by this number of quantile bins.
BINS = 5
# The code of a level that is too rare to be a stratum; -1 is a missing one.
FEW = -2


@dataclass(frozen=True, eq=False)
class Fold:
    """Row numbers of the three parts of one fold, which share no row and no person.

    Attributes:
        name: The number of the fold, or the level whose rows are its test rows.
        train: Rows to which everything is fitted, sorted.
        validation: Rows that choose the best epoch, sorted.
        test: Rows that are only predicted, sorted.
        note: A sentence on rows that belong to no part; empty if there are none.
    """

    name: str
    train: Codes
    validation: Codes
    test: Codes
    note: str = ""


def split_folds(  # noqa: PLR0913
    table: Table,
    task: Task,
    *,
    kind: FoldKind = "k-fold",
    folds: int = 5,
    column: str | None = None,
    stratum: str | None = None,
    person: str | None = None,
    ids: Sequence[str] | None = None,
    test: float = 0.2,
    validation: float = 0.15,
    seed: int = 0,
) -> tuple[Fold, ...]:
    """Divide the rows of a table into folds.

    The rows of a person stay in one part of a fold. Parts are stratified by the labels (a numeric
    one by fifths) and, where enough people share label and stratum, also by the stratum. A class of
    a label is absent from the validation rows only if a single person of the other rows has it.

    Equal tables and seeds give equal folds. With `ids` they do not depend on the order of the rows.

    Args:
        table: The rows.
        task: Their labels.
        kind: "k-fold" tests each row in one of `folds` folds. "holdout" is a single fold.
            "leave-one-out" has a fold for each level of `column`, such as a site, that tests the
            rows of this level. People who were also seen there leave its training and validation
            rows, and `note` counts them. "column" is the same for a column that names folds.
        folds: The number of folds of "k-fold".
        column: The column of "leave-one-out" and "column".
        stratum: A column whose levels are spread evenly, such as the site.
        person: The column of people; None takes each row as another person.
        ids: A unique text for each row.
        test: The share of test rows of "holdout", rounded to a half, a third, a fourth, ….
        validation: The share of validation rows among the rows that are not tested, rounded in the
            same way. With 0 there are none.
        seed: The seed of the division.

    Returns:
        The folds, of a column in the order of its levels.

    Raises:
        OptionError: Lists all options with impossible values.
        TableError: Lists all faults of the table: absent columns, missing cells, classes with fewer
            people than folds, folds with nobody to train on.

    Example:
        >>> table = {"dx": [0, 1] * 10, "site": list("AABB") * 5}
        >>> task = Task("binary", ("dx",), (("0", "1"),))
        >>> fold = split_folds(table, task, folds=4, stratum="site", validation=0.2)[0]
        >>> len(fold.train), len(fold.validation), len(fold.test)
        (12, 3, 5)
    """
    _check_options(kind, folds, column, {"test": test, "validation": validation})
    rows = _read_rows(table, task, column, stratum, person)
    if ids is not None:
        rows = rows.iloc[np.argsort(np.asarray(ids, dtype=str), kind="stable")]
    if person is None:
        rows = rows.assign(person=np.arange(len(rows)))
    if kind == "k-fold":
        _check_classes(rows, task, folds)
        part = _divide(rows, folds, seed)
        tests = {str(number): part == number for number in range(folds)}
    elif kind == "holdout":
        tests = {"0": _hold_out(rows, test, seed)}
    else:
        tests = {level: rows["level"] == level for level in rows["level"].cat.categories}
    result, faults = [], []
    for name, is_test in tests.items():
        people = rows["person"][is_test]
        rest = rows[~rows["person"].isin(people)]
        if not len(people) or rest["person"].nunique() < 2:
            faults.append(
                f"Fold {name!r} has {len(people)} rows to test, and {rest['person'].nunique()} "
                "people to train on. Use fewer folds, or a column with more levels."
            )
            continue
        left_out = people[people.isin(rows["person"][~is_test])].nunique()
        count = len(rows) - len(rest) - len(people)
        note = f"{count} rows of {left_out} people are left out: their other rows are tested."
        is_held_out = _hold_out(rest, validation, seed)
        parts = rest.index[~is_held_out], rest.index[is_held_out], people.index
        train, held_out, tested = (np.sort(part.to_numpy()) for part in parts)
        result.append(Fold(name, train, held_out, tested, note if left_out else ""))
    if faults:
        raise TableError(*faults)
    return tuple(result)


def _check_options(kind: str, folds: int, column: str | None, shares: Mapping[str, float]) -> None:
    faults = []
    if kind not in get_args(FoldKind):
        faults.append(f"There is no kind {kind!r}. {nearest_names(kind, get_args(FoldKind))}")
    if kind in ("leave-one-out", "column") and column is None:
        faults.append(f"kind={kind!r} needs a column; got None. Write column='site'.")
    if not isinstance(folds, int) or folds < 2:
        faults.append(f"folds must be a whole number, 2 or more; got {folds!r}.")
    for name, share in shares.items():
        if not 0 <= share <= 0.5:
            faults.append(f"{name} must be a share between 0 and 0.5; got {share!r}.")
    if faults:
        raise OptionError("\n".join(faults))


def _read_rows(
    table: Table, task: Task, column: str | None, stratum: str | None, person: str | None
) -> pd.DataFrame:
    """Return codes of the rows: a column per label, then "stratum", "person" and "level"."""
    filled = [name for name in (column, person) if name is not None]
    names = [*task.labels, *filled, *([] if stratum is None else [stratum])]
    raw = read_columns(table, names)
    levels = read_table(raw, types=dict.fromkeys(raw, "categorical")).reset_index(drop=True)
    faults: list[object] = []
    try:
        targets = task.encode(raw)
    except TableError as error:
        faults += error.faults
    for name in dict.fromkeys(filled):
        if gaps := np.flatnonzero(levels[name].isna()).tolist():
            faults.append(f"Column {name!r} is empty in {format_rows(gaps)}. Fill these cells.")
    if faults:
        raise TableError(*faults)
    if task.kind == "numeric":
        edges = np.quantile(targets, np.arange(1, BINS) / BINS, axis=0)
        targets = (targets > edges[:, None]).sum(axis=0)
    rows = pd.DataFrame(targets.reshape(len(levels), -1).astype(np.int64))
    rows["stratum"] = 0 if stratum is None else levels[stratum].cat.codes
    rows["person"] = 0 if person is None else levels[person].cat.codes
    rows["level"] = None if column is None else levels[column]
    return rows


def _check_classes(rows: pd.DataFrame, task: Task, folds: int) -> None:
    """Refuse classes that would be absent from a fold."""
    faults = []
    for place, (label, levels) in enumerate(zip(task.labels, task.levels, strict=True)):
        for code, level in enumerate(levels):
            people = rows["person"][rows[place] == code].nunique()
            if people < folds:
                faults.append(
                    f"Label {label!r} is {level!r} for {people} people, fewer than {folds} folds. "
                    "Use fewer folds, or join this class with another one."
                )
    if faults:
        raise TableError(*faults)


def _divide(rows: pd.DataFrame, parts: int, seed: int) -> Codes:
    """Return the part of each row, from 0 on, shape `(n,)`; parts are alike and share no person.

    With fewer people than parts, the last parts are empty.
    """
    result = np.zeros(len(rows), dtype=np.int64)
    parts = min(parts, rows["person"].nunique())
    if parts < 2:
        return result
    cells = rows.drop(columns=["person", "level"])
    # Rows whose cell has too few people share a cell with other strata, then with other classes.
    for place in reversed(cells.columns):
        people = rows["person"].groupby([cells[name] for name in cells]).transform("nunique")
        cells.loc[people < parts, place] = FEW
    cell = cells.groupby(list(cells)).ngroup().to_numpy()
    # With the cells of a class in a row, its rows are dealt evenly, and not only those of a cell.
    order = np.argsort(cell, kind="stable")
    cell, units = cell[order], rows["person"].to_numpy()[order]
    # Where each person has one row, both divide alike, and the second is a hundred times faster.
    kind = StratifiedGroupKFold if rows["person"].duplicated().any() else StratifiedKFold
    splitter = kind(parts, shuffle=True, random_state=seed)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        # Warnings are about small cells, and people who do not matter to the second.
        for number, (_, places) in enumerate(splitter.split(cell, cell, units)):
            result[order[places]] = number
    return result


def _hold_out(rows: pd.DataFrame, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which rows are held out: one of 1 / share parts, with people of all classes."""
    if share == 0:
        return np.zeros(len(rows), dtype=bool)
    is_held_out: NDArray[np.bool_] = _divide(rows, round(1 / share), seed) == 0
    people, rng = rows["person"].to_numpy(), np.random.default_rng(seed)
    # A class that one side lacks gets a person from the other side. The rows to train on come last,
    # because they need each class more: a class of one person goes back to them.
    for side in (True, False):
        for place in rows.columns.drop(["stratum", "person", "level"]):
            for code in np.unique(rows[place]):
                has_class = (rows[place] == code).to_numpy()
                donors = np.unique(people[has_class & (is_held_out != side)])
                is_absent = not has_class[is_held_out == side].any()
                is_emptied = len(np.unique(people[is_held_out != side])) < 2
                if is_absent and not is_emptied:
                    is_held_out[people == rng.choice(donors)] = side
    return is_held_out
