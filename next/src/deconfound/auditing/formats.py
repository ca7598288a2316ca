"""Numbers of an audit as text: one form for each, in sentences, tables and methods."""

from __future__ import annotations

from math import isnan

from deconfound.metrics import Estimate


def format_number(value: float | None) -> str:
    """Return a number with three digits, such as 0.832; a dash if it is not known.

    Example:
        >>> format_number(0.8318), format_number(-0.0021), format_number(61.34), format_number(None)
        ('0.832', '−0.002', '61.3', '–')
    """
    return _format(value, 3)


def format_interval(low: float | None, high: float | None) -> str:
    """Return an interval such as "0.80 to 0.86"; an empty text if it is not known.

    Example:
        >>> format_interval(0.7951, 0.8607), format_interval(0.001, 0.0079)
        ('0.80 to 0.86', '0.001 to 0.008')
    """
    if low is None or high is None or isnan(low) or isnan(high):
        return ""
    # Two decimals of a faint effect would show hardly anything.
    decimals = 3 if max(abs(low), abs(high)) < 0.1 else 2
    return f"{_format(low, decimals)} to {_format(high, decimals)}"


def format_p(p: float | None) -> str:
    """Return a p-value such as "0.012" or "< 0.001"; a dash if it is not known."""
    return "< 0.001" if p is not None and p < 0.001 else format_number(p)


def format_estimate(estimate: Estimate) -> str:
    """Return an estimate with its interval, such as "0.832 (0.80 to 0.86)"."""
    interval = format_interval(estimate.low, estimate.high)
    return format_number(estimate.value) + (f" ({interval})" if interval else "")


def format_trials(share: Estimate) -> str:
    """Return a share of trials as "84 of 100"."""
    return f"{round(share.value * share.n)} of {share.n}"


def _format(value: float | None, decimals: int) -> str:
    if value is None or isnan(value):
        return "–"
    # Larger numbers, such as errors in years, keep three digits.
    kept = decimals if abs(value) < 10 else max(decimals - len(f"{abs(value):.0f}"), 0)
    # Adding 0 turns −0.0 into 0.0.
    return f"{round(value, kept) + 0.0:,.{kept}f}".replace("-", "−")
