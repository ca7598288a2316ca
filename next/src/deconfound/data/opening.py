"""Open a source of samples, whatever it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.data.array_files import ARRAY_ENDINGS, as_samples, read_arrays
from deconfound.data.cache import Decoder, OnProgress, decode_files
from deconfound.data.datasets import choose_input, read_dataset
from deconfound.data.features import FeatureEncoder, select_names
from deconfound.data.folders import open_folder
from deconfound.data.matching import Matching, read_frame
from deconfound.data.samples import Samples, digest, digest_array
from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.table import Kind, Table, format_names, read_columns, read_table

# A path; an array, tensor, table or dataset.
Source = Any


def open_samples(  # noqa: PLR0913
    source: Source,
    table: Table | None = None,
    *,
    id: str | None = None,
    features: str | Sequence[str] | None = None,
    roles: Sequence[str] = (),
    types: Mapping[str, Kind] | None = None,
    size: Any = None,
    reader: str | Decoder | None = None,
    skip_bad: bool = False,
    cache: str | os.PathLike[str] | None = None,
    encoder: FeatureEncoder | None = None,
    on_progress: OnProgress | None = None,
) -> Samples:
    """Return the samples of any source, as one array and one table with the same rows.

    With a table, the samples are its rows, in its order. Samples without a row are left out and
    named in a note. A row without a sample is an error, unless `skip_bad`.

    Pictures and scans are decoded once, by threads, into the cache, and are read from there by all
    later commands and processes. Datasets are read into memory.

    Args:
        source: One of these:

            - a table (.csv, .tsv, .parquet, .xlsx, DataFrame, mapping, …): x is its columns;
            - arrays (.npy, .npz, .pt, .safetensors, an array, a tensor); in a file of several,
              those of shape `(n,)` are columns, and the only other one is x;
            - a folder of pictures or scans, which the column `id` of the table names: by file
              name or path, with or without ending;
            - a folder in the BIDS layout: one sample per scan, with the row of its person in
              participants.tsv, whose column of people is `participant_id`;
            - a dataset of PyTorch or Hugging Face, or any object with `len()` and `source[i]`: an
              item is the input, a tuple that begins with it, or a dict, whose texts and numbers
              are columns.
        table: Labels, confounds and ids, if the source does not hold them. Two tables need `id`.
            Arrays and datasets without ids are matched by position.
        id: The column of ids, which must differ in each row. They stay text: 007 is not 7.
        features: What of the source is the input: names or globs, `-` before one excludes it.
            They select columns of a table (default: those without a role), the array of a file,
            the entry of a dict, or files by their path (default in BIDS: `sub-*_T1w.*`).
        roles: Columns that are labels, confounds, people or folds: no features. The fingerprint
            covers them; without any, it covers all columns but the features.
        types: The kind of feature columns, "numeric" or "categorical", where the rule is wrong.
        size: The size of pictures and scans: 64, (64, 48), or the `shape` of other samples. None
            keeps that of the files, which must then be equal.
        reader: A function `path → array`, or "module:function", for other formats. It returns one
            sample, channels first; what is not uint8 is stored as float32.
        skip_bad: Whether files that cannot be read and rows without a file are left out, with a
            note. Otherwise all of them are named in an error.
        cache: The folder of decoded samples; None is `cache_folder()`.
        encoder: The encoder of other samples, so that new rows become the same columns.
        on_progress: Called with the number of samples read, that of all, and a text.

    Raises:
        TableError: Files, columns or ids cannot be read or do not fit together.
        OptionError: An option is wrong, or it is not clear what is meant.
        ShapeError: Samples are not finite, or differ in shape.
        StateError: The cache cannot be written.

    Example:
        >>> import numpy as np
        >>> people = {"age": [63, 71, 58], "dx": ["AD", "CN", "CN"]}
        >>> samples = open_samples(np.eye(3), people, roles=["age", "dx"])
        >>> samples.x.shape, samples.kind, samples.ids.tolist()
        ((3, 3), 'array', ['0', '1', '2'])
    """
    form = _find_form(source)
    if reader is not None and form != "folder":
        raise OptionError("reader= is for folders of files; the source is none. Leave it out.")
    if size is not None and form not in ("folder", "dataset"):
        raise OptionError("size= is for pictures and scans; the source has none. Leave it out.")
    matching = Matching(None if table is None else read_frame(table), id, skip_bad)
    if form == "folder":
        decode = partial(decode_files, folder=cache, skip_bad=skip_bad, on_progress=on_progress)
        samples = open_folder(Path(source), matching, features, size, reader, decode)
    elif form == "table":
        samples = _open_table(source, matching, features, roles, types, encoder)
    else:
        if form == "dataset":
            x, columns = read_dataset(source, features, size, on_progress)
        else:
            x, columns = _split_arrays(source, features)
        pairs = matching.pair_rows(columns)
        if not np.array_equal(pairs.samples, np.arange(len(x))):
            x = x[pairs.samples]
        samples = Samples(x, pairs.table, pairs.ids, None, "array", digest_array(x), pairs.notes)
    inputs = [] if samples.features is None else list(samples.features.columns)
    names = [*roles] or [str(name) for name in samples.table if name not in inputs]
    named = pd.DataFrame(read_columns(samples.table, names) if names else {})
    parts = [samples.fingerprint, *samples.ids, named.to_csv(index=False)]
    return replace(samples, fingerprint=digest(*parts))


def _find_form(source: Source) -> Literal["folder", "arrays", "table", "dataset"]:
    """Return what a source is."""
    if isinstance(source, (str, os.PathLike)):
        if Path(source).is_dir():
            return "folder"
        return "arrays" if Path(source).name.lower().endswith(ARRAY_ENDINGS) else "table"
    if isinstance(source, Mapping):
        names = [name for name, part in source.items() if hasattr(part, "column_names")]
        if names:
            fix = f"Pass one of them, such as source[{names[0]!r}]."
            raise OptionError(f"The source holds several datasets: {format_names(names)}. {fix}")
    package = type(source).__module__.split(".")[0]
    if isinstance(source, (pd.DataFrame, Mapping)) or package in ("pyarrow", "polars"):
        return "table"
    is_array = hasattr(source, "__array__") or hasattr(source, "detach")
    return "arrays" if is_array else "dataset"


def _open_table(
    source: Source,
    matching: Matching,
    features: str | Sequence[str] | None,
    roles: Sequence[str],
    types: Mapping[str, Kind] | None,
    encoder: FeatureEncoder | None,
) -> Samples:
    """Open columns of a table, joined with another one by id."""
    columns = read_frame(source)
    if matching.table is not None:
        if matching.id is None:
            raise OptionError("Two tables need a column that joins them. Write id='…'.")
        read_columns(columns, [matching.id])
    pairs = matching.pair_rows(columns)
    cells = pairs.table
    if encoder is None:
        usual = [str(name) for name in columns if name not in (*roles, matching.id)]
        names = select_names([*map(str, cells)], features, usual, "feature column")
        kinds = {name: kind for name, kind in (types or {}).items() if name in names}
        try:
            # Columns with their kinds are parsed once, and not again to encode them.
            cells = read_table(cells[names], types=kinds)
            encoder = FeatureEncoder.fit(cells, names, kinds)
        except TableError as error:
            columns_in_doubt = dict.fromkeys(getattr(fault, "column", "") for fault in error.faults)
            excluded = [f"-{name}" for name in columns_in_doubt]
            fix = f"Or leave these columns out of the features: features={excluded}."
            raise TableError(*error.faults, fix) from None
    x = encoder.encode(cells)
    return Samples(x, pairs.table, pairs.ids, encoder, "table", digest_array(x), pairs.notes)


def _split_arrays(
    source: Source, features: str | Sequence[str] | None
) -> tuple[NDArray[Any], pd.DataFrame]:
    """Return one array of several, and those of shape `(n,)` as columns."""
    is_file = isinstance(source, (str, os.PathLike))
    arrays = read_arrays(Path(source)) if is_file else {"": source}
    columns = {name: values for name, values in arrays.items() if np.ndim(values) == 1 and name}
    inputs = [name for name in arrays if name not in columns]
    name = choose_input(inputs, features, "array")
    x = as_samples(arrays[name])
    if x.ndim < 2 or not len(x):
        fix = "Pass one row per sample: values.reshape(n, -1)."
        raise ShapeError(f"The array has shape {x.shape}. {fix}")
    # With a column of its length, because a table has columns, and all of one length.
    return x, read_frame({**columns, name: range(len(x))}).drop(columns=name)
