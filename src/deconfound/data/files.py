"""The one writer of files, which are there as a whole or not at all, and the one lock between processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from deconfound.errors import RunError

_MARK = b"deconfound sha256 "
_HALF_WRITTEN = ".*.part"
# A file that is still being written is younger than this; an older one was left by a process that died.
ABANDONED_AFTER_S = 6 * 3600
# A file that was written this recently may change again without a visible change of its times.
_UNCHANGED_FOR_NS = 2_000_000_000


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name whole, or not at all: written beside, flushed to disk, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _flush_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a run killed at any moment, sees the old or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write(content)
    except OSError as error:
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


def read_json(path: Path, advice: str = "Delete it to have it made again.") -> Any:
    """The content of a JSON file of a run.

    Args:
        path: The file.
        advice: What to do where it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} must be there; got no such file. Check the folder of the run.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} must be JSON that can be read; got {error}. {advice}") from error


def write_checked(path: Path, content: bytes) -> None:
    """`write_bytes` behind a digest, so that a changed bit is found when it is read."""
    write_bytes(path, _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_checked(
    path: Path, advice: str = "Delete the file: this fold then starts anew, and finished folds stay."
) -> bytes:
    """What `write_checked` was given, or an error that says which file is broken.

    Args:
        path: The file.
        advice: What to do where its content has changed.
    """
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise RunError(f"{path} must be readable; got {error.strerror}. Check the folder of the run.") from error
    if head != _MARK + hashlib.sha256(content).hexdigest().encode():
        raise RunError(f"{path} must be as it was written; got content that does not match its digest. {advice}")
    return content


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: object) -> str:
    """A name for a plain value: equal values have equal names on every machine."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sweep(folder: Path, older_than_s: float = 0.0) -> None:
    """Remove what a killed process left half-written.

    Args:
        folder: Where to look, not below.
        older_than_s: Spare younger files, which another process may still be writing.
    """
    for left in folder.glob(_HALF_WRITTEN):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime >= older_than_s:
                left.unlink()


@contextmanager
def hold(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file against other processes; the hold ends with the process, however it ends.

    A link is not followed and nothing is written to the file, so a lock that points elsewhere harms nothing. Where the
    file system has no locks, two processes are not kept apart.

    Args:
        path: The lock file, which stays.
        wait: Wait for the other process, instead of raising `RunError`.
    """
    try:
        import fcntl
    except ImportError:  # a system without POSIX locks
        yield
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RunError(
            f"{path} must be a plain file that can be written, which keeps other processes out; got "
            f"{'a link' if path.is_symlink() else error.strerror}. Delete it or choose another folder."
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunError(f"{path} must be a plain file, which keeps other processes out; got no plain file.")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise RunError(
                f"{path.parent} must be worked on by one process; got another that holds it. Wait for it to end."
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a folder against a second process; see `hold`."""
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / ".lock"):
        yield


def file_digests(paths: Sequence[Path], root: Path, jobs: int) -> list[str]:
    """The digest of each file's bytes, remembered in the cache as long as its size and times stay the same."""
    memory = root / "seen" / f"{digest([os.path.abspath(path) for path in paths])[:32]}.json"
    try:
        seen = json.loads(memory.read_text())
        before = dict(zip(map(str, paths), seen, strict=True))
    except (OSError, ValueError, TypeError, RecursionError):
        before = {}
    now = time.time_ns()

    def one(path: Path) -> tuple[list[int], str]:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
                return [0, 0, 0], f"unreadable: no plain file {path}"
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            known = before.get(str(path))
            if known and known[0] == stamp:
                return stamp, str(known[1])
            return (stamp if now - max(stamp[1:]) > _UNCHANGED_FOR_NS else [0, 0, 0]), file_digest(path)
        except (OSError, ValueError, RuntimeError) as error:
            return [0, 0, 0], f"unreadable {getattr(error, 'strerror', None) or error} {path}"

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(one, paths))
    if any(before.get(str(path)) != list(entry) for path, entry in zip(paths, found, strict=True)):
        with contextlib.suppress(OSError):  # the next opening hashes the files again
            memory.parent.mkdir(parents=True, exist_ok=True)
            sweep(memory.parent, ABANDONED_AFTER_S)
            with writing(memory) as file:
                file.write(json.dumps(found).encode())
    return [content for _, content in found]


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
