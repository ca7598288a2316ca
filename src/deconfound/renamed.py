"""Public names: how a package imports them when they are used, and those of release 0.1 that are called otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# What a user of 0.1 wrote → what they write now. `docs/migrating.md` says more about each.
RENAMED = {
    "deconfound.NormalizedModel.settle": "deconfound.NormalizedModel.refit",
    "deconfound.NormalizedModel.settled": "deconfound.NormalizedModel.refitted",
    "deconfound.PMDN(step='adaptive')": "deconfound.PMDN(memory=250)",
    "deconfound.data.Cohort": "deconfound_lab.Cohort",
    "deconfound.data.Scans": "deconfound.data.FileSource",
    "deconfound.data.Strengths": "deconfound_lab.Strengths",
    "deconfound.data.bayes_accuracy": "deconfound_lab.bayes_accuracy",
    "deconfound.data.paper_table_one": "deconfound_lab.paper_table_one",
    "deconfound.data.simulate_cohort": "deconfound_lab.simulate_cohort",
    "deconfound.data.table_one": "deconfound_lab.table_one",
    "deconfound.metrics.conditional_permutations(steps)": "deconfound.metrics.conditional_permutations(neighbours)",
}


def imported_when_used(
    package: str, files: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    Args:
        package: Its name.
        files: For each of its files the names that are public, separated by spaces.
        modules: Files that are public themselves.
    """
    homes = {name: file for file, names in files.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in modules.split():
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise no_attribute(package, name)
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})


def no_attribute(owner: str, name: str) -> AttributeError:
    """The error for a name that `owner` does not have; it tells the new name where release 0.1 had this one.

    Args:
        owner: A module or class of the library, such as `deconfound.data`.
        name: The attribute that was asked for.
    """
    new = RENAMED.get(f"{owner}.{name}")
    if new is not None:
        return AttributeError(f"{owner}.{name} of release 0.1 is now {new}. docs/migrating.md has every new name.")
    kind = "module" if owner.rpartition(".")[2].islower() else "class"
    return AttributeError(f"{kind} {owner!r} has no attribute {name!r}")
