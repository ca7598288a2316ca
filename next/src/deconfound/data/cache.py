"""The cache of decoded samples: each set of files is decoded once, by one process.

A set is a file of bytes (.samples) and one of facts (.json). The second is written last, so a set
without it is not finished. Nothing is changed later: other files, times or options have another
name. The folder may be deleted whenever no command runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from deconfound.data.samples import digest
from deconfound.errors import StateError, TableError

OnProgress = Callable[[int, int, str], None]
Decoder = Callable[[Path], NDArray[Any]]

# To be raised when files are decoded otherwise than before.
FORMAT = 1
# This many samples may wait in memory to be written.
WINDOW = 64
# An error or note describes at most this many files that cannot be read.
MOST_FAULTS = 10


@dataclass(frozen=True, eq=False)
class Decoded:
    """Samples in the cache.

    Attributes:
        x: A read-only memory map, shape `(k, …)`.
        good: The places of the k files that could be decoded.
        digest: A digest of x.
        notes: Sentences about the other files, and about resizing.
    """

    x: NDArray[Any]
    good: list[int]
    digest: str
    notes: list[str]


def cache_folder() -> Path:
    """Return the folder of decoded samples: $DECONFOUND_CACHE, or one in the user's cache folder.

    Example:
        >>> import os
        >>> os.environ["DECONFOUND_CACHE"] = "scratch"
        >>> cache_folder().name
        'scratch'
        >>> del os.environ["DECONFOUND_CACHE"]
    """
    return Path(os.environ.get("DECONFOUND_CACHE") or user_cache_path("deconfound"))


def decode_files(
    paths: Sequence[Path],
    make_decoder: Callable[[OnProgress | None], tuple[Decoder, str]],
    settings: dict[str, Any],
    *,
    folder: str | os.PathLike[str] | None,
    skip_bad: bool,
    on_progress: OnProgress | None,
) -> Decoded:
    """Return decoded samples, decoding the files if the cache lacks them.

    Args:
        paths: The files.
        make_decoder: Returns a function that decodes one file, and a note.
        settings: All that decoding depends on beside the files, JSON-safe.
        folder: The cache; None is `cache_folder()`.
        skip_bad: Whether files that cannot be decoded are left out.
        on_progress: Called with the number of decoded files, that of all files, and a text.

    Raises:
        TableError: Names the files that cannot be decoded.
        StateError: The cache cannot be written.
    """
    folder = cache_folder() if folder is None else Path(folder)
    stamps = [FORMAT, settings, [_stamp(path) for path in paths]]
    path = folder / f"{digest(json.dumps(stamps, sort_keys=True))[:40]}.samples"
    # A set that lacks files was made with `skip_bad`, and is an error without it.
    fewest = 1 if skip_bad else len(paths)
    decoded = _load(path, fewest)
    if decoded is not None:
        return decoded
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            # Another process may have decoded them while this one waited.
            decoded = _load(path, fewest)
            if decoded is None:
                decode, note = make_decoder(on_progress)
                samples = map_files(decode, paths, "Decoding", on_progress)
                _write(path, samples, len(paths), note, skip_bad)
                decoded = _load(path, fewest)
    except BrokenPipeError:  # Raised by `on_progress`.
        raise
    except OSError as error:
        raise StateError(
            f"Decoded samples cannot be written to {str(folder)!r} ({error}). Make room there, or "
            "write another folder: cache='…', or the environment variable DECONFOUND_CACHE."
        ) from error
    if decoded is None:
        raise StateError(f"{str(path)!r} was deleted by another program. Start again.")
    return decoded


def map_files(
    function: Callable[[Path], Any],
    paths: Sequence[Path],
    text: str,
    on_progress: OnProgress | None,
) -> Iterator[Any]:
    """Yield what a function returns for each file, in order, or the TableError that it raises."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), WINDOW):
            results = pool.map(partial(_attempt, function), paths[start : start + WINDOW])
            for count, result in enumerate(results, start + 1):
                if on_progress is not None:
                    on_progress(count, len(paths), text)
                yield result


def _attempt(function: Callable[[Path], Any], path: Path) -> Any:
    try:
        return function(path)
    except TableError as error:
        return error


def _stamp(path: Path) -> list[Any]:
    """Return what changes when a file changes. A link to nothing becomes an error of decoding."""
    facts = path.stat() if path.exists() else None
    return [str(path.absolute()), *((facts.st_size, facts.st_mtime_ns) if facts else ())]


def _load(path: Path, fewest: int) -> Decoded | None:
    """Return a finished set of samples, or None if it is absent, damaged or has too few."""
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        x = np.memmap(path, dtype=facts["dtype"], mode="r", shape=tuple(facts["shape"]))
        decoded = Decoded(x, facts["good"], facts["digest"], facts["notes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return decoded if len(x) >= fewest else None


def _write(path: Path, samples: Iterator[Any], count: int, note: str, skip_bad: bool) -> None:
    """Write samples one after the other, then the facts about them.

    The bytes are written and not mapped: on a full disk that is an error and not a crash.
    """
    first: NDArray[Any] | None = None
    good, faults, content = list[int](), list[str](), hashlib.sha256()
    with _writing(path) as file:
        for place, sample in enumerate(samples):
            if isinstance(sample, TableError):
                faults.append(str(sample))
                continue
            if first is None:
                first = sample
                _require_room(path.parent, count * sample.nbytes)
            if (sample.shape, sample.dtype) != (first.shape, first.dtype):
                raise TableError(
                    f"The reader returns {sample.dtype} of shape {sample.shape} for one file and "
                    f"{first.dtype} of shape {first.shape} for another. Return one of them."
                )
            good.append(place)
            content.update(sample.tobytes())
            file.write(sample.tobytes())
        notes = _report_faults(faults, len(good), skip_bad)
    assert first is not None
    facts: dict[str, Any] = {"dtype": first.dtype.str, "shape": [len(good), *first.shape]}
    facts |= {"good": good, "notes": [*notes, *filter(None, [note])]}
    facts["digest"] = digest(content.hexdigest(), facts["dtype"], str(facts["shape"]))
    with _writing(path.with_suffix(".json")) as file:
        file.write(json.dumps(facts).encode())


def _report_faults(faults: Sequence[str], good: int, skip_bad: bool) -> list[str]:
    """Return a note on the files that cannot be read, or raise an error that names them."""
    if not faults:
        return []
    count = f"{len(faults):,} files cannot be read"
    rest = len(faults) - MOST_FAULTS
    lines = [*faults[:MOST_FAULTS], *([f"… and {rest:,} more."] if rest > 0 else [])]
    if skip_bad and good:
        return [f"{count} and are left out: {' '.join(lines)}"]
    fix = "Repair them" + (", or leave them out: skip_bad=True." if good else ".")
    raise TableError(f"{count}.", *lines, fix)


@contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside its place, and move it there when it is whole and on the disk."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free")
