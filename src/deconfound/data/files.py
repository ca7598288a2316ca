"""Files that are there as a whole or not at all: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deconfound.errors import RunError

_MARK = b"deconfound sha256 "


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a run killed at any moment, sees the old or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _flush_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(
            f"{path} must be written; got {error.strerror or error}. Make room or choose another folder, then give the "
            "same command again: what is finished stays, and the run goes on from there."
        ) from error


def write_text(path: Path, content: str) -> None:
    """`write_bytes` of a text."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """`write_bytes` of JSON; floats read back bit for bit."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} must be there; got no such file. Check the folder of the run.") from error
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} must be JSON that can be read; got {error}. Delete it to have it made again."
        ) from error


def write_checked(path: Path, content: bytes) -> None:
    """`write_bytes` behind a digest, so that a changed bit is found when it is read."""
    write_bytes(path, _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_checked(path: Path) -> bytes:
    """What `write_checked` was given, or an error that says which file is broken."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise RunError(f"{path} must be readable; got {error.strerror}. Check the folder of the run.") from error
    if head != _MARK + hashlib.sha256(content).hexdigest().encode():
        raise RunError(
            f"{path} must be as it was written; got content that does not match its digest. Delete the file: this fold "
            "then starts anew, and finished folds stay."
        )
    return content


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for left in folder.glob(".*.part"):
        left.unlink(missing_ok=True)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a folder against a second process; the hold ends with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # a system without POSIX locks
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"{folder} must be worked on by one process; got another that holds it. Wait for it to end."
            ) from error
        yield


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
