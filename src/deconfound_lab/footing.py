"""One footing: every method that keeps coefficients refits them, and each is also judged as training left it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from deconfound.methods import Method, method
from deconfound_lab.authors import AuthorsPMDN

Judged = Literal["as trained", "refitted", "W-score"]
"""With the coefficients that training left; with those of the validation rows; standardised by held-out controls."""


OPTIONS: Mapping[str, Mapping[str, Any]] = {"adversarial": {"weight": 0.2, "warmup": 100}}
"""What the search on simulated MRIs chose for the adversary, which has no weight of its own; see decision 0016."""


OWN: Mapping[str, type[Method]] = {each.name: each for each in (AuthorsPMDN,)}
"""Methods that only the lab has."""


def kind_of(name: str) -> type[Method]:
    """A method of the library or of the lab."""
    return OWN[name] if name in OWN else method(name)


def refits(name: str) -> bool:
    """Whether a method keeps coefficients that can be refitted."""
    return "refit" in kind_of(name).options()


def trained_with(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a method is trained with: those of the search, the refit wherever there is one, its own."""
    return {**({"refit": True} if refits(name) else {}), **OPTIONS.get(name, {}), **options}
