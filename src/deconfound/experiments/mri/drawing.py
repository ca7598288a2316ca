"""The paper's t-SNE figure, and coefficients of a convolutional layer as maps."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.data.anatomy import affine
from deconfound.data.cohort import Cohort
from deconfound.data.nifti import need_nibabel
from deconfound.errors import OptionError
from deconfound.experiments.mri.fold import Outcome
from deconfound.experiments.mri.plan import ARMS
from deconfound.methods import Method
from deconfound.report.embedding import embed
from deconfound.surgery import NormalizedModel

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#E69F00", "#009E73")


def draw_tsne(cohort: Cohort, outcomes: Mapping[str, Outcome], batch: int) -> bytes:
    """Test people of one fold by their last hidden features: a column for each arm, coloured by site and by sex.

    Args:
        cohort: Whose people they are.
        outcomes: By arm.
        batch: The batch size, for the title.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(outcomes), 8), layout="constrained")
    axes: Any = figure.subplots(2, len(outcomes), squeeze=False)
    for number, (arm, outcome) in enumerate(outcomes.items()):
        found = embed(arm, outcome.features.astype(np.float64), np.arange(len(outcome.rows)))
        points = np.stack([found.x, found.y], axis=1)
        for place, name in zip(axes[:, number], ("site", "sex"), strict=True):
            levels = np.asarray(cohort.table[name])[outcome.rows]
            for level, colour in zip(sorted(set(levels.tolist())), _COLOURS, strict=False):
                mine = levels == level
                place.scatter(points[mine, 0], points[mine, 1], s=14, color=colour, label=level, linewidths=0)
            place.set_title(f"{ARMS[arm].title}, by {name}, batch {batch}", fontsize=11)
            place.legend(frameon=False, fontsize=9)
            place.set_xticks([])
            place.set_yticks([])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def write_maps(made: Method, path: str, folder: str | Path) -> list[Path]:
    """The coefficients of one layer as NIfTI, a file for each column of the confounds.

    A voxel holds the root mean square over channels of the coefficient, in features per unit of the confound.

    Args:
        made: A trained method with layers, one of them at a convolutional block.
        path: The block's name in the network.
        folder: Where the maps are written.
    """
    need_nibabel()
    import nibabel

    model = made.model
    if not isinstance(model, NormalizedModel) or path not in model.coefficients():
        raise OptionError(f"path must be a place with a layer; got {path!r}. Attach the method there.")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    written = []
    for name, beta in model.coefficients()[path].items():
        field = beta.detach().float().cpu().square().mean(0).sqrt().numpy()
        file = root / f"{path}_{''.join(c if c.isalnum() else '-' for c in name)}.nii.gz"
        nibabel.Nifti1Image(field, affine(field.shape[0])).to_filename(file)
        written.append(file)
    return written
