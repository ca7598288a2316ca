"""What a run reads from, samples by row number beside a table; and arrays, in memory or in a file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deconfound.data.files import file_digest
from deconfound.data.tables import join_positions, read_table
from deconfound.design.table import absent_columns, in_rows
from deconfound.errors import Fault, TableError

_NUMBERS_AT_ONCE = 2**24


@runtime_checkable
class Source(Protocol):
    """Samples and their table. Tables of features, arrays, and folders of scans all look like this to a run.

    Attributes:
        table: Column name → values, one per sample.
        shape: The shape of one sample, without the batch axis.
        fingerprint: A digest of the content: a run that is resumed refuses other data. A source whose content may
            change has a method `current_fingerprint()` as well: the same digest of what is there now. A source that
            leaves out rows of its table has `row_numbers`: for each sample, its row in the table as given.
    """

    table: Mapping[str, Any]
    shape: tuple[int, ...]

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The samples of these rows, float32, `(len(rows), *shape)`."""
        ...


@dataclass(frozen=True)
class SourceNote:
    """What a reader did with a column that a user may have expected among the features.

    Attributes:
        kind: "coded" (text, as one 0/1 column per level), "left out" (no feature), "identifier" (names rows), "copies
            label", "another rater" (of the label), "repeated rows", or "empty cells" (which reveal the column).
        column: The column.
        text: The sentence.
    """

    kind: Literal["coded", "left out", "identifier", "copies label", "another rater", "repeated rows", "empty cells"]
    column: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False, repr=False)
