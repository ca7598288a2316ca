"""Files that several processes may write at once."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name whole, or not at all."""
    own = path.with_name(f".{path.stem}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
    try:
        with own.open("xb") as file:
            yield file
        os.replace(own, path)
    except BaseException:
        own.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in here; where the file system has no locks, do not wait."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
