"""Packages that a run needs beside the base; see `deconfound.errors.need`."""

from deconfound.errors import need

__all__ = ["need"]
