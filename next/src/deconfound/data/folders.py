"""Folders of pictures, scans or other files, decoded into the cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.array_files import as_samples
from deconfound.data.cache import Decoder, OnProgress, map_files
from deconfound.data.features import select_names
from deconfound.data.images import IMAGE_ENDINGS, measure_image, read_image, reading
from deconfound.data.intensity import choose_shape
from deconfound.data.scans import SCAN_ENDINGS, measure_scan, read_scan
from deconfound.errors import OptionError, TableError, import_named


@dataclass(frozen=True)
class FileFormat:
    """How files of one format are found, measured and decoded.

    Attributes:
        word: What a file is called.
        endings: The endings of their names.
        axes: The number of axes of a sample without channels.
        measure: Returns the shape of a file from its header.
        decode: Returns the sample, given a path and a size.
    """

    word: str
    endings: tuple[str, ...]
    axes: int
    measure: Callable[[Path], tuple[int, ...]]
    decode: Callable[..., NDArray[np.uint8]]

    def make_decoder(
        self, files: Sequence[Path], size: Any, on_progress: OnProgress | None
    ) -> tuple[Decoder, str]:
        """Return the function that decodes these files to one shape, and a note on resizing."""
        measured = map_files(self.measure, files, f"Measuring {self.word}s", on_progress)
        # Files whose headers cannot be read are reported when they are decoded.
        shapes = [shape for shape in measured if not isinstance(shape, TableError)]
        shape, note = choose_shape(shapes, size, self.word) if shapes else (size, "")
        return partial(self.decode, size=shape), note


IMAGES = FileFormat("picture", IMAGE_ENDINGS, 2, measure_image, read_image)
SCANS = FileFormat("scan", SCAN_ENDINGS, 3, measure_scan, read_scan)


def is_bids(folder: Path) -> bool:
    """Return True if a folder has a folder per person, called sub-…."""
    return any(path.is_dir() for path in folder.glob("sub-*"))


def list_files(
    folder: Path, features: str | Sequence[str] | None, endings: tuple[str, ...]
) -> list[str]:
    """Return the paths within the folder that `features` selects; hidden files are left out."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]
    # A leading "/." stands before each hidden folder or file, such as those of macOS.
    visible = [path for path in paths if "/." not in f"/{path.as_posix()}"]
    names = sorted(path.as_posix() for path in visible if path.name.lower().endswith(endings))
    if not names:
        raise TableError(
            f"The folder {str(folder)!r} has no file with one of the endings {', '.join(endings)}. "
            "Unpack archives, or write reader='module:function' for another format."
        )
    return select_names(names, features, names, "file")


def find_format(names: Sequence[str]) -> FileFormat:
    """Return the one format of some files."""
    scans = sum(name.lower().endswith(SCAN_ENDINGS) for name in names)
    if 0 < scans < len(names):
        raise OptionError(
            f"There are {len(names) - scans:,} pictures and {scans:,} scans. Select one kind, such "
            "as features=['*.png'] or features=['*.nii.gz']."
        )
    return SCANS if scans else IMAGES


def load_reader(reader: str | Decoder) -> tuple[Decoder, str]:
    """Return the function that "module:function" names, and the source of its module.

    The source is part of the key of the cache, so that no samples of older code are read.
    """
    function: Any = reader
    if isinstance(reader, str):
        function = import_named(reader, "Reader")
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        raise OptionError(
            f"reader={reader!r} has no source file, by which the cache knows its samples. Write a "
            "function in a file."
        ) from None
    return partial(_apply_reader, function), f"{function.__qualname__} {source}"


def _apply_reader(reader: Decoder, path: Path) -> NDArray[Any]:
    with reading(path):
        return as_samples(reader(path))
