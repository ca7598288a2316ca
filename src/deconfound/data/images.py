"""A folder of images and a table of their names as a source of samples: decoded and resized once, then stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.data.bids import TEXT, list_paths
from deconfound.data.cache import VolumeFault
from deconfound.data.file_source import FileSource, Reading, check_reading, open_files
from deconfound.data.tables import Columns, read_table
from deconfound.data.volumes import Packing, check_contrast, check_packing, pack, reading, robust_scale
from deconfound.design.table import Table, is_missing
from deconfound.errors import OptionError, TableError, need

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".dcm")
# What columns of file names are usually called.
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "image_id", "img")
Resize = Literal["stretch", "crop", "pad"]
Channels = Literal["rgb", "grey"]


def open_images(
    folder: str | Path,
    *,
    table: str | Path | Table,
    path_column: str | None = None,
    size: int | Sequence[int] = 224,
    channels: Channels = "rgb",
    resize: Resize = "stretch",
    dtype: Packing = "uint8",
    text: Sequence[str] = (),
    skip_bad: bool = False,
    max_gb: float = 1.0,
    cache: str | Path | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> FileSource:
    """Open images: decode each once, bring it to one size, and read it from a memory map from then on.

    Args:
        folder: Where the names of the table start.
        table: A table or its file, one row per image.
        path_column: The column of file names; if None, the one whose cells name files of the folder. Endings may be
            left out.
        size: Height and width, or one number for both.
        channels: "rgb", or "grey" for one channel.
        resize: "stretch" the whole image to the size; scale it and "crop" the middle; or scale it and "pad" with zeros.
        dtype: How a pixel is stored: "uint8" in 255 steps, or "float16".
        text: Columns of the table that stay text, so that names of people keep their zeros.
        skip_bad: Go on without images that cannot be read or matched, and warn, instead of refusing all.
        max_gb: The most gigabytes of float32 that an image may claim; above it an image is refused unread.
        cache: Where images are stored; `DECONFOUND_CACHE` or the user's cache folder by default.
        jobs: Threads that decode; one per core by default.
        progress: Whether a bar is shown while images are decoded.

    8-bit images keep their values; others (16-bit, float, DICOM) are scaled from 0 to the 99.5th percentile of each.

    Raises:
        ScanError: Names every image that cannot be read and every row without one.
    """
    need("PIL", "images")
    check_reading(jobs, max_gb)
    height, width = _check(size, channels, resize, dtype)
    folder = Path(folder)
    if not folder.is_dir():
        raise TableError(f"{folder} must be a folder of images; got no folder there. Check the path.")
    columns = read_table(table, (*TEXT, *text))
    texts = read_table(table, list(columns))  # a name such as 0007 keeps its zeros
    column = path_column or find_path_column(texts, folder)
    if column in columns:
        columns[column] = np.array([_found(folder, cell) for cell in texts[column].tolist()], dtype=object)
    listing = list_paths(columns, column, folder)
    listing = replace(
        listing,
        names=texts[column][listing.numbers].tolist(),  # as the table has them, without the endings that were found
        tables=(Path(table),) if isinstance(table, str | Path) else (),
    )
    shape = (3 if channels == "rgb" else 1, height, width)

    def read(file: Path) -> NDArray[Any]:
        return pack(read_image(file, shape, resize, max_gb), dtype)

    settings: dict[str, object] = {"kind": "images", "channels": channels, "resize": resize}
    return open_files(listing, read, Reading("image", settings, shape, shape, dtype, skip_bad, cache, jobs, progress))


def find_path_column(columns: Columns, folder: Path) -> str:
    """The column of text whose cells name files of the folder: a usual name first, else that with most of them."""
    there = {name: _share_there(cells, folder) for name, cells in columns.items()}
    usual = [name for name in columns if name.lower() in PATH_COLUMNS and there.get(name)]
    best = usual[0] if usual else max(there, key=lambda name: there[name], default="")
    if not there.get(best):
        raise TableError(
            f"the table must have a column of names of files in {folder}; got none among {', '.join(columns)} (endings "
            f"{', '.join(ENDINGS)}). Name it with path_column."
        )
    return best


def read_image(path: Path, shape: tuple[int, ...], resize: Resize, max_gb: float = 1.0) -> NDArray[np.float32]:
    """One image `(channels, height, width)` in 0 … 1.

    Raises:
        VolumeFault: The file is absent, broken, has several frames or no contrast, or claims too much memory.
    """
    with reading(path):
        pixels = _dicom(path) if path.suffix.lower() == ".dcm" else _decoded(path, max_gb)
    check_contrast(pixels, "pixel")
    if pixels.shape[2] != shape[0]:
        grey = pixels @ np.array([0.299, 0.587, 0.114], np.float32) if pixels.shape[2] == 3 else pixels[..., 0]
        pixels = np.repeat(grey[..., None], shape[0], axis=2)
    return np.clip(_resized(pixels, shape[1], shape[2], resize), 0, 1).transpose(2, 0, 1)


def _decoded(path: Path, max_gb: float) -> NDArray[np.float32]:
    """`(height, width, 1 or 3)` in 0 … 1, turned as the camera says."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        wide, high = image.size
        if wide * high * 4 * 3 > max_gb * 1e9:
            raise VolumeFault(
                f"claims {wide} × {high} pixels, which is above the limit; raise it with max_gb=…", lasting=False
            )
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise VolumeFault(f"must have one frame; got {frames}")
        turned = ImageOps.exif_transpose(image)
        if turned.mode in ("I", "F") or turned.mode.startswith("I;"):
            return robust_scale(np.asarray(turned, dtype=np.float32))[..., None]
        grey = turned.mode in ("1", "L", "LA")
        pixels: NDArray[np.float32] = np.asarray(turned.convert("L" if grey else "RGB"), dtype=np.float32)
        return (pixels[..., None] if grey else pixels) / np.float32(255)


