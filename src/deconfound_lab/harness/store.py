"""The folder of an experiment: its definition, and one file for each cell, found again by what it was computed from."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.data import only_one, read_json, write_bytes, write_json
from deconfound.errors import RunError

DEFINITION = "experiment.json"


@dataclass(frozen=True)
class Cell:
    """One piece of an experiment that is computed and stored as a whole.

    Attributes:
        key: Its name in words, unique within the experiment; the file is named after it.
        definition: What its result depends on beside the experiment's own definition, in plain values.
    """

    key: str
    definition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """A cell as it is stored.

    Attributes:
        result: What was computed: plain values and arrays, by name.
        provenance: Where and with what.
        seconds: How long it took.
        whole: False for a part of a result that was stored on the way.
    """

    result: dict[str, Any]
    provenance: dict[str, Any]
    seconds: float
    whole: bool = True


class Store:
    """Cells in a folder, which may be copied to another machine and shared by several processes.

    Args:
        folder: Where everything is written.
        definition: What all cells depend on, in plain values. A folder of another definition is refused.
        anew: Start such a folder anew instead.
    """

    def __init__(self, folder: Path, definition: Mapping[str, Any], *, anew: bool = False) -> None:
        self.folder = folder
        self.replaced = False
        own = _plain(definition)
        path = folder / DEFINITION
        if path.exists() and (other := _differences(read_json(path), own)):
            if not anew:
                raise RunError(
                    f"{folder} must hold this experiment; got one with {', '.join(other)}. Choose another folder."
                )
            self.replaced = True
            for file in (*(folder / "cells").glob("*.npz"), *(folder / "cells").glob("*.json")):
                file.unlink()
        if not path.exists() or self.replaced:
            write_json(path, own)

    def read(self, cells: Sequence[Cell]) -> dict[str, Finished]:
        """The cells that are stored whole, by key; every file that is broken or of another definition is named."""
        found: dict[str, Finished] = {}
        faults = []
        for cell in cells:
            if not self.path(cell).exists():
                continue
            try:
                stored = self._read(cell)
            except RunError as error:
                faults.append(str(error))
            else:
                if stored.whole:
                    found[cell.key] = stored
        if faults:
            count = f"{self.folder} has {len(faults)} faults:\n" if len(faults) > 1 else ""
            raise RunError(count + "\n".join(faults))
        return found

    def write(self, cell: Cell, stored: Finished) -> None:
        """Store a cell in one step, and forget that it failed before."""
        arrays: dict[str, Any] = {name: value for name, value in stored.result.items() if isinstance(value, np.ndarray)}
        about = {
            "key": cell.key,
            "definition": cell.definition,
            "result": {name: value for name, value in stored.result.items() if name not in arrays},
            "provenance": stored.provenance,
            "seconds": stored.seconds,
            "whole": stored.whole,
        }
        content = io.BytesIO()
        np.savez_compressed(content, about=np.array(json.dumps(about)), **arrays)
        write_bytes(self.path(cell), content.getvalue())
        self._failure(cell).unlink(missing_ok=True)

    def everything(self) -> dict[str, Finished]:
        """All cells of the folder by key, also of other plans and those not whole; oldest first."""
        files = sorted((self.folder / "cells").glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
        found = {}
        for path in files:
            about, stored = _load(path)
            found[about["key"]] = stored
        return found

    def forget(self, cells: Sequence[Cell]) -> None:
        """Remove cells, to have them made again."""
        for cell in cells:
            self.path(cell).unlink(missing_ok=True)

    def fail(self, cell: Cell, error: Exception) -> None:
        """Note what stopped a cell."""
        write_json(self._failure(cell), {"error": str(error).strip().splitlines()[0] or type(error).__name__})

    def failures(self, cells: Sequence[Cell]) -> dict[str, str]:
        """What stopped cells, by key."""
        files = {cell.key: self._failure(cell) for cell in cells}
        return {key: str(read_json(file)["error"]) for key, file in files.items() if file.exists()}

    @contextmanager
    def hold(self, key: str) -> Iterator[bool]:
        """Whether a cell is this process's to compute: False while another is at it. It ends with the process."""
        with ExitStack() as stack:
            try:
                stack.enter_context(only_one(self.folder / "cells" / ".held" / _slug(key)))
            except RunError:
                yield False
                return
            yield True

    def path(self, cell: Cell) -> Path:
        """The file of a cell."""
        return self.folder / "cells" / f"{_slug(cell.key)}.npz"

    def _failure(self, cell: Cell) -> Path:
        return self.path(cell).with_suffix(".failed.json")

    def _read(self, cell: Cell) -> Finished:
        path = self.path(cell)
        about, stored = _load(path)
        if about["definition"] != _plain(cell.definition):
            raise RunError(
                f"{path} must be of the cell {cell.key!r} as it is now; got one of {about['definition']}. Delete it to "
                "have it made again, or choose another folder."
            )
        return stored


def _load(path: Path) -> tuple[dict[str, Any], Finished]:
    """What a file says about its cell, and the cell."""
    try:
        with np.load(path, allow_pickle=False) as content:
            about = json.loads(str(content["about"]))
            arrays = {name: content[name] for name in content.files if name != "about"}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} must be a finished cell; got {error}. Delete it to have it made again.") from error
    return about, Finished({**about["result"], **arrays}, about["provenance"], about["seconds"], about["whole"])


def _differences(was: Mapping[str, Any], own: Mapping[str, Any], inside: str = "") -> list[str]:
    """What is not the same in two definitions, in words."""
    found = []
    for name in dict.fromkeys([*was, *own]):
        if isinstance(was.get(name), dict) and isinstance(own.get(name), dict):
            found += _differences(was[name], own[name], f"{inside}{name}.")
        elif was.get(name) != own.get(name):
            found.append(f"{inside}{name} {was.get(name)!r} instead of {own.get(name)!r}")
    return found


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value))


def _slug(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+]+", "-", key).strip("-")
