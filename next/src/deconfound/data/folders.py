"""Folders of pictures, scans or other files, decoded into the cache."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.data.array_files import as_samples
from deconfound.data.bids import PERSON, pair_scans
from deconfound.data.cache import Decoded, Decoder, MakeDecoder, OnProgress, map_files
from deconfound.data.features import select_names
from deconfound.data.images import IMAGE_ENDINGS, measure_image, read_image, read_size, reading
from deconfound.data.matching import Matching, Pairs, pair, read_ids
from deconfound.data.samples import SampleKind, Samples
from deconfound.data.scans import SCAN_ENDINGS, measure_scan, read_scan
from deconfound.errors import OptionError, TableError, import_named
from deconfound.table import format_names


def open_folder(
    folder: Path,
    matching: Matching,
    features: str | Sequence[str] | None,
    size: Any,
    reader: str | Decoder | None,
    decode: Callable[..., Decoded],
) -> Samples:
    """Return the samples of a folder, with the rows that name its files.

    Args:
        folder: The folder. With a folder sub-… per person, its scans belong to people.
        matching: The table, and its column that names the files.
        features: Globs of the paths of files.
        size: The size of pictures and scans.
        reader: A function that reads other files.
        decode: `decode_files` with its options.
    """
    if reader is not None and size is not None:
        raise OptionError("size= has no effect on a reader. Let it return samples of this size.")
    is_study = matching.id in (None, PERSON) and any(folder.glob("sub-*/"))
    endings = SCAN_ENDINGS if is_study else (*IMAGE_ENDINGS, *SCAN_ENDINGS)
    usual = "sub-*_T1w.*" if is_study else None
    names = _list_files(folder, features or usual, endings if reader is None else ("",))
    if is_study:
        pairs = pair_scans(names, folder, matching.table, matching.skip_bad)
    else:
        pairs = _pair_files(names, folder, matching)
    paths = [folder / names[place] for place in pairs.samples]
    if reader is None:
        decoded = decode(paths, *_find_decoder(names, paths, size))
    else:
        decoded = decode(paths, *_load_reader(reader))
    table = pairs.table.iloc[decoded.good].reset_index(drop=True)
    kinds: dict[int, SampleKind] = {4: "image", 5: "scan"}
    kind = kinds.get(decoded.x.ndim, "array")
    notes = (*pairs.notes, *decoded.notes)
    return Samples(decoded.x, table, pairs.ids[decoded.good], None, kind, decoded.digest, notes)


def _find_decoder(
    names: Sequence[str], paths: Sequence[Path], size: Any
) -> tuple[MakeDecoder, dict[str, Any]]:
    """Return what makes the decoder of pictures or scans, and what it depends on."""
    scans = sum(name.lower().endswith(SCAN_ENDINGS) for name in names)
    if 0 < scans < len(names):
        raise OptionError(
            f"There are {len(names) - scans:,} pictures and {scans:,} scans. Select one kind, such "
            "as features=['*.png'] or features=['*.nii.gz']."
        )
    word, measure, read, axes = "picture", measure_image, read_image, 2
    if scans:
        word, measure, read, axes = "scan", measure_scan, read_scan, 3

    def make_decoder(on_progress: OnProgress | None) -> tuple[Decoder, str]:
        measured = map_files(measure, paths, f"Measuring {word}s", on_progress)
        # Files whose headers cannot be read are reported when they are decoded.
        shapes = [shape for shape in measured if not isinstance(shape, TableError)]
        shape, note = _choose_shape(shapes, size, word) if shapes else (size, "")
        return partial(read, size=shape), note

    return make_decoder, {"word": word, "size": read_size(size, axes)}


def _choose_shape(
    shapes: Sequence[tuple[int, ...]], size: Any, what: str
) -> tuple[tuple[int, ...], str]:
    """Return the shape `(channels, …)` of all samples, and a note if some are resized.

    Args:
        shapes: The shape `(channels, …)` of each file. Grey ones get the channels of the others.
        size: The size to bring them to; None keeps theirs, if it is the same for all.
        what: What a file holds, for messages.

    Raises:
        OptionError: Lists the sizes that there are, with a size to write.
    """
    channels, lengths = read_size(size, len(shapes[0]) - 1)
    channels = channels or max(shape[0] for shape in shapes)
    counts = Counter(shape[1:] for shape in shapes)
    usual = counts.most_common(1)[0][0]
    if lengths is None and len(counts) > 1:
        listed = [f"{_format_size(size)} ({count:,})" for size, count in counts.most_common(5)]
        raise OptionError(
            f"The {what}s have {len(counts)} sizes, most often {', '.join(listed)}. "
            f"Write size={usual} to bring all of them to one size."
        )
    lengths = lengths or usual
    others = len(shapes) - counts[lengths]
    note = f"{others:,} {what}s of other sizes were resized to {_format_size(lengths)}."
    return (channels, *lengths), note if others else ""


def _format_size(lengths: Sequence[int]) -> str:
    return " × ".join(map(str, lengths))


def _list_files(
    folder: Path, features: str | Sequence[str] | None, endings: tuple[str, ...]
) -> list[str]:
    """Return the paths within the folder that `features` selects; hidden files are left out."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    # A leading "/." stands before each hidden folder or file, such as those of macOS.
    visible = [path for path in paths if "/." not in f"/{path}"]
    names = sorted(path for path in visible if path.lower().endswith(endings))
    if not names:
        raise TableError(
            f"The folder {str(folder)!r} has no file with one of the endings {', '.join(endings)}. "
            "Unpack archives, or write reader='module:function' for another format."
        )
    return select_names(names, features, names, "file")


