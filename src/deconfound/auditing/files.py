"""Files of outputs: tables, arrays, which columns are outputs and what they stand for, and the join between files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data import TABLES, join_positions, read_table, refuse_bomb
from deconfound.design.table import absent, in_rows, is_missing, level_text
from deconfound.errors import TableError

Columns = dict[str, NDArray[Any]]
ID_NAMES = ("participant_id", "subject_id", "scan_id", "sample_id", "row_id", "subject", "id", "eid")
# Families of columns that hold outputs; of several in one file the first says most.
FAMILIES = ("logit", "score", "prob", "prediction", "output", "y_hat", "yhat", "pred")

# Their words as they are written.
_WORDS = (
    *("logit", "logits", "score", "scores", "prob", "probs", "proba", "probas", "probability", "probabilities"),
    *("prediction", "predictions", "output", "outputs", "y_hat", "yhat", "pred", "preds", "predicted"),
)


@dataclass(frozen=True)
class Content:
    """A file: named columns (a table), or arrays by name (`.npy` has one, named "")."""

    path: Path
    columns: Columns
    arrays: dict[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter((self.columns or self.arrays).values())))


def read_file(path: Path, text: Sequence[str] = (), as_it_is: Sequence[str] = ()) -> Content:
    """Read CSV, TSV, Parquet, NPY or NPZ; the columns named in `text` stay text, so that an id keeps its zeros.

    They do so in any capitals, but for the columns named in `as_it_is`.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing there"
        raise TableError(f"{path} must be a file; got {what}. Check the path.")
    kind = path.suffix.lower()
    if kind in (".npy", ".npz"):
        return Content(path, {}, _arrays(path))
    if kind not in TABLES:
        raise TableError(
            f"{path} must end in {', '.join(TABLES)}, .npy or .npz; got {kind or 'no ending'!r}. Save it as one."
        )
    columns, names = read_table(path, text), {name.casefold() for name in text}
    others = [name for name in columns if name.casefold() in names and name not in (*text, *as_it_is)]
    return Content(path, read_table(path, [*text, *others]) if others else columns, {})


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    refuse_bomb(path)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).rstrip(".")
        raise TableError(f"{path} must hold plain arrays of numbers; got {reason}. Save it without objects.") from error
    if isinstance(loaded, np.ndarray):
        arrays = {"": loaded}
    else:
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    if not arrays or not all(array.ndim and array.size for array in arrays.values()):
        raise TableError(f"{path} must hold arrays with one row per sample; got none, or one that is empty.")
    return arrays


def output_columns(columns: Columns, skip: set[str]) -> list[str]:
    """The columns that are called like outputs: one family of them, numbers before class names.

    `score_sd_…` (the spread over models) is no output, and `predicted_…` (the class) only where nothing else is.
    """
    named = [name for name in columns if called_like_outputs(name) and name not in skip]
    named = [name for name in named if not re.match(r"[a-z]+_sd(_|$)", name.lower())]
    scores = [name for name in named if not name.lower().startswith("predicted")]
    numeric = [name for name in scores if columns[name].dtype.kind in "fiu"]
    for family in FAMILIES:
        if found := [name for name in numeric if name.lower().startswith(family)]:
            return found
    return scores or named


def called_like_outputs(name: str) -> bool:
    """Whether a name begins with the word of a family: `prob_AD` and `scoreAD` do, `Proband` and `problems` do not."""
    for word in _WORDS:
        begin, after = name[: len(word)], name[len(word) : len(word) + 1]
        if begin.lower() == word and (not after.isalpha() or (begin[-1].islower() and after.isupper())):
            return True
    return False


def positive_level(columns: Columns, outputs: Sequence[str], label: str) -> str | None:
    """The class that `predicted_LABEL` names where the score of that label is high; None where it does not say.

    It may be none of the label's own, as True beside 0 and 1.
    """
    answer = columns.get(f"predicted_{label}")
    scores = [name for name in outputs if name.partition("_")[2] == label]
    if answer is None or len(scores) != 1 or columns[scores[0]].dtype.kind not in "fiu":
        return None
    high = columns[scores[0]] > (0.0 if scores[0].lower().startswith("logit") else 0.5)
    above = {level_text(value) for value in answer[high].tolist()}
    below = {level_text(value) for value in answer[~high].tolist()}
    return above.pop() if len(above) == 1 and not above & below else None