class ArraySource:
    """Samples along the first axis of an array, memory-mapped where it is a file of its own; see `Source`.

    Attributes:
        names: One for each feature where the array holds columns of a table; else empty.
        notes: What was done with columns that are no numbers, one record each.
        files: Where the content lies, in the order in which the fingerprint was made of it.
        row_numbers: The row of each sample in the table of people, where some of its rows were left out.
    """

    values: NDArray[Any]
    table: Mapping[str, Any]
    fingerprint: str
    names: Sequence[str] = ()
    notes: Sequence[SourceNote] = ()
    files: Sequence[Path] = ()
    row_numbers: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        self.shape: tuple[int, ...] = self.values.shape[1:]

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The samples of these rows as float32, NaN where a cell is empty."""
        with np.errstate(over="ignore"):  # too large for float32 is infinite, and refused by `check_finite`
            return np.asarray(self.values[rows], dtype=np.float32)

    def current_fingerprint(self) -> str:
        """The fingerprint of the files as they lie on the disk now."""
        try:
            return fingerprint(self.files) if self.files else self.fingerprint
        except OSError as error:
            return f"unreadable: {error}"


def check_finite(
    source: Source, missing: Literal["error", "mean"] = "error", setting: str = "data.missing_features"
) -> None:
    """Refuse samples with infinite values, and with NaN unless NaN means the mean: one rule for all sources.

    Args:
        source: Read a part at a time.
        missing: "mean" accepts NaN, except where a sample has nothing else.
        setting: What the option is called where the user sets it.
    """
    size = max(1, int(np.prod(source.shape)))
    at_once = max(1, _NUMBERS_AT_ONCE // size)
    empty: list[int] = []
    infinite: list[int] = []
    cells = np.zeros((2, size), dtype=np.int64)
    for start in range(0, len(source), at_once):
        rows: NDArray[Any] = np.arange(start, min(len(source), start + at_once))
        flat = source.read(rows).reshape(len(rows), -1)
        no_number, endless = np.isnan(flat), np.isinf(flat)
        if missing == "mean":  # a sample with nothing else has no mean either
            no_number &= no_number.all(1, keepdims=True)
        cells += np.stack([no_number.sum(0), endless.sum(0)])
        empty += rows[no_number.any(1)].tolist()
        infinite += rows[endless.any(1)].tolist()
    names: Sequence[str] = getattr(source, "names", ())
    faults = []
    if infinite:
        text = f"samples must be finite; got infinite values {in_rows(infinite)}{_worst(names, cells[1])}."
        faults.append(Fault("not finite", "", text, rows=tuple(infinite), advice="Correct or leave out these rows."))
    if empty:
        what = "an empty value" if missing == "error" else "nothing but empty values"
        text = f"samples must be filled in every row; got {what} {in_rows(empty)}{_worst(names, cells[0])}."
        advice = "Fill or leave out these rows or columns"
        advice += f", or set {setting}: mean to take the mean of the training rows." if missing == "error" else "."
        faults.append(Fault("missing", "", text, rows=tuple(empty), advice=advice))
    if faults:
        raise TableError(faults)


def _worst(names: Sequence[str], cells: NDArray[np.int64]) -> str:
    """The columns with most faults, where features have names."""
    if not len(names):
        return ""
    listed = [f"{names[place]} ({cells[place]})" for place in np.argsort(-cells, kind="stable")[:5] if cells[place]]
    count = int((cells > 0).sum())
    return f", in {count} {'column' if count == 1 else 'columns'}: {', '.join(listed)}"


def open_array(
    path: str | Path,
    *,
    table: str | Path | None,
    id: str | None = None,
    array: str | None = None,
    text: Sequence[str] = (),
    max_gb: float = 1.0,
) -> ArraySource:
    """Open an array and its table.

    Args:
        path: NPY `(n, …)`, or NPZ with such an array and, where the rows are in another order, one of ids.
        table: One row per sample.
        id: The column of `table`, and the name of the NPZ's array of ids, that join the two.
        array: Which array of the NPZ holds the samples, where it has several.
        text: Columns of the table that stay text beside `id`, so that names of people keep their zeros.
        max_gb: Refuse a compressed NPZ that unpacks to more gigabytes than this and to over 100 times its own size: a
            small broken or forged file would otherwise take all memory.
    """
    path = Path(path)
    if table is None:
        raise TableError(f"data.table must be given beside {path.name}; got none. An array has no columns of its own.")
    if not path.is_file():
        raise TableError(f"{path} must be a file; got nothing there. Check the path.")
    columns = read_table(table, [*text, *([id] if id else [])])
    files = [path, Path(table)]
    digest = fingerprint(files)
    refuse_bomb(path, max_gb)
    values, names = _load(path, array, id)
    if values.ndim < 2 or values.dtype.kind not in "biuf":
        raise TableError(f"{path} must hold numbers of shape (samples, …); got shape {values.shape} of {values.dtype}.")
    if names is not None:
        faults = absent_columns([str(id)], list(columns), f"data.id in {Path(table).name}")
        if faults:
            raise TableError(faults)
        place = join_positions(path, names, str(id))
        join_positions(Path(table), columns[str(id)], str(id))
        missing = [name for name in columns[str(id)].tolist() if name not in place]
        if missing:
            raise TableError(
                f"{path} must hold a sample for every {id!r} of {Path(table).name}; got none for {missing[0]!r} "
                f"({len(missing)} are absent)."
            )
        values = values[[place[name] for name in columns[str(id)].tolist()]]
    rows = len(next(iter(columns.values())))
    if rows != len(values):
        raise TableError(
            f"{path.name} and {Path(table).name} must have as many rows; got {len(values)} and {rows}. Join them with "
            "data.id and an array of ids in an NPZ."
        )
    return ArraySource(values, columns, digest, files=files)


def refuse_bomb(path: Path, max_gb: float = 1.0) -> None:
    """Refuse an archive that claims to unpack to far more than its size suggests, before memory is taken for it."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(item.file_size for item in archive.infolist())
    except Exception:  # whoever reads it says why it cannot be read
        return
    on_disk = path.stat().st_size
    if claimed > max_gb * 1e9 and claimed > 100 * on_disk:
        raise TableError(
            f"{path} must not unpack to more than {max_gb:g} GB and 100 times its size; got {claimed / 1e9:.3g} GB "
            f"from {on_disk:,} bytes. If you trust the file, raise max_gb."
        )


def _load(path: Path, array: str | None, id: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with path.open("rb") as file:  # numpy leaves a broken archive open
            zipped = file.read(2) == b"PK"
            file.seek(0)
            if not zipped:
                return np.load(path, mmap_mode="r", allow_pickle=False), None
            archive = np.load(file, allow_pickle=False)
            names = archive[id].astype(str).astype(object) if id in archive.files else None
            choices = [name for name in archive.files if name != id]
            chosen = array if array is not None else choices[0] if len(choices) == 1 else None
            if chosen in archive.files:
                return archive[chosen], names
    except Exception as error:  # each way of being broken has a kind of its own
        why = str(error).rstrip(".")
        raise TableError(f"{path} must hold plain arrays of numbers; got {why}. Save it without objects.") from error
    raise TableError(f"data.array must be one of {', '.join(choices)} in {path.name}; got {array!r}.")


def fingerprint(paths: Sequence[Path]) -> str:
    """A digest of the content of files, whatever they are called."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(bytes.fromhex(file_digest(path)))
    return whole.hexdigest()
