"""The folder of a run: whole files, one command at a time, and nothing that others wrote.

run.json            config, fingerprints, task, folds; written first
folds/<name>/       last.pt while it trains; model.pt, predictions.csv, history.csv, features.npy;
                    result.json, written last: the fold is finished; or failure.json
predictions.csv     the test rows of all folds
results.json        metrics and audit
report.html         the page
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from pydantic_core import to_json

from deconfound.errors import OptionError, StateError
from deconfound.table import format_names

RUN, RESULTS, PREDICTIONS, REPORT = "run.json", "results.json", "predictions.csv", "report.html"
FILES = (RUN, PREDICTIONS, RESULTS, REPORT)
FOLD_FILES = (
    *("last.pt", "last.pt.new", "model.pt", "predictions.csv", "history.csv", "features.npy"),
    *("progress.json", "failure.json", "result.json"),
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A part of a run looks whether another command works on the whole; so do all parts at one moment.
SECONDS_OF_A_LOOK = 3.0


class StorageError(StateError):
    """A file of a run cannot be written or read. The run goes on when the cause is gone."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into sentences that name the path and the way out."""
    try:
        yield
    except OSError as error:
        place = repr(str(error.filename or path))
        text = f"{place} cannot be used: {error.strerror or error}. Change its permissions"
        if error.errno in FULL:
            text = f"There is no space left for {place}. Free some"
        raise StorageError(
            f"{text}, or choose another run.folder, and run the same command again: it goes on."
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either as before or complete, also after a loss of power."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.new")
    data = content.encode() if isinstance(content, str) else content
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write plain data; NaN becomes null."""
    write_whole(path, to_json(content, indent=1, inf_nan_mode="null"))


def read_json(path: Path) -> Any:
    """Return the data of a file that a run wrote."""
    with storage_errors(path):
        text = path.read_bytes()
    try:
        return json.loads(text)
    except ValueError:
        raise StorageError(
            f"{str(path)!r} is damaged: it holds no JSON. Restore it, or start anew: force=True."
        ) from None


class FoldFolder:
    """The files of one fold.

    Args:
        run: The folder of the run.
        name: The name of the fold, which may be any text.
    """

    def __init__(self, run: Path, name: str) -> None:
        # Names of sites may contain slashes, and be dots alone.
        self.path = run / "folds" / quote(name, safe=" ").replace(".", "%2E")
        self.name = name

    @property
    def is_finished(self) -> bool:
        """True if the fold has its result, which is written last."""
        return (self.path / "result.json").exists()

    @property
    def failure(self) -> str | None:
        """Why the fold failed, or None."""
        path = self.path / "failure.json"
        return None if self.is_finished or not path.exists() else str(read_json(path)["reason"])

    def remove(self, *names: str) -> None:
        """Delete some of the fold's own files, where they exist."""
        with storage_errors(self.path):
            for name in names:
                (self.path / name).unlink(missing_ok=True)


class RunFolder:
    """The folder of a run.

    Args:
        path: The folder. It is made when something is written.
        files: The names of the files that the run writes into it; it deletes no others.
    """

    def __init__(self, path: str | os.PathLike[str], files: Sequence[str] = FILES) -> None:
        self.path = Path(path)
        self.files = files

    @contextmanager
    def lock(self, part: tuple[int, int] | None = None) -> Iterator[None]:
        """Keep other commands out of the folder; different parts of a run may work together.

        Args:
            part: The part of the folds that this command trains; None trains all of them.
        """
        own = self.path / (".lock" if part is None else f".lock-{part[0]}-of-{part[1]}")
        with ExitStack() as stack, storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            others = [self.path / ".lock"] if part else self.path.glob(".lock-*")
            try:
                stack.enter_context(FileLock(own, timeout=0))
                for other in others:
                    with FileLock(other, timeout=SECONDS_OF_A_LOOK if part else 0):
                        pass
            except Timeout:
                raise StateError(
                    f"Another command works in the folder {str(self.path)!r}. Wait until it ends, "
                    "or choose another run.folder."
                ) from None
            yield

    def claim(self, description: Mapping[str, Any], force: bool = False) -> None:
        """Make this the folder of a run, or make sure that it is.

        Args:
            description: What `run.json` holds. What stands in "identity" decides whether it is the
                same run.
            force: Whether files of an earlier run are deleted.

        Raises:
            StateError: The folder holds another run, or files that no run wrote.
        """
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            names = sorted(one.name for one in self.path.iterdir() if not one.name.startswith("."))
        if RUN in names and not force:
            self._compare(description)
            return
        if RUN in names:
            self.clear()
        elif names:
            raise StateError(
                f"The folder {str(self.path)!r} holds {format_names(names)}, which no run wrote. "
                "Choose another run.folder."
            )
        write_json(self.path / RUN, description)

    def clear(self) -> None:
        """Delete what a run wrote, and nothing else. The description goes last."""
        with storage_errors(self.path):
            for folder in (self.path / "folds").glob("*/"):
                _delete(folder, FOLD_FILES)
            _delete(self.path / "folds", ())
            for name in sorted(self.files, key=RUN.__eq__):
                (self.path / name).unlink(missing_ok=True)

    def description(self) -> dict[str, Any]:
        """Return what `run.json` holds."""
        if not (self.path / RUN).is_file():
            raise OptionError(
                f"There is no run in {str(self.path)!r}: it has no file {RUN}. Name the run.folder "
                "that `deconfound fit` has shown."
            )
        description = read_json(self.path / RUN)
        return description if isinstance(description, dict) else {}

    def results(self) -> dict[str, Any]:
        """Return what `results.json` holds; empty before it is written."""
        path = self.path / RESULTS
        return dict(read_json(path)) if path.exists() else {}

    def _compare(self, description: Mapping[str, Any]) -> None:
        """Refuse to go on with another run, and say in what it differs."""
        old, new = (
            flatten({"command": one.get("command"), **one.get("identity", {})})
            for one in (self.description(), description)
        )
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        texts = [f"{key} was {old.get(key)!r} and is {new.get(key)!r}" for key in keys]
        for place, key in enumerate(keys):
            if key.startswith("fingerprints."):
                texts[place] = f"the contents of {key.removeprefix('fingerprints.')} have changed"
        if texts:
            raise StateError(
                f"The folder {str(self.path)!r} belongs to another run: {'; '.join(texts)}. "
                "Choose another run.folder, or delete that run and start anew: force=True."
            )


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their full keys.

    Example:
        >>> flatten({"training": {"lr": 0.1}, "launcher": None})
        {'training.lr': 0.1, 'launcher': None}
    """
    flat: dict[str, Any] = {}
    for key, value in content.items():
        is_section = isinstance(value, Mapping) and bool(value)
        flat |= flatten(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return flat


def _delete(folder: Path, names: Sequence[str]) -> None:
    """Delete these files of a folder and halves of files, then the folder if nothing is left."""
    for path in [*(folder / name for name in names), *folder.glob(".*.new")]:
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