def stacked(file: Content, names: Sequence[str]) -> NDArray[Any]:
    """Columns of outputs side by side: numbers, or one column of class names, filled in every row."""
    faults = []
    for name in names:
        cells = file.columns[name].tolist()
        empty = [row for row, value in enumerate(cells) if is_missing(value)]
        text = [row for row, value in enumerate(cells) if isinstance(value, str)]
        if empty:
            faults.append(f"{name!r} must be filled in every row; got nothing {in_rows(empty)}. Leave these rows out.")
        elif text and len(names) > 1:
            faults.append(
                f"{name!r} must be numbers beside other outputs; got {cells[text[0]]!r} {in_rows(text)}. Name the "
                "columns of numbers with --outputs."
            )
    if faults:
        raise TableError("\n".join(f"{file.path}: output {fault}" for fault in faults))
    columns = [file.columns[name] for name in names]
    return columns[0] if len(columns) == 1 else np.column_stack(columns)


def with_ids_called_alike(contents: Sequence[Content], wanted: str | None) -> list[Content]:
    """The files, each with its ids also under the names that the first table has for them in other capitals."""
    first = next((content for content in contents if content.columns), None)
    if first is None:
        return list(contents)
    ids = {*ID_NAMES, *([wanted.casefold()] if wanted else [])}
    names = [*([wanted] if wanted else []), *(name for name in first.columns if name.casefold() in ids)]
    out = []
    for content in contents:
        own = {name.casefold(): name for name in reversed(content.columns)}
        alike = {name: own[name.casefold()] for name in names if name.casefold() in own and name not in content.columns}
        more = {name: content.columns[other] for name, other in alike.items()}
        out.append(replace(content, columns=content.columns | more) if more else content)
    return out


def id_column(wanted: str | None, contents: Sequence[Content]) -> str | None:
    """The column that joins the tables: the named one, else a usual name that all of them have, else None."""
    tables = [content for content in contents if content.columns]
    if wanted is not None:
        for content in tables:
            faults = absent([wanted], list(content.columns), f"--id of {content.path}")
            if faults:
                raise TableError(faults[0])
        return wanted
    called = {name.casefold(): name for name in reversed(tables[0].columns)} if tables else {}
    names = [called[name] for name in ID_NAMES if name in called]
    shared = [name for name in names if all(name in content.columns for content in tables)]
    return shared[0] if shared and len(tables) > 1 else None


def matched_rows(left: Content, right: Content, key: str | None) -> NDArray[np.intp]:
    """For each row of `left` its row in `right`, by the id column or, without one, by position."""
    if key is None or not left.columns or not right.columns:
        if left.rows != right.rows:
            raise TableError(
                f"{left.path} and {right.path} must have the same rows in the same order where no id joins them; "
                f"got {left.rows} and {right.rows} rows. Name the column that both share with --id."
            )
        if left is not right:
            _refuse_other_order(left, right)
        return np.arange(left.rows)
    join_positions(left.path, left.columns[key], key)
    place = join_positions(right.path, right.columns[key], key)
    missing = [value for value in left.columns[key].tolist() if value not in place]
    if missing:
        raise TableError(
            f"{right.path} must hold every {key!r} of {left.path}; got no row for {missing[0]!r} "
            f"({len(missing)} of {left.rows} are absent). Add the rows, or leave them out of {left.path.name}."
        )
    return np.array([place[value] for value in left.columns[key].tolist()])


def _refuse_other_order(left: Content, right: Content) -> None:
    """Refuse files that share a column with a value of its own in each row, the same ones in another order."""
    called = {name.casefold(): name for name in right.columns}
    for name in left.columns:
        other = called.get(name.casefold())
        if other is None or called_like_outputs(name):
            continue
        mine, its = (list(map(level_text, cells.tolist())) for cells in (left.columns[name], right.columns[other]))
        if mine != its and len(set(mine)) == len(mine) and set(mine) == set(its):
            row = next(row for row, pair in enumerate(zip(mine, its, strict=True)) if pair[0] != pair[1])
            raise TableError(
                f"{left.path} and {right.path} must have their rows in the same order where no id joins them; got "
                f"{name!r} = {mine[row]} and {its[row]} in row {row}, and the same values in another order. Join them "
                f"with --id '{name}', or sort both alike."
            )


@dataclass(frozen=True)
class JoinedFiles:
    """The files of an audit as they were read; rows of all of them are matched to those of the first.

    Attributes:
        predictions: One file for each model, or one for all.
        table: The table of people; the first of the predictions where there is no other.
        features: Hidden features.
        key: The column that joins predictions and table; None where the order of the rows has to do.
    """

    predictions: tuple[Content, ...]
    table: Content
    features: Content | None
    key: str | None

    @property
    def first(self) -> Content:
        """The file that gives the rows and their order."""
        return self.predictions[0]

    def rows_of(self, other: Content) -> NDArray[np.intp]:
        """For each row of the first file its row in another."""
        return matched_rows(self.first, other, self.key)