def _dicom(path: Path) -> NDArray[np.float32]:
    """A single frame `(height, width, 1 or 3)` in 0 … 1, dark where there is little signal."""
    dataset = need("pydicom", "dicom").dcmread(path)
    pixels = np.asarray(dataset.pixel_array, dtype=np.float32)
    if int(getattr(dataset, "NumberOfFrames", 1) or 1) > 1 or pixels.ndim not in (2, 3):
        raise VolumeFault(f"must have one frame; got pixels of shape {pixels.shape}")
    pixels = pixels * float(getattr(dataset, "RescaleSlope", 1) or 1) + float(
        getattr(dataset, "RescaleIntercept", 0) or 0
    )
    pixels = pixels - pixels.min()
    if getattr(dataset, "PhotometricInterpretation", "") == "MONOCHROME1":
        pixels = pixels.max() - pixels
    scaled = robust_scale(pixels)
    return scaled[..., None] if scaled.ndim == 2 else scaled


def _resized(pixels: NDArray[np.float32], height: int, width: int, resize: Resize) -> NDArray[np.float32]:
    """Bilinear, averaging where pixels become larger; each channel as floats, so that 16 bits stay."""
    from PIL import Image

    have_h, have_w = pixels.shape[:2]
    scale_h, scale_w = height / have_h, width / have_w
    if resize != "stretch":
        scale_h = scale_w = max(scale_h, scale_w) if resize == "crop" else min(scale_h, scale_w)
    new_h, new_w = max(1, round(have_h * scale_h)), max(1, round(have_w * scale_w))
    scaled = np.stack(
        [
            np.asarray(Image.fromarray(pixels[..., channel]).resize((new_w, new_h), Image.Resampling.BILINEAR))
            for channel in range(pixels.shape[2])
        ],
        axis=2,
    )
    out = np.zeros((height, width, pixels.shape[2]), np.float32)
    from_h, from_w = max(0, (new_h - height) // 2), max(0, (new_w - width) // 2)
    to_h, to_w = max(0, (height - new_h) // 2), max(0, (width - new_w) // 2)
    part = scaled[from_h : from_h + height, from_w : from_w + width]
    out[to_h : to_h + part.shape[0], to_w : to_w + part.shape[1]] = part
    return out


def _found(folder: Path, cell: Any) -> Any:
    """The name of the file that a cell means: as it is, or with the ending that the folder has."""
    if is_missing(cell) or Path(str(cell)).suffix.lower() in ENDINGS:
        return cell
    hits = [f"{cell}{ending}" for ending in ENDINGS if (folder / f"{cell}{ending}").is_file()]
    if len(hits) > 1:
        raise TableError(
            f"{str(cell)!r} must be the name of one file in {folder}; got {' and '.join(hits)}. Write the ending in "
            "the table, or move one of them."
        )
    return hits[0] if hits else cell


def _share_there(cells: NDArray[Any], folder: Path) -> float:
    some = [cell for cell in cells.tolist()[:50] if not is_missing(cell)]
    hits = [Path(str(_found(folder, cell))) for cell in some]
    return sum(hit.suffix.lower() in ENDINGS and (folder / hit).is_file() for hit in hits) / max(1, len(some))


def _check(size: Any, channels: str, resize: str, dtype: str) -> tuple[int, int]:
    edges = (size, size) if isinstance(size, int | np.integer) else tuple(size) if isinstance(size, Sequence) else ()
    if len(edges) != 2 or any(not isinstance(edge, int | np.integer) or edge < 1 for edge in edges):
        raise OptionError(f"size must be a positive whole number, or two for height and width; got {size!r}.")
    if channels not in ("rgb", "grey"):
        raise OptionError(f"channels must be 'rgb' or 'grey'; got {channels!r}.")
    if resize not in ("stretch", "crop", "pad"):
        raise OptionError(f"resize must be 'stretch', 'crop' or 'pad'; got {resize!r}.")
    check_packing(dtype)
    return int(edges[0]), int(edges[1])
