"""Digests of files' content, without reading again what has not changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deconfound.data.atomic import appearing
from deconfound.data.cache import digest

# A file that was written this recently may change again without a visible change of its times.
_SETTLED_NS = 2_000_000_000


def file_digests(paths: Sequence[Path], root: Path, jobs: int) -> list[str]:
    """The digest of each file's bytes, remembered as long as its size and times stay the same."""
    memory = root / "seen" / f"{digest([str(path.resolve()) for path in paths])[:32]}.json"
    try:
        seen = json.loads(memory.read_text())
        before = dict(zip(map(str, paths), seen, strict=True))
    except (OSError, ValueError, TypeError):
        before = {}
    now = time.time_ns()

    def one(path: Path) -> tuple[list[int], str]:
        try:
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            known = before.get(str(path))
            if known and known[0] == stamp:
                return stamp, str(known[1])
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            return (stamp if now - max(stamp[1:]) > _SETTLED_NS else [0, 0, 0]), content
        except OSError as error:
            return [0, 0, 0], f"unreadable {error.strerror} {path}"

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(one, paths))
    if any(before.get(str(path)) != list(entry) for path, entry in zip(paths, found, strict=True)):
        with contextlib.suppress(OSError):  # the next opening hashes the files again
            memory.parent.mkdir(parents=True, exist_ok=True)
            with appearing(memory) as file:
                file.write(json.dumps(found).encode())
    return [content for _, content in found]
