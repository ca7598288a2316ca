"""Samples: tables, arrays, pictures, scans and datasets, all as one array beside one table.

`open_samples` opens any source. Pictures and scans are decoded once and then read from a cache that
all commands and processes share.
"""

from deconfound.data.array_files import read_arrays, refuse_unpacking
from deconfound.data.cache import OnProgress, cache_folder
from deconfound.data.example import example
from deconfound.data.features import FeatureEncoder
from deconfound.data.images import read_image
from deconfound.data.opening import open_samples
from deconfound.data.samples import Samples
from deconfound.data.scans import read_scan

__all__ = [
    "FeatureEncoder",
    "OnProgress",
    "Samples",
    "cache_folder",
    "example",
    "open_samples",
    "read_arrays",
    "read_image",
    "read_scan",
    "refuse_unpacking",
]
