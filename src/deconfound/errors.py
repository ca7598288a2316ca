"""The errors that deconfound raises: one base, and a few kinds that are also the builtin kind.

Catch `DeconfoundError` for everything that the library refuses, or the builtin (`ValueError`, `KeyError`,
`RuntimeError`) where the calling code does not know the library.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

__all__ = [
    "DeconfoundError",
    "DeconfoundWarning",
    "Fault",
    "FaultKind",
    "NotFittedError",
    "OptionError",
    "RunError",
    "ScanError",
    "ShapeError",
    "TableError",
    "need",
]

FaultKind = Literal["absent", "missing", "unseen", "type", "not finite", "shape", "too few"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a table, for code that has to tell faults apart without reading sentences.

    Attributes:
        kind: "absent" (no such column), "missing" (an empty cell), "unseen" (a level that the training rows lack),
            "type", "not finite", "shape" (columns that do not go together) or "too few" (rows, or distinct values).
        column: The column.
        text: What is wrong, as a sentence.
        level: The value that is at fault, where there is one.
        rows: Where it is, counted from 0.
        option: The option of `Design` ("missing" or "unseen") that accepts such cells when it is 'mean'; else None.
        advice: What to do; `{way}` in it stands for how that option is set.
    """

    kind: FaultKind
    column: str
    text: str
    level: Any = None
    rows: tuple[int, ...] = ()
    option: Literal["missing", "unseen"] | None = None
    advice: str = ""

    def __str__(self) -> str:
        return self.worded("pass {option}='mean'")

    def worded(self, way: str) -> str:
        """The sentence and its advice, with `way` for how the option is set.

        Example:
            >>> fault = Fault("missing", "age", "age is empty.", option="missing", advice="Fill it, or {way}.")
            >>> fault.worded("set design.{option}: mean")
            'age is empty. Fill it, or set design.missing: mean.'
        """
        if not self.advice:
            return self.text
        return f"{self.text} {self.advice.replace('{way}', way.replace('{option}', self.option or ''))}"


class DeconfoundError(Exception):
    """Base of every error that deconfound raises on purpose."""


class TableError(DeconfoundError, ValueError):
    """A table cannot be read as asked: an absent column, a missing or unseen value, a wrong type.

    Args:
        text: What is wrong, or the faults themselves.

    Attributes:
        faults: The faults as records; empty where the error is of another kind.
    """

    def __init__(self, text: str | Fault | list[Fault]) -> None:
        faults = [] if isinstance(text, str) else [text] if isinstance(text, Fault) else text
        super().__init__(text if isinstance(text, str) else "\n".join(map(str, faults)))
        self.faults: tuple[Fault, ...] = tuple(faults)

    def worded(self, way: str) -> str:
        """The text of the error, with `way` for how an option of the design is set; see `Fault.worded`."""
        return "\n".join(fault.worded(way) for fault in self.faults) or str(self)


class ScanError(DeconfoundError, ValueError):
    """Scans or images cannot be read, or do not go together with their table."""


class NotFittedError(DeconfoundError, RuntimeError):
    """A design was used before `fit`."""


class ShapeError(DeconfoundError, ValueError):
    """Features, metadata and rows do not fit together."""


class OptionError(DeconfoundError, ValueError):
    """An argument has a value outside those that it can take."""


class RunError(DeconfoundError, RuntimeError):
    """A run cannot go on: a broken or foreign file in its folder, a full disk, a loss that is not finite."""


class DeconfoundWarning(UserWarning):
    """Something that a result should not be read without knowing."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """For the end of a message: the known name that is nearest to a wrong one, after a blank; else something else."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else otherwise
    return f" {hint}" if hint else ""


def need(module: str, extra: str) -> Any:
    """An optional package, or an error that says how to get it.

    Args:
        module: Its name, such as `nibabel`.
        extra: The extra of this package that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise DeconfoundError(
            f"{name} must be installed for this; got {error}. Run: pip install 'deconfound[{extra}]'"
        ) from error
