"""Where a question about a confound has no answer, or one that should not be read alone."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from deconfound.auditing.records import NO_ANSWER, Note
from deconfound.metrics.columns import Column
from deconfound.metrics.correlation import association
from deconfound.metrics.permutations import varies_within

SAME_AS_LABEL = 0.95
TIED_TO_LABEL = 0.3
# More levels than this share of the rows tell rows apart, and so any label, whatever they stand for.
ROWS_OF_THEIR_OWN = 0.5
FEW_ROWS = 10
FEW_PEOPLE = 50


def reasons(notes: Iterable[Note], confound: str) -> list[Note]:
    """The notes for which the question about a confound has no answer."""
    return [note for note in notes if note.confound == confound and note.kind in NO_ANSWER]


def diagnose(confound: Column, labels: Sequence[Column], groups: Tensor, units: Tensor, folds: Tensor) -> list[Note]:
    """What speaks against the numbers of one confound: the label in disguise, rare levels, few people."""
    name, present = confound.name, confound.present
    notes = []
    if missing := int((~present).sum()):
        alone = int((torch.bincount(folds[present]) == 1).sum())
        others = f", and {alone:,} that are then alone in a fold" if alone else ""
        text = f"{missing:,} of {len(present):,} rows have no {name}; its numbers leave them out{others}."
        notes.append(Note("missing", "note", name, text))
    people = len(torch.unique(units[present]))
    if people < FEW_PEOPLE:
        text = f"{people} people with a value of {name}: too few to trust the intervals (below {FEW_PEOPLE})."
        notes.append(Note("few people", "warning", name, text))
    for label in labels:
        notes += [note for note in _tie(confound, label) if note not in notes]
    notes += _rare_levels(confound)
    notes += [note for label in labels for note in _one_class(confound, label)]
    if reasons(notes, name):
        return notes
    text = (
        f"{name} is the same in all rows of a test set (as when one {name} at a time is left out), and every test "
        f"set has its own model: these outputs cannot show whether the models use {name}."
    )
    of_sets = _where_constant(confound, folds, "test sets", Note("constant in test sets", "warning", name, text))
    text = f"{name} does not vary within any label group: its effect cannot be told from the label's."
    where = "label groups" if len(torch.unique(folds)) == 1 else "label groups of the test sets"
    cells = folds * (int(groups.max()) + 1) + groups
    never = Note("constant given the label", "warning", name, text)
    return notes + (of_sets or _where_constant(confound, cells, where, never))


def _tie(confound: Column, label: Column) -> list[Note]:
    found = association(confound, label)
    name, value = confound.name, found.value
    measure = found.statistic.replace("abs_", "|").replace("_", " ") + ("|" if "abs" in found.statistic else "")
    measure = measure.replace("cramers v", "Cramér's V")
    rows, levels = int(confound.present.sum()), len(torch.unique(confound.values[confound.present]))
    if value >= SAME_AS_LABEL and confound.kind == "categorical" and levels > ROWS_OF_THEIR_OWN * rows:
        text = (
            f"Nearly every row has a {name} of its own ({levels:,} levels in {rows:,} rows), so any label follows from "
            "it and nothing can be told about it. Is it an id? Leave it out, or join levels."
        )
        return [Note("level per row", "warning", name, text)]
    if value >= SAME_AS_LABEL:
        text = (
            f"{name} and {label.name} are nearly the same ({measure} = {value:.2f}): whether a model uses one or the "
            "other cannot be told from these people. Add people in whom they differ."
        )
        return [Note("same as label", "warning", name, text)]
    if value >= TIED_TO_LABEL:
        text = (
            f"{name} and {label.name} go together ({measure} = {value:.2f}), so even a perfect model's outputs go with "
            f"{name}: read the numbers given {label.name}, not the marginal ones."
        )
        return [Note("tied to label", "note", name, text)]
    return []


def _one_class(confound: Column, label: Column) -> list[Note]:
    """Levels in which every row has the same label: they have no AUC."""
    if label.kind == "numeric" or not confound.levels:
        return []
    found = torch.zeros(len(confound.levels), len(label.levels), dtype=torch.long)
    rows = confound.present & label.present
    found.index_put_((confound.values[rows].long(), label.values[rows].long()), torch.tensor(1), accumulate=True)
    alone = [level for level, seen in zip(confound.levels, (found > 0).sum(1).tolist(), strict=True) if seen == 1]
    if not alone or len(label.levels) == 1:
        return []
    text = f"Every row has the same {label.name} in {confound.name} {_listed(alone)}: no AUC there."
    return [Note("one class", "note", confound.name, text)]


def one_class_folds(label: Column, folds: Tensor) -> list[Note]:
    """Test sets in which every row has the same label: the mean AUC leaves them out."""
    constant, count = _constant(label, folds)
    if label.kind == "numeric" or not constant or count == 1:
        return []
    text = f"{constant} of {count} test sets hold one {label.name} only and have no AUC; the mean leaves them out."
    return [Note("one class", "note", "", text)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _rare_levels(confound: Column) -> list[Note]:
    codes = confound.values[confound.present].long()
    counts = torch.bincount(codes, minlength=len(confound.levels)).tolist() if confound.levels else []
    rare = [f"{level} ({count})" for level, count in zip(confound.levels, counts, strict=False) if count < FEW_ROWS]
    if not rare:
        return []
    text = f"{confound.name} has levels of fewer than {FEW_ROWS} rows: {_listed(rare)}."
    return [Note("rare levels", "warning", confound.name, text)]


def _constant(confound: Column, cells: Tensor) -> tuple[int, int]:
    """In how many of the cells the confound does not vary, and how many cells there are."""
    present = confound.present
    varies = varies_within(torch.unique(cells[present], return_inverse=True)[1], confound.values[present])
    return int((~varies).sum()), len(varies)


def _where_constant(confound: Column, cells: Tensor, where: str, never: Note) -> list[Note]:
    """In how many cells the confound does not vary; `never` where it varies in none, and so cannot be measured."""
    constant, count = _constant(confound, cells)
    if not constant or count == 1:
        return []
    text = f"{confound.name} does not vary within {constant} of {count} {where}; they count as zero."
    return [never if constant == count else Note("small groups", "note", confound.name, text)]
