"""Terms of a design as a config writes them: `age`, `spline(age, 4)`, `poly(age, 2)`, `age:sex`, `{age: spline}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from deconfound.design.terms import Interaction, Linear, Polynomial, Simple, Spline, Term, sources
from deconfound.errors import DeconfoundError

_CALL = re.compile(r"(spline|poly)\(\s*(.+?)\s*(?:,\s*(\d+)\s*)?\)")


def read_terms(values: Sequence[Any], where: str) -> tuple[list[Term], list[str]]:
    """The terms that can be read, and one sentence for each that cannot."""
    terms: list[Term] = []
    faults: list[str] = []
    for value in values:
        try:
            terms.append(_term(value, where))
        except DeconfoundError as fault:
            faults.append(str(fault))
    return terms, faults


def columns_of(terms: Sequence[Term]) -> list[str]:
    """The table columns that the terms read, each once."""
    return list(dict.fromkeys(name for term in terms for name in sources(term)))


def _term(value: Any, where: str) -> Term:
    if isinstance(value, dict) and len(value) == 1:
        ((column, how),) = value.items()
        if how in ("spline", "poly"):
            return _curve(how, str(column), None)
        if isinstance(how, dict) and len(how) == 1 and next(iter(how)) in ("spline", "poly"):
            ((kind, size),) = how.items()
            if isinstance(size, int) and not isinstance(size, bool):
                return _curve(kind, str(column), size)
        if how in (None, "linear"):
            return Linear(str(column))
    if isinstance(value, str):
        parts = value.split(":")
        return _simple(value) if len(parts) == 1 else Interaction(*(_simple(part.strip()) for part in parts))
    raise DeconfoundError(
        f"{where} must hold columns or terms such as age, spline(age, 4), poly(age, 2), age:sex; got {value!r}."
    )


def _simple(text: str) -> Simple:
    found = _CALL.fullmatch(text.strip())
    if found is None:
        return Linear(text)
    return _curve(found[1], found[2], None if found[3] is None else int(found[3]))


def _curve(kind: str, column: str, size: int | None) -> Simple:
    curve = Spline if kind == "spline" else Polynomial
    return curve(column) if size is None else curve(column, size)
