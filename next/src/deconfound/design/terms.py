"""Terms: what a user can write in `confounds` and `keep`.

A term is a column name, or one of the two classes below. `str(term)` is how messages name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from deconfound.errors import OptionError
from deconfound.table import Kind


@dataclass(frozen=True)
class Spline:
    """A natural cubic spline of a numeric column, for a confound that acts along an unknown curve.

    The knots lie at quantiles of the training rows. Beyond the outermost knots the curve is a
    straight line, so the effect on a person older than anyone in training stays moderate. The
    spline includes the straight line, so the column is not listed a second time.

    Args:
        column: Name of a numeric column.
        df: Number of columns of the design that the term takes, at least 2; usual are 3 to 5.

    Example:
        >>> from deconfound import Design, Spline
        >>> ages = [20.5, 28.0, 35.0, 47.0, 52.0, 61.0, 70.0, 80.0]
        >>> Design([Spline("age", df=3)]).fit({"age": ages}).names
        ('age', 'spline(age)[2]', 'spline(age)[3]')
    """

    column: str
    df: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise OptionError(f"Spline needs the name of a column; got {self.column!r}.")
        if not isinstance(self.df, int) or self.df < 2:
            raise OptionError(
                f"df of Spline must be a whole number of at least 2; got {self.df!r}. "
                f"Write {self.column!r} for a straight line."
            )

    def __str__(self) -> str:
        return f"spline({self.column})"


@dataclass(frozen=True, init=False)
class Interaction:
    """Products of columns, for a confound whose effect differs between levels of another.

    A numeric factor is standardised before it is multiplied. Only the products enter the design:
    list the columns themselves as well.

    Args:
        *factors: Two or more column names or `Spline` terms.

    Example:
        >>> from deconfound import Design, Interaction
        >>> table = {"age": [20.5, 35.0, 61.0, 80.0], "sex": ["F", "M", "F", "M"]}
        >>> Design(["age", "sex", Interaction("age", "sex")]).fit(table).names
        ('age', 'sex[M]', 'age:sex[M]')
    """

    factors: tuple[str | Spline, ...]

    def __init__(self, *factors: str | Spline) -> None:
        wrong = [factor for factor in factors if not isinstance(factor, str | Spline)]
        if wrong or len(factors) < 2:
            raise OptionError(
                f"Interaction needs two or more column names or Spline terms; got {factors!r}. "
                "Write Interaction('age', 'sex')."
            )
        # A frozen dataclass cannot assign to itself, and *factors needs an __init__ of its own.
        object.__setattr__(self, "factors", factors)

    def __str__(self) -> str:
        return ":".join(map(str, self.factors))


Term: TypeAlias = str | Spline | Interaction


def factors_of(term: Term) -> tuple[str | Spline, ...]:
    """Return the factors of an interaction, or the term itself as the only one."""
    return term.factors if isinstance(term, Interaction) else (term,)


def source_columns(terms: Iterable[Term]) -> tuple[str, ...]:
    """Return the columns of the table that the terms read, each once."""
    factors = [factor for term in terms for factor in factors_of(term)]
    names = [factor.column if isinstance(factor, Spline) else factor for factor in factors]
    return tuple(dict.fromkeys(names))


def spline_columns(terms: Iterable[Term]) -> tuple[str, ...]:
    """Return the columns that must be numeric because a spline reads them."""
    factors = [factor for term in terms for factor in factors_of(term)]
    return tuple(dict.fromkeys(f.column for f in factors if isinstance(f, Spline)))


def check_terms(confounds: Sequence[Term], keep: Sequence[Term]) -> list[str]:
    """Return one sentence for each fault of the two lists of terms."""
    faults = [*_list_faults("confounds", confounds), *_list_faults("keep", keep)]
    if not faults and not len(confounds):
        faults.append("confounds must name at least one column; got an empty list.")
    if faults:
        return faults
    # An interaction in `keep` may have a confound as a factor: the diagnosis by age, for example.
    keep_columns = source_columns(term for term in keep if not isinstance(term, Interaction))
    shared = [name for name in source_columns(confounds) if name in keep_columns]
    shared += [str(term) for term in keep if isinstance(term, Interaction) and term in confounds]
    if shared:
        listed = ", ".join(map(repr, shared))
        faults.append(
            f"A column cannot be both removed and kept; got {listed} in confounds and in keep. "
            "Leave it out of one of them."
        )
    return faults


def check_types(terms: Sequence[Term], types: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each entry of `types` that cannot be."""
    splines = spline_columns(terms)
    faults = []
    for name, kind in types.items():
        if kind not in get_args(Kind):
            faults.append(f"types[{name!r}] must be 'numeric' or 'categorical'; got {kind!r}.")
        if kind == "categorical" and name in splines:
            faults.append(
                f"A spline needs a numeric column; got types={{{name!r}: 'categorical'}}. "
                f"Write {name!r} in place of the spline, or leave the type out."
            )
    return faults


def _list_faults(role: str, terms: Any) -> list[str]:
    if isinstance(terms, str | Spline | Interaction):
        return [f"{role} must be a list of columns; got {terms!r}. Write {role}=[{terms!r}]."]
    if not isinstance(terms, Sequence) or isinstance(terms, bytes):
        return [f"{role} must be a list of columns; got {type(terms).__name__}."]
    wrong = [term for term in terms if not isinstance(term, str | Spline | Interaction)]
    if wrong:
        return [f"{role} takes column names, Spline and Interaction; got {wrong[0]!r}."]
    faults = []
    simple = [term for term in terms if not isinstance(term, Interaction)]
    columns = [term.column if isinstance(term, Spline) else term for term in simple]
    repeated = [name for name in dict.fromkeys(columns) if columns.count(name) > 1]
    repeated += [
        str(term) for term in dict.fromkeys(terms) if terms.count(term) > 1 and term not in simple
    ]
    if repeated:
        listed = ", ".join(map(repr, repeated))
        faults.append(
            f"{role} must have each column once; got {listed} twice. "
            "Spline('age') includes 'age' itself."
        )
    return faults


def term_to_data(term: Term) -> Any:
    """Return a term as JSON-safe data: a name, or a dict with one key."""
    if isinstance(term, Spline):
        return {"spline": [term.column, term.df]}
    if isinstance(term, Interaction):
        return {"interaction": [term_to_data(factor) for factor in term.factors]}
    return term


def term_from_data(data: Any) -> Any:
    """Return the term that `term_to_data` wrote."""
    if isinstance(data, str):
        return data
    if "spline" in data:
        return Spline(*data["spline"])
    return Interaction(*[term_from_data(factor) for factor in data["interaction"]])