def _pair_files(names: Sequence[str], folder: Path, matching: Matching) -> Pairs:
    """Pair files with the rows that name them; without a table take all files."""
    table = matching.table
    if table is None:
        numbers = np.arange(len(names))
        return Pairs(numbers, pd.DataFrame(index=numbers), np.array(names, dtype=object))
    if matching.id is None:
        columns = ", ".join(repr(name) for name in table)
        raise OptionError(f"Which column names the files? Write id= with one of {columns}.")
    ids, index = read_ids(table, matching.id), index_files(names, folder)
    paths = {text: text.replace("\\", "/").removeprefix("./") for text in ids}
    places = {text: index[path] for text, path in paths.items() if path in index}
    counts = Counter(place for text in places for place in places[text])
    wrong = [text for text in places if len(places[text]) > 1 or counts[places[text][0]] > 1]
    if wrong:
        text = f"{len(wrong):,} ids mean several files, or one of another row"
        files = format_names(names[place] for place in places[wrong[0]])
        fix = f"{wrong[0]!r} means {files}. Write one path in each row."
        raise TableError(f"{text}: {format_names(wrong)}. {fix}")
    return pair(table, ids, places, names, "file", matching.skip_bad)


def index_files(names: Sequence[str], folder: Path) -> dict[str, list[int]]:
    """Return the places of the files that a text may mean.

    A text is a file name or the end of its path, with or without ending. A text that is the path of
    one file within the folder means no other.

    Example:
        >>> index_files(["a/007.nii.gz", "b/007.nii.gz"], Path("study"))["007"]
        [0, 1]
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        parts = f"{folder.absolute().as_posix()}/{name}".split("/")
        for start in range(len(parts)):
            # The path from the root starts with "/".
            end = "/".join(parts[start:])
            for text in {end, re.sub(r"(\.nii)?\.\w+$", "", end)}:
                places.setdefault(text, []).append(place)
    return places | {name: [place] for place, name in enumerate(names)}


def _load_reader(reader: str | Decoder) -> tuple[MakeDecoder, dict[str, Any]]:
    """Return what makes the decoder that "module:function" names, and what it depends on.

    That is the source of its module, so that no samples of older code are read.
    """
    function = import_named(reader, "Reader") if isinstance(reader, str) else reader
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        raise OptionError(
            f"reader={reader!r} has no source file, by which the cache knows its samples. Write a "
            "function in a file."
        ) from None

    def decode(path: Path) -> NDArray[Any]:
        with reading(path):
            return as_samples(function(path))

    return lambda _: (decode, ""), {"reader": f"{function.__qualname__} {source}"}
