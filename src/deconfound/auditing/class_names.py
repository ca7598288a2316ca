"""Which class of a label the name of an output column, or a predicted name, stands for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.auditing.files import called_like_outputs
from deconfound.design.table import level_text
from deconfound.design.units import reads_as_number

_WORD = re.compile(r"\d+\.\d+|[^\W_]+")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_CAPITAL = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])")
# R, Python and 0/1 tables write the same two classes differently.
_TRUTH = {"true": "1", "false": "0"}


@dataclass(frozen=True)
class NamedOutputs:
    """Outputs `(n, k)` of a file, with the names of their columns."""

    values: NDArray[Any]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


def names_of(outputs: Any) -> list[str]:
    """What the columns of outputs are called; [] where nothing says, or whole numbers do, which may be positions."""
    if isinstance(outputs, NamedOutputs):
        return list(outputs.names)
    if not hasattr(outputs, "iloc"):
        return []
    names = list(outputs.columns) if outputs.ndim == 2 else [outputs.name]
    return names if all(isinstance(name, str) for name in names) else []


def holds_numbers(outputs: Any) -> bool:
    """Whether outputs with names are numbers, and no names of classes."""
    return np.asarray(outputs.values).dtype.kind in "biuf"


def sorted_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Levels as scikit-learn sorts classes: numbers by size, text by the alphabet."""
    if all(reads_as_number(level) for level in levels):
        return tuple(sorted(levels, key=float))
    return tuple(sorted(levels))


def class_order(outputs: Sequence[str], levels: Sequence[str]) -> tuple[str, ...]:
    """The class of each output column where their names hold the classes of a label, such as `score_AD`; else ().

    Example:
        >>> class_order(["prob_cn", "probMci", "AD (mean)"], ["AD", "CN", "MCI"])
        ('CN', 'MCI', 'AD')
    """
    order = tuple(_class_in(name, levels) for name in outputs)
    return order if len(order) > 1 and sorted(order) == sorted(levels) else ()


def places_of(wanted: Sequence[str], outputs: Sequence[str]) -> list[int]:
    """The place of the column of each class or label that the names hold; all in their order where they do not."""
    order = class_order(outputs, wanted)
    return [order.index(name) for name in wanted] if order else list(range(len(outputs)))


def with_other_classes(outputs: Sequence[str], levels: Sequence[str], probabilities: bool) -> tuple[str, ...]:
    """The class of each output column where some are called by classes of the label and others are not; else ().

    Columns beyond those of all classes are further classes where they are called like outputs or complete
    probabilities; other columns may be anything. As many columns as classes are never read in an order that their
    names contradict.

    Example:
        >>> with_other_classes(["score_AD", "score_CN", "score_FTD"], ["AD", "CN"], probabilities=False)
        ('AD', 'CN', 'FTD')
    """
    order = [_class_in(name, levels) for name in outputs]
    known = [level for level in order if level]
    if not known or len(set(known)) < len(known) or len(known) == len(outputs):
        return ()
    surely_classes = probabilities or all(map(called_like_outputs, outputs))
    if len(outputs) != len(levels) and not (len(known) == len(levels) and surely_classes):
        return ()
    begins = {_before(name, level) for name, level in zip(outputs, order, strict=True) if level}
    begin = begins.pop() if len(begins) == 1 else ""
    return tuple(level or name.removeprefix(begin) for name, level in zip(outputs, order, strict=True))


def same_class(name: str, levels: Sequence[str]) -> str:
    """The level that a predicted name is, also in other capitals or as the same number, such as 1.0; else the name."""
    if name in levels:
        return name
    if not reads_as_number(name):
        alike = [level for level in levels if level.casefold() == name.casefold()]
        return alike[0] if len(alike) == 1 else name
    return next((level for level in levels if reads_as_number(level) and float(level) == float(name)), name)


def named_level(name: str, levels: Sequence[str]) -> str:
    """The level that the one column of outputs is called by; "" where it is none, several, or a number.

    A number may be that of a model, or the position of the column.

    Example:
        >>> [named_level(name, ["AD", "CN"]) for name in ("logit_cn", "score_AD_vs_CN", "score")]
        ['CN', '', '']
    """
    for text in (name, name.partition("_")[2]):
        if text and not reads_as_number(text) and (level := same_class(text, levels)) in levels:
            return level
    return _level_among(tuple(word for word in _words(name) if not _NUMBER.fullmatch(word)), tuple(levels))


def names_no_class(outputs: Sequence[str], levels: Sequence[str]) -> bool:
    """Whether as many columns as there are levels have names of their own, more than a number, that fit none of them.

    Example:
        >>> names_no_class(["prob_x", "prob_y"], ["AD", "CN"]), names_no_class(["prob_0", "prob_1"], ["AD", "CN"])
        (True, False)
    """
    if len(outputs) != len(levels) or len(levels) < 2 or len({re.sub(r"\d", "", name) for name in outputs}) == 1:
        return False
    return not any(_class_in(name, levels) for name in outputs)


def listed_names(names: Sequence[str], shown: int = 8) -> str:
    """The first names and how many there are of others."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def _class_in(name: str, levels: Sequence[str]) -> str:
    """The level that a name is, holds as words of its own or, among several, ends in; "" where there is none."""
    for text in (name, name.partition("_")[2]):
        if text and (level := same_class(text, levels)) in levels:
            return level
    if level := _level_among(_words(name), tuple(levels)):
        return level
    ends = [level for level in levels if name.endswith(level) and not name[: -len(level)][-1:].isalnum()]
    return max(ends, key=len, default="")


def _before(name: str, level: str) -> str:
    """What stands before the level at the end of a name; "" where it stands elsewhere."""
    return name[: len(name) - len(level)] if name.casefold().endswith(level.casefold()) else ""


def _level_among(words: tuple[str, ...], levels: tuple[str, ...]) -> str:
    """The one level that is among the words, alone or over several of them; "" where there are none or others."""
    spoken = _spoken(levels)
    places = sorted(
        ((i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)), key=lambda place: place[0] - place[1]
    )
    fits = [(i, j, level) for i, j in places for level in spoken.get("".join(map(_plain, words[i:j])), ())]
    if not fits:
        return ""
    first, last, found = fits[0]
    inside = [first <= i and j <= last and (i, j) != (first, last) for i, j, _ in fits]
    others = [level for (_, _, level), within in zip(fits, inside, strict=True) if level != found and not within]
    return "" if others else found


@lru_cache(maxsize=256)
def _spoken(levels: tuple[str, ...]) -> dict[str, list[str]]:
    """The levels by the text of their words."""
    found: dict[str, list[str]] = {}
    for level in levels:
        if text := "".join(map(_plain, _words(level))):
            found.setdefault(text, []).append(level)
    return found


def _words(text: str) -> tuple[str, ...]:
    """The words of a text: between signs, and where a capital follows a small letter."""
    return tuple(part for word in _WORD.findall(text) for part in _CAPITAL.split(word))


def _plain(word: str) -> str:
    """A word in small letters, a number as its shortest text."""
    text = word.casefold()
    return level_text(float(text)) if _NUMBER.fullmatch(text) else _TRUTH.get(text, text)
