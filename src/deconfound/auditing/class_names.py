"""Which class of a label the name of an output column, or a predicted name, stands for."""

from collections.abc import Sequence

from deconfound.auditing.files import called_like_outputs
from deconfound.design.units import reads_as_number


def sorted_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Levels as scikit-learn sorts classes: numbers by size, text by the alphabet."""
    if all(reads_as_number(level) for level in levels):
        return tuple(sorted(levels, key=float))
    return tuple(sorted(levels))


def class_order(outputs: Sequence[str], levels: Sequence[str]) -> tuple[str, ...]:
    """The class of each output column where their names end in the classes of a label, such as `score_AD`; else ()."""
    order = tuple(_class_at_end(name, levels) for name in outputs)
    return order if len(order) > 1 and sorted(order) == sorted(levels) else ()


def places_of(wanted: Sequence[str], outputs: Sequence[str]) -> list[int]:
    """The place of the column of each class or label that the names end in; all in their order where they do not."""
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
    order = [_class_at_end(name, levels) for name in outputs]
    known = [level for level in order if level]
    if not known or len(set(known)) < len(known) or len(known) == len(outputs):
        return ()
    surely_classes = probabilities or all(map(called_like_outputs, outputs))
    if len(outputs) != len(levels) and not (len(known) == len(levels) and surely_classes):
        return ()
    begins = {name.removesuffix(level) for name, level in zip(outputs, order, strict=True) if level}
    begin = begins.pop() if len(begins) == 1 else ""
    return tuple(level or name.removeprefix(begin) for name, level in zip(outputs, order, strict=True))


def same_class(name: str, levels: Sequence[str]) -> str:
    """The level that a predicted name is, also where both are the same number, such as 1.0 and 1; else the name."""
    if name in levels or not reads_as_number(name):
        return name
    return next((level for level in levels if reads_as_number(level) and float(level) == float(name)), name)


def listed_names(names: Sequence[str], shown: int = 8) -> str:
    """The first names and how many there are of others."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def _class_at_end(name: str, levels: Sequence[str]) -> str:
    """The level after the word of outputs, or the longest level after the last separators; "" where there is none."""
    ends = [level for level in levels if name.endswith(level) and not name[: -len(level)][-1:].isalnum()]
    return name.partition("_")[2] if name.partition("_")[2] in levels else max(ends, key=len, default="")
