"""What a design has learned from the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.design.basis import FittedTerm
from deconfound.design.codecs import Codec
from deconfound.design.whitening import Whitening

Role = Literal["confound", "keep"]


@dataclass(frozen=True)
class Column:
    """One column of the metadata.

    Attributes:
        name: `age`, `site[UCSF]`, `spline(age)[2]`, `age:sex[M]`.
        role: Whether its effect is removed or kept.
        term: The entry of `confounds` or `keep` that it belongs to.
        unit: Divide a coefficient per standardised column by this for one per unit of the user's column.
        used: False for a column that is constant or redundant; its coefficient is zero.
    """

    name: str
    role: Role
    term: str
    unit: float
    used: bool


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns."""

    rows: int
    codecs: Mapping[str, Codec]
    confounds: tuple[FittedTerm, ...]
    keep: tuple[FittedTerm, ...]
    gram: NDArray[np.float64]
    whitening: Whitening

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column of the metadata, `[C | L]`."""
        white = self.whitening
        unused = {*white.constant, *white.redundant, *white.shared}
        roles: list[tuple[Role, FittedTerm]] = [("confound", term) for term in self.confounds]
        roles += [("keep", term) for term in self.keep]
        listed: list[Column] = []
        for role, term in roles:
            for name, unit in zip(term.labels, term.unit, strict=True):
                listed.append(Column(name, role, str(term.term), float(unit), len(listed) not in unused))
        return tuple(listed)

    def dropped(self) -> list[str]:
        """One sentence for each reason why columns take no part in the fit."""
        names, white = [column.name for column in self.columns], self.whitening
        reasons = (
            (white.constant, "constant in the training rows, so no effect of it can be estimated"),
            (white.redundant, "determined by the columns before it, which carry its effect"),
            (
                white.shared,
                "not to be told apart from keep, so keep is credited with its effect",
            ),
        )
        return [
            f"{', '.join(names[position] for position in positions)}: {reason}."
            for positions, reason in reasons
            if positions
        ]
