"""Readers (tables, arrays, scans), the cache of volumes, and the one writer of files."""

from typing import NoReturn

from deconfound.data.cache import (
    CachedSet,
    StoredVolumes,
    VolumeFault,
    cache_root,
    store_volumes,
    unpack,
)
from deconfound.data.datasets import DatasetSource, open_dataset
from deconfound.data.feature_checks import suspicious_features
from deconfound.data.features import IDENTIFIERS, open_table
from deconfound.data.file_source import FileSource
from deconfound.data.files import (
    digest,
    file_digest,
    file_digests,
    hold,
    only_one,
    read_checked,
    read_json,
    sweep,
    write_bytes,
    write_checked,
    write_json,
    write_text,
    writing,
)
from deconfound.data.images import open_images
from deconfound.data.opening import open_source, reads_files
from deconfound.data.progress import progress_bar
from deconfound.data.scans import open_scans
from deconfound.data.sources import ArraySource, Source, SourceNote, check_finite, open_array, refuse_bomb
from deconfound.data.tables import TABLES, csv_text, example, join_positions, read_table
from deconfound.data.volumes import Packing, check_packing, need_nibabel, pack, robust_scale, to_shape
from deconfound.renamed import no_attribute

__all__ = [
    "IDENTIFIERS",
    "TABLES",
    "ArraySource",
    "CachedSet",
    "DatasetSource",
    "FileSource",
    "Packing",
    "Source",
    "SourceNote",
    "StoredVolumes",
    "VolumeFault",
    "cache_root",
    "check_finite",
    "check_packing",
    "csv_text",
    "digest",
    "example",
    "file_digest",
    "file_digests",
    "hold",
    "join_positions",
    "need_nibabel",
    "only_one",
    "open_array",
    "open_dataset",
    "open_images",
    "open_scans",
    "open_source",
    "open_table",
    "pack",
    "progress_bar",
    "read_checked",
    "read_json",
    "read_table",
    "reads_files",
    "refuse_bomb",
    "robust_scale",
    "store_volumes",
    "suspicious_features",
    "sweep",
    "to_shape",
    "unpack",
    "write_bytes",
    "write_checked",
    "write_json",
    "write_text",
    "writing",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name)
