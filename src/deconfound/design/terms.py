"""What a user can write in `confounds` and `keep`: a column name, or one of the terms below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deconfound.errors import OptionError


@dataclass(frozen=True)
class Linear:
    """A column as it is: the term behind a plain column name."""

    column: str

    def __str__(self) -> str:
        return self.column


@dataclass(frozen=True)
class Polynomial:
    """Powers 1 … `degree` of a numeric column, for a confound that acts along a gentle curve.

    Args:
        column: A numeric column of the table.
        degree: The highest power. The tails grow with it: beyond 3, `Spline` extrapolates more safely.

    Example:
        >>> import deconfound as dc
        >>> dc.Design(confounds=[dc.Polynomial("age", degree=2)]).fit({"age": [20.0, 35.0, 61.0, 80.0]}).names
        ('age', 'age^2')
    """

    column: str
    degree: int = 2

    def __post_init__(self) -> None:
        if self.degree < 2:
            raise OptionError(
                f"Polynomial degree must be at least 2; got {self.degree}. Write {self.column!r} for a straight line."
            )

    def __str__(self) -> str:
        return f"poly({self.column}, {self.degree})"


@dataclass(frozen=True)
class Spline:
    """A natural cubic spline of a numeric column, for a confound that acts along an unknown curve.

    The curve is a straight line beyond the outermost knots, so that a person older than anyone in the
    training table is not sent off by a cubic. The knots stand at quantiles of the training rows.

    Args:
        column: A numeric column of the table.
        df: How many columns the term takes; `df=1` would be a straight line, 3 to 5 is usual.

    Example:
        >>> import deconfound as dc
        >>> ages = [20.0, 28.0, 35.0, 47.0, 52.0, 61.0, 70.0, 80.0]
        >>> dc.Design(confounds=[dc.Spline("age", df=3)]).fit({"age": ages}).names
        ('age', 'spline(age)[2]', 'spline(age)[3]')
    """

    column: str
    df: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.df, int) or self.df < 2:
            raise OptionError(
                f"Spline df must be at least 2; got {self.df!r}. Write {self.column!r} for a straight line."
            )

    def __str__(self) -> str:
        return f"spline({self.column}, {self.df})"


Simple = Linear | Polynomial | Spline


@dataclass(frozen=True, init=False)
class Interaction:
    """Products of terms, for a confound whose effect differs between levels of another (age × sex).

    Only the products enter: list the columns themselves beside it.

    Args:
        *factors: Two or more column names, `Polynomial`s or `Spline`s.

    Example:
        >>> import deconfound as dc
        >>> table = {"age": [20.0, 35.0, 61.0, 80.0], "sex": ["F", "M", "F", "M"]}
        >>> dc.Design(confounds=["age", "sex", dc.Interaction("age", "sex")]).fit(table).names
        ('age', 'sex[M]', 'age:sex[M]')
    """

    factors: tuple[Simple, ...]

    def __init__(self, *factors: str | Simple) -> None:
        if len(factors) < 2:
            raise OptionError(
                f"Interaction must have at least two factors; got {len(factors)}. Write Interaction('age', 'sex')."
            )
        object.__setattr__(self, "factors", tuple(_simple(factor) for factor in factors))

    def __str__(self) -> str:
        return ":".join(str(factor) for factor in self.factors)


Term = Simple | Interaction


def _simple(value: str | Simple) -> Simple:
    if isinstance(value, str):
        return Linear(value)
    if isinstance(value, Linear | Polynomial | Spline):
        return value
    raise OptionError(f"a factor of Interaction must be a column name, a Polynomial or a Spline; got {value!r}.")


def as_term(value: object, role: str) -> Term:
    """Read what a user wrote in `confounds` or `keep`."""
    if isinstance(value, Interaction):
        return value
    if isinstance(value, str | Linear | Polynomial | Spline):
        return _simple(value)
    raise OptionError(f"{role} must hold column names or terms (Polynomial, Spline, Interaction); got {value!r}.")


def as_terms(values: Sequence[Any], role: str) -> tuple[Term, ...]:
    """Read the whole list of `confounds` or `keep`."""
    if isinstance(values, str):
        raise OptionError(f"{role} must be a list of columns; got the text {values!r}. Write [{values!r}].")
    if values is None:
        raise OptionError(f"{role} must be a list of columns; got None.")
    terms = tuple(as_term(value, role) for value in values)
    repeated = sorted({str(term) for term in terms if terms.count(term) > 1})
    if repeated:
        raise OptionError(f"{role} must name each column once; got {repeated[0]!r} more than once.")
    return terms


def curved(terms: Sequence[Term]) -> list[str]:
    """Columns that a term bends, and which therefore are numeric."""
    simple = [factor for term in terms for factor in (term.factors if isinstance(term, Interaction) else (term,))]
    return [term.column for term in simple if isinstance(term, Polynomial | Spline)]


def sources(term: Term) -> tuple[str, ...]:
    """The table columns that a term reads."""
    if isinstance(term, Interaction):
        return tuple(dict.fromkeys(factor.column for factor in term.factors))
    return (term.column,)


def source_columns(terms: Sequence[Term]) -> list[str]:
    """The table columns that several terms read, each once."""
    return list(dict.fromkeys(name for term in terms for name in sources(term)))


_KINDS: dict[str, type[Term]] = {kind.__name__.lower(): kind for kind in (Linear, Polynomial, Spline, Interaction)}


def to_data(term: Term) -> dict[str, Any]:
    """A term as JSON-safe data: its kind, and its own fields."""
    own = {"factors": [to_data(factor) for factor in term.factors]} if isinstance(term, Interaction) else vars(term)
    return {"kind": type(term).__name__.lower(), **own}


def from_data(data: dict[str, Any]) -> Term:
    """The term that `to_data` wrote."""
    fields = {name: value for name, value in data.items() if name != "kind"}
    if data["kind"] == "interaction":
        return Interaction(*(from_data(factor) for factor in fields["factors"]))  # type: ignore[arg-type]
    return _KINDS[data["kind"]](**fields)
