"""Data that come with deconfound."""

from deconfound.data.example import example

__all__ = ["example"]
