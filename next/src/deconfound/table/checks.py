"""Seven checks of a table, for faults that spoil a result without stopping the computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from deconfound.errors import TableError
from deconfound.table.kinds import level_text, to_levels, type_column
from deconfound.table.notes import Note, format_list, format_names, format_rows, notes_of
from deconfound.table.read import Table, read_columns

# Columns with more levels than this, and with more levels than every second row, look like ids.
MOST_LEVELS_OF_A_SMALL_TABLE = 10
# A label that is constant in each cell is a finding only if a cell has this many rows on average.
ROWS_PER_CELL = 3
# One amount that separates the classes is a finding only with this many rows per class.
ROWS_PER_CLASS = 5


def check_table(
    table: Table,
    labels: Sequence[str],
    confounds: Sequence[str],
    person: str | None = None,
    features: Sequence[str] = (),
) -> list[Note]:
    """Return what stands in the way of a sound analysis of this table, errors first.

    1. Ids: a feature or confound whose rows nearly all have levels of their own.
    2. Copies: a feature that is a label, or the label with other names or units.
    3. Texts: numbers with a few texts among them.
    4. Strata: a level of a confound in which a class of the label is absent.
    5. People: a person with several rows.
    6. Constants: a column with a single value.
    7. Determined labels: a label that follows from the confounds without an exception.

    Missing cells of labels, confounds and people are named, too.

    Args:
        table: Any table that `read_table` reads.
        labels: Columns to be predicted.
        confounds: Columns whose effect is to be removed.
        person: The column with the id of the person, if a person may have several rows.
        features: Columns used as input of the network.

    Returns:
        Notes. `note.is_error` is False if the table can be used as it is.

    Example:
        >>> table = {"dx": [0, 1, 0, 1], "sex": ["F", "F", "M", "M"], "group": list("ABAB")}
        >>> for note in check_table(table, ["dx"], ["sex"], features=["group"]):
        ...     print(note)
        Feature 'group' is the label 'dx' in another form. Leave it out of the features.
    """
    names = list(dict.fromkeys([*labels, *confounds, *features]))
    try:
        raw = read_columns(table, list(dict.fromkeys([*names, *([person] if person else [])])))
    except TableError as error:
        return notes_of(error)
    notes: list[Note] = []
    columns = {}
    for name in names:
        try:
            columns[name] = type_column(raw[name], name).reset_index(drop=True)
        except TableError as error:
            notes += notes_of(error)
    # A column that cannot be read has its note, and takes no part in the other checks.
    labels = [name for name in labels if name in columns]
    confounds = [name for name in confounds if name in columns]
    features = [name for name in features if name in columns]
    notes += _find_ids(columns, [*confounds, *features])
    notes += _find_copies(columns, labels, features)
    notes += _find_strata_without_class(columns, labels, confounds)
    notes += _find_repeated_people(raw[person], person) if person else []
    notes += _find_constants(columns, labels)
    notes += _find_determined_labels(columns, labels, confounds)
    notes += _find_missing_cells(columns, labels, confounds)
    return sorted(notes, key=lambda note: not note.is_error)


def _find_ids(columns: dict[str, pd.Series], names: Sequence[str]) -> Iterator[Note]:
    for name in dict.fromkeys(names):
        values = columns[name].dropna()
        count, rows = values.nunique(), len(values)
        if _is_categorical(values):
            is_id = count > max(MOST_LEVELS_OF_A_SMALL_TABLE, rows / 2) or count == rows > 2
        else:
            # Ages may all differ, but only row numbers and ids have no gap as well.
            has_gaps = values.max() - values.min() != rows - 1 or (values % 1 != 0).any()
            is_id = count == rows > MOST_LEVELS_OF_A_SMALL_TABLE and not has_gaps
        if is_id:
            text = f"Column {name!r} has {count} levels in {rows} rows, like ids."
            fix = "Leave it out; amounts with units must be plain numbers (70, not '70 kg')."
            yield Note("id", name, text, fix)


def _find_copies(
    columns: dict[str, pd.Series], labels: Sequence[str], features: Sequence[str]
) -> Iterator[Note]:
    for label in labels:
        for name in features:
            if name == label or _is_recoding(columns[name], columns[label]):
                text = f"Feature {name!r} is the label {label!r} in another form."
                yield Note("copy", name, text, "Leave it out of the features.")


def _find_strata_without_class(
    columns: dict[str, pd.Series], labels: Sequence[str], confounds: Sequence[str]
) -> Iterator[Note]:
    for label in labels:
        for name in confounds:
            if not (_is_categorical(columns[label]) and _is_categorical(columns[name])):
                continue
            counts = pd.crosstab(columns[name], columns[label])
            levels, classes = np.nonzero(counts.to_numpy() == 0)
            pairs = zip(counts.index[levels], counts.columns[classes], strict=True)
            absent = format_list([f"{level!r} has no {class_!r}" for level, class_ in pairs])
            if absent:
                text = f"Confound {name!r} has levels without a class of {label!r}: {absent}."
                fix = "These rows cannot show its effect. Compare the results without them."
                rows = _rows_where(columns[name].isin(counts.index[levels]))
                yield Note("stratum", name, text, fix, rows, is_error=False)


def _find_repeated_people(values: pd.Series, name: str) -> Iterator[Note]:
    people = pd.Series(to_levels(values), dtype=object)
    if people.isna().any():
        rows = _rows_where(people.isna())
        text = f"Column {name!r} has no person in {format_rows(rows)}."
        yield Note("missing", name, text, "Give each row the id of its person.", rows)
    is_repeated = people.duplicated(keep=False) & people.notna()
    if is_repeated.any():
        rows, count = _rows_where(is_repeated), people[is_repeated].nunique()
        text = f"In column {name!r}, {count} people have several rows: {format_rows(rows)}."
        fix = "Keep the rows of a person in one fold, or correct ids that two people share."
        yield Note("person", name, text, fix, rows, is_error=False)


def _find_constants(columns: dict[str, pd.Series], labels: Sequence[str]) -> Iterator[Note]:
    for name, values in columns.items():
        if values.nunique() > 1:
            continue
        level = next((level_text(value) for value in values.dropna()), None)
        text = f"Column {name!r} is empty."
        if level is not None:
            text = f"Column {name!r} has the value {level!r} in every row."
        fix = "Add rows of another class." if name in labels else "Leave it out."
        yield Note("constant", name, text, fix, is_error=name in labels)


def _find_determined_labels(
    columns: dict[str, pd.Series], labels: Sequence[str], confounds: Sequence[str]
) -> Iterator[Note]:
    categorical = [name for name in confounds if _is_categorical(columns[name])]
    # Each confound alone, then all of them crossed.
    crosses = [[name] for name in categorical] + [categorical] * (len(categorical) > 1)
    for label in labels:
        causes = [names for names in crosses if _determine(columns, names, label)]
        for name in confounds:
            if name not in categorical and _separates(columns[name], columns[label]):
                causes.append([name])
        if causes:
            text = f"Label {label!r} follows from {format_names(causes[0])} in every row."
            fix = "Add rows that break this rule; without them, no method can tell the two apart."
            yield Note("determined", label, text, fix)


def _find_missing_cells(
    columns: dict[str, pd.Series], labels: Sequence[str], confounds: Sequence[str]
) -> Iterator[Note]:
    for name in dict.fromkeys([*labels, *confounds]):
        rows = _rows_where(columns[name].isna())
        if rows:
            text = f"Column {name!r} is empty in {format_rows(rows)}."
            fix = f"Fill in these cells, or leave the rows out: table.dropna(subset=[{name!r}])."
            yield Note("missing", name, text, fix, rows, is_error=False)


def _is_recoding(feature: pd.Series, label: pd.Series) -> bool:
    """Return True if each value of one column stands for exactly one value of the other."""
    is_complete = feature.notna() & label.notna()
    feature, label = feature[is_complete], label[is_complete]
    if label.nunique() < 2 or feature.nunique() < 2:
        return False
    if not _is_categorical(feature) and not _is_categorical(label):
        # Amounts may all differ, so that only another unit or sign counts: y = a + b x.
        return bool(abs(np.corrcoef(feature, label)[0, 1]) > 1 - 1e-12)
    if not feature.nunique() == label.nunique() < len(label):
        return False
    pairs = pd.DataFrame({"feature": feature, "label": label}).drop_duplicates()
    return len(pairs) == label.nunique()


def _determine(columns: dict[str, pd.Series], names: Sequence[str], label: str) -> bool:
    """Return True if the label is constant in each cell of the crossed confounds."""
    frame = pd.DataFrame({name: columns[name] for name in [*names, label]}).dropna()
    classes = frame.groupby(list(names), observed=True)[label].nunique()
    is_varied = frame[label].nunique() > 1
    # With few rows per cell, a constant label says nothing.
    return is_varied and len(frame) >= ROWS_PER_CELL * len(classes) and bool((classes == 1).all())


def _separates(amounts: pd.Series, label: pd.Series) -> bool:
    """Return True if thresholds on the amounts give the label in each row."""
    if not _is_categorical(label):
        return _is_recoding(amounts, label)
    frame = pd.DataFrame({"amount": amounts, "label": label}).dropna().sort_values("amount")
    classes = frame["label"].nunique()
    if classes < 2 or len(frame) < ROWS_PER_CLASS * classes:
        return False
    # Each class must be one interval, and no amount may have two classes.
    codes, values = frame["label"].cat.codes.to_numpy(), frame["amount"].to_numpy()
    is_change = codes[1:] != codes[:-1]
    return int(is_change.sum()) == classes - 1 and bool((values[1:] > values[:-1])[is_change].all())


def _is_categorical(values: pd.Series) -> bool:
    return isinstance(values.dtype, pd.CategoricalDtype)


def _rows_where(mask: pd.Series) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask.to_numpy()).tolist())
