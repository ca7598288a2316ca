"""What a layer inside the convolutions takes out of each place in the brain: its coefficients as maps."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.data import write_bytes
from deconfound.errors import OptionError, RunError
from deconfound.methods import Method
from deconfound.surgery import NormalizedModel
from deconfound_lab.cohort.anatomy import EXTENT, affine
from deconfound_lab.harness.page import png
from deconfound_lab.harness.provenance import origin
from deconfound_lab.mri.plan import ARMS, Plan
from deconfound_lab.mri.results import OURS
from deconfound_lab.mri.training import FoldTraining, train_arm

FILE, PICTURE = "maps.npz", "maps.png"
PLACE = "blocks.0"
"""The first residual block: everything after it reads its residual."""

Field = NDArray[np.float32]
_CUTS = ((2, 0.53), (1, 0.55), (0, 0.56))
"""Axis and height of the slices: through the ventricles from above, from the front, and from the side."""


@dataclass(frozen=True)
class Maps:
    """Coefficients of one layer in space.

    Attributes:
        place: Where the layer stands.
        names: The confounds' columns.
        fields: `(columns, e, e, e)`: the root mean square over channels, in features per unit of the confound.
        base: `(e, e, e)`, the mean of the volumes.
        about: How and where the network was trained, in plain values.
    """

    place: str
    names: tuple[str, ...]
    fields: Field
    base: Field
    about: Mapping[str, Any]


def train_maps(plan: Plan, data: FoldTraining, batch: int, fingerprint: str, modules: Sequence[str]) -> Maps:
    """Train ours with one more layer at `PLACE`, and read its coefficients.

    Args:
        plan: How it is trained.
        data: Of one fold.
        batch: The batch size.
        fingerprint: The cohort's.
        modules: What the maps depend on in the lab.
    """
    arm = replace(ARMS[OURS], at=(PLACE, *ARMS[OURS].at))
    made, result = train_arm(plan, data, arm, batch)
    data.refit(made)
    about = {
        "plan": plan.to_dict(),
        "arm": asdict(arm),
        "batch": batch,
        "best": result.best,
        "seconds": round(result.seconds, 1),
        "provenance": origin(data.seed, fingerprint, modules),
    }
    return maps_of(made, PLACE, data.mean, about)


def maps_of(made: Method, place: str, mean: torch.Tensor, about: Mapping[str, Any]) -> Maps:
    """The coefficients of a layer of a trained method.

    Args:
        made: The method, with a layer at a convolutional block.
        place: The block's name in the network.
        mean: The mean of the volumes, `(1, size, size, size)`.
        about: How and where it was trained.
    """
    found = made.model.coefficients() if isinstance(made.model, NormalizedModel) else {}
    if place not in found:
        raise OptionError(f"place must be one with a layer; got {place!r}. Attach the method there.")
    fields = [beta.detach().float().cpu().square().mean(0).sqrt().numpy() for beta in found[place].values()]
    edge = fields[0].shape[0]
    base = torch.nn.functional.adaptive_avg_pool3d(mean.float().cpu(), edge)[0].numpy()
    return Maps(place, tuple(found[place]), np.stack(fields), base, about)


def save_maps(maps: Maps, folder: Path) -> None:
    """Write the maps as `maps.npz`, in half precision."""
    content = io.BytesIO()
    fields, base = maps.fields.astype(np.float16), maps.base.astype(np.float16)
    about = np.array(json.dumps(dict(maps.about)))
    np.savez_compressed(content, place=maps.place, names=np.array(maps.names), fields=fields, base=base, about=about)
    write_bytes(folder / FILE, content.getvalue())


def load_maps(path: Path) -> Maps:
    """What `save_maps` wrote."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            fields, base = stored["fields"].astype(np.float32), stored["base"].astype(np.float32)
            about = json.loads(str(stored["about"]))
            return Maps(str(stored["place"]), tuple(stored["names"].tolist()), fields, base, about)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} must hold maps; got {error}. Delete it to have it made again.") from error


def write_files(folder: Path) -> list[Path]:
    """From `maps.npz`: the picture, and a NIfTI file for each column where nibabel is installed."""
    maps = load_maps(folder / FILE)
    write_bytes(folder / PICTURE, draw_maps(maps))
    written = [folder / PICTURE]
    try:
        import nibabel
    except ImportError:
        return written
    for name, field in zip(maps.names, maps.fields, strict=True):
        file = folder / "maps" / f"{_plain(maps.place)}_{_plain(name)}.nii.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        nibabel.Nifti1Image(field, affine(field.shape[0])).to_filename(file)
        written.append(file)
    return written


def draw_maps(maps: Maps) -> bytes:
    """Three slices of each map over the mean brain, as PNG."""
    from matplotlib.figure import Figure

    columns = 2 if len(maps.names) > 2 else 1
    lines = -(-len(maps.names) // columns)
    figure = Figure(figsize=(6.4 * columns, 2.5 * lines), layout="constrained")
    grid: Any = figure.subplots(lines, 3 * columns, squeeze=False)
    for place in grid.ravel():
        place.set_axis_off()
    for number, (name, field) in enumerate(zip(maps.names, maps.fields, strict=True)):
        line, column = divmod(number, columns)
        places = grid[line, 3 * column : 3 * column + 3]
        top = float(np.quantile(field, 0.999)) or 1.0
        for place, (axis, height) in zip(places, _CUTS, strict=True):
            under, over = (_slice(volume, axis, height) for volume in (maps.base, field))
            across, up = (i for i in range(3) if i != axis)
            aspect = EXTENT[up] / EXTENT[across]
            place.imshow(under, origin="lower", cmap="gray", aspect=aspect)
            shown = place.imshow(over, origin="lower", cmap="inferno", vmin=0, vmax=top, alpha=0.85, aspect=aspect)
        places[1].set_title(name, fontsize=11)
        figure.colorbar(shown, ax=list(places), shrink=0.8, pad=0.01)
    return png(figure, 90)


def _slice(volume: Field, axis: int, height: float) -> Field:
    cut: Field = np.take(volume, int(height * volume.shape[axis]), axis=axis).T
    return cut


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
