"""Which reader opens what: a table, an array, a folder of images, or scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deconfound.data.features import open_table
from deconfound.data.images import ENDINGS, find_path_column, open_images
from deconfound.data.scans import open_scans
from deconfound.data.sources import Source, open_array
from deconfound.data.tables import TABLES, read_table
from deconfound.errors import OptionError, TableError


def open_source(
    source: str | Path,
    *,
    table: str | Path | None = None,
    id: str | None = None,
    array: str | None = None,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    roles: Sequence[str] = (),
    text: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Open a table of features, an array, a folder of images or scans, whichever `source` names.

    Args:
        source: A table, an NPY or NPZ file, a folder of images, a BIDS folder, or a table of paths of scans.
        table: The table of people, where it is not the source itself.
        id: The column that joins table and source.
        array: Which array of an NPZ holds the samples.
        features: Columns that are inputs, of a table.
        exclude: Columns that are no inputs, of a table.
        roles: Columns that are labels, confounds and the like, and so no features.
        text: Columns of the table that stay text beside `id`, so that names of people keep their zeros.
        options: Further arguments of `open_array`, `open_images` or `open_scans`.
    """
    path, given = Path(source), dict(options or {})
    kind = path.suffix.lower()
    if not path.is_dir() and kind not in (*TABLES, ".npy", ".npz"):
        raise TableError(
            f"data.source must be a table ({', '.join(TABLES)}), an array (.npy, .npz), or a folder of images or "
            f"scans; got {str(source)!r}, which is none. Check the path."
        )
    try:
        if kind in (".npy", ".npz"):
            return open_array(path, table=table, id=id, array=array, text=text, **given)
        if not reads_files(path, given):
            return open_table(
                path, table=table, id=id, features=features, exclude=exclude or (), roles=roles, text=text
            )
        text = [*text, *([id] if id else [])]
        if table is not None and _are_images(path, table, given.get("path_column")):
            return open_images(path, table=table, text=text, **given)
        return open_scans(path, table=table, text=text, **given)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise OptionError(f"data.options must be arguments of the reader of {path.name}; got {error}.") from error


def reads_files(source: str | Path, options: Mapping[str, Any] | None = None) -> bool:
    """Whether a source is read file by file (images or scans), where single files may be bad."""
    kind = Path(source).suffix.lower()
    return kind not in (".npy", ".npz") and (kind not in TABLES or bool(options))


def _are_images(folder: Path, table: str | Path, path_column: str | None) -> bool:
    """Whether a table names images of a folder."""
    if not folder.is_dir():
        return False
    columns = read_table(table)
    columns = read_table(table, list(columns))
    if path_column is None:
        try:
            find_path_column(columns, folder)
        except TableError:
            return False
        return True
    cells = columns[path_column].tolist() if path_column in columns else []
    return any(str(cell).lower().endswith(ENDINGS) for cell in cells)
