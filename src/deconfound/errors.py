"""The errors that deconfound raises: one base, and a few kinds that are also the builtin kind.

Catch `DeconfoundError` for everything that the library refuses, or the builtin (`ValueError`, `KeyError`,
`RuntimeError`) where the calling code does not know the library.
"""


class DeconfoundError(Exception):
    """Base of every error that deconfound raises on purpose."""


class TableError(DeconfoundError, ValueError):
    """A table cannot be read as asked: an absent column, a missing or unseen value, a wrong type."""


class ScanError(DeconfoundError, ValueError):
    """Scans cannot be read, or do not go together with their table."""


class NotFittedError(DeconfoundError, RuntimeError):
    """A design was used before `fit`."""


class ShapeError(DeconfoundError, ValueError):
    """Features, metadata and rows do not fit together."""


class OptionError(DeconfoundError, ValueError):
    """An argument has a value outside those that it can take."""


class RunError(DeconfoundError, RuntimeError):
    """A run cannot go on: a broken or foreign file in its folder, a full disk, a loss that is not finite."""


class DeconfoundWarning(UserWarning):
    """Something that a result should not be read without knowing."""
