"""A fitted design as JSON-safe data and back: JSON floats read back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deconfound.design.basis import fitted_from_data, fitted_to_data
from deconfound.design.codecs import codec_from_data, codec_to_data
from deconfound.design.fitted import Fitted
from deconfound.design.whitening import Whitening
from deconfound.errors import TableError

FORMAT = "deconfound-design"
VERSION = 1


def to_data(fitted: Fitted, options: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that `fit` learned, with the options that `encode` obeys."""
    white = fitted.whitening
    return {
        "format": FORMAT,
        "version": VERSION,
        "options": dict(options),
        "rows": fitted.rows,
        "codecs": [codec_to_data(codec) for codec in fitted.codecs.values()],
        "confounds": [fitted_to_data(term) for term in fitted.confounds],
        "keep": [fitted_to_data(term) for term in fitted.keep],
        "gram": fitted.gram.tolist(),
        "whitening": {
            "matrix": white.matrix.tolist(),
            "shape": list(white.matrix.shape),
            "confound_directions": white.confound_directions,
            "constant": list(white.constant),
            "redundant": list(white.redundant),
            "shared": list(white.shared),
        },
    }


def from_data(data: Mapping[str, Any]) -> tuple[Fitted, dict[str, Any]]:
    """What `to_data` was given."""
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise TableError(
            f"a saved design must have format {FORMAT!r} and version {VERSION}; got "
            f"{data.get('format')!r} and {data.get('version')!r}. Save it again with this release."
        )
    codecs = [codec_from_data(codec) for codec in data["codecs"]]
    white = data["whitening"]
    fitted = Fitted(
        rows=data["rows"],
        codecs={codec.name: codec for codec in codecs},
        confounds=tuple(fitted_from_data(term) for term in data["confounds"]),
        keep=tuple(fitted_from_data(term) for term in data["keep"]),
        gram=np.array(data["gram"], dtype=np.float64),
        whitening=Whitening(
            np.array(white["matrix"], dtype=np.float64).reshape(white["shape"]),
            white["confound_directions"],
            tuple(white["constant"]),
            tuple(white["redundant"]),
            tuple(white["shared"]),
        ),
    )
    return fitted, dict(data["options"])
