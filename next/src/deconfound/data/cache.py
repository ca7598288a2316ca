"""The cache of decoded samples: each set of files is decoded once, by one process.

A set is a file of bytes (.samples) and one of facts (.json). The second is written last, so a set
without it is not finished. Nothing is changed later: other files, times or options have another
name. The folder may be deleted whenever no command runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from deconfound.data.samples import digest, digest_array
from deconfound.errors import StateError, TableError

OnProgress = Callable[[int, int, str], None]
Decoder = Callable[[Path], NDArray[Any]]
# Returns the function that decodes one file, and a note.
MakeDecoder = Callable[[OnProgress | None], tuple[Decoder, str]]

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
    make_decoder: MakeDecoder,
    settings: dict[str, Any],
    *,
    folder: str | os.PathLike[str] | None,
    skip_bad: bool,
    on_progress: OnProgress | None,
) -> Decoded:
    """Return decoded samples, decoding the files if the cache lacks them.

    Args:
        paths: The files.
        make_decoder: Is called only if the cache lacks the samples.
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
    decoded = _find(path, fewest)
    if decoded is not None:
        return decoded
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            # Another process may have decoded them while this one waited.
            if _find(path, fewest) is None:
                decode, note = make_decoder(on_progress)
                samples = map_files(decode, paths, "Decoding", on_progress)
                _write(path, samples, note, skip_bad)
            return _load(path)
    except BrokenPipeError:  # Raised by `on_progress`.
        raise
    except OSError as error:
        raise StateError(
            f"Decoded samples cannot be written to {str(folder)!r} ({error}). Make room there, or "
            "write another folder: cache='…', or the environment variable DECONFOUND_CACHE."
        ) from error


def map_files(
    function: Callable[[Path], Any],
    paths: Sequence[Path],
    text: str,
    on_progress: OnProgress | None,
) -> Iterator[Any]:
    """Yield what a function returns for each file, in order, or the TableError that it raises."""

    def attempt(path: Path) -> Any:
        try:
            return function(path)
        except TableError as error:
            return error

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), WINDOW):
            results = pool.map(attempt, paths[start : start + WINDOW])
            for count, result in enumerate(results, start + 1):
                if on_progress is not None:
                    on_progress(count, len(paths), text)
                yield result


def _stamp(path: Path) -> list[Any]:
    """Return what changes when a file changes. A link to nothing becomes an error of decoding."""
    facts = path.stat() if path.exists() else None
    return [str(path.absolute()), *((facts.st_size, facts.st_mtime_ns) if facts else ())]


def _find(path: Path, fewest: int) -> Decoded | None:
    """Return a finished set of samples, or None if it is absent, damaged or has too few."""
    try:
        decoded = _load(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return decoded if len(decoded.x) >= fewest else None


def _load(path: Path) -> Decoded:
    facts = json.loads(path.with_suffix(".json").read_text())
    x = np.memmap(path, dtype=facts["dtype"], mode="r", shape=tuple(facts["shape"]))
    return Decoded(x, facts["good"], facts["digest"], facts["notes"])


def _write(path: Path, samples: Iterator[Any], note: str, skip_bad: bool) -> None:
    """Write samples one after the other, then the facts about them.

    The bytes are written and not mapped: on a full disk that is an error and not a crash.
    """
    first: Any = None
    good, faults = list[int](), list[str]()
    with _writing(path) as file:
        for place, sample in enumerate(samples):
            if isinstance(sample, TableError):
                faults.append(str(sample))
                continue
            first = sample if first is None else first
            if (sample.shape, sample.dtype) != (first.shape, first.dtype):
                raise TableError(
                    f"The reader returns {sample.dtype} of shape {sample.shape} for one file and "
                    f"{first.dtype} of shape {first.shape} for another. Return one of them."
                )
            good.append(place)
            file.write(sample.tobytes())
        notes = [*_report_faults(faults, len(good), skip_bad), *filter(None, [note])]
    x = np.memmap(path, first.dtype, "r", shape=(len(good), *first.shape))
    facts = {"dtype": x.dtype.str, "shape": x.shape, "digest": digest_array(x)}
    with _writing(path.with_suffix(".json")) as file:
        file.write(json.dumps({**facts, "good": good, "notes": notes}).encode())


def _report_faults(faults: Sequence[str], good: int, skip_bad: bool) -> list[str]:
    """Return a note on the files that cannot be read, or raise an error that names them."""
    if not faults:
        return []
    count = f"{len(faults):,} files cannot be read"
    lines = [*faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        lines.append(f"… and {len(faults) - MOST_FAULTS:,} more.")
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
