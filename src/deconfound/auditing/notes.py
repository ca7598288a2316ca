"""Where a question about a confound has no answer, or one that should not be read alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deconfound.metrics.columns import Column
from deconfound.metrics.correlation import association

SAME_AS_LABEL = 0.95
TIED_TO_LABEL = 0.3
FEW_ROWS = 10
FEW_PEOPLE = 50


@dataclass(frozen=True)
class Note:
    """One thing to know before reading the numbers; a warning where they may mislead."""

    severity: Literal["warning", "note"]
    confound: str
    text: str


def diagnose(confound: Column, labels: Sequence[Column], groups: Tensor, units: Tensor) -> list[Note]:
    """What speaks against the numbers of one confound: the label in disguise, rare levels, few people."""
    name = confound.name
    present = confound.present
    notes = []
    if int((~present).sum()):
        text = f"{int((~present).sum()):,} of {len(present):,} rows have no {name}; its numbers leave them out."
        notes.append(Note("note", name, text))
    people = len(torch.unique(units[present]))
    if people < FEW_PEOPLE:
        text = f"{people} people with a value of {name}: too few to trust the intervals (below {FEW_PEOPLE})."
        notes.append(Note("warning", name, text))
    for label in labels:
        found = association(confound, label)
        measure = found.statistic.replace("abs_", "|").replace("_", " ") + ("|" if "abs" in found.statistic else "")
        if found.value >= SAME_AS_LABEL:
            text = (
                f"{name} and {label.name} are nearly the same ({measure} = {found.value:.2f}): whether a model uses "
                "one or the other cannot be told from these people. Add people in whom they differ."
            )
            notes.append(Note("warning", name, text))
        elif found.value >= TIED_TO_LABEL:
            text = (
                f"{name} and {label.name} go together ({measure} = {found.value:.2f}), so even a perfect model's "
                f"outputs go with {name}: read the numbers within {label.name}, not the marginal ones."
            )
            notes.append(Note("note", name, text))
    same = unanswerable(notes, name)
    return notes + _rare_levels(confound) + ([] if same else _single_level_groups(confound, groups))


def unanswerable(notes: Sequence[Note], confound: str) -> bool:
    """Whether these notes say that the confound cannot be told from the label."""
    return any(note.confound == confound and "cannot be told" in note.text for note in notes)


def _rare_levels(confound: Column) -> list[Note]:
    codes = confound.values[confound.present].long()
    counts = torch.bincount(codes, minlength=len(confound.levels)).tolist() if confound.levels else []
    rare = [f"{level} ({count})" for level, count in zip(confound.levels, counts, strict=False) if count < FEW_ROWS]
    if not rare:
        return []
    shown = ", ".join(rare[:6]) + (f" and {len(rare) - 6} more" if len(rare) > 6 else "")
    return [Note("warning", confound.name, f"{confound.name} has levels of fewer than {FEW_ROWS} rows: {shown}.")]


def _single_level_groups(confound: Column, groups: Tensor) -> list[Note]:
    present = confound.present
    found = torch.unique(groups[present])
    single = [len(torch.unique(confound.values[present & (groups == group)])) < 2 for group in found]
    if not any(single):
        return []
    if all(single):
        text = f"{confound.name} does not vary within any label group: its effect cannot be told from the label's."
        return [Note("warning", confound.name, text)]
    text = f"{confound.name} does not vary within {sum(single)} of {len(single)} label groups; they count as zero."
    return [Note("note", confound.name, text)]
