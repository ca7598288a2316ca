"""A simulated cohort as a BIDS folder, for everything that reads scans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deconfound.data import need_nibabel, progress_bar
from deconfound.errors import OptionError
from deconfound_lab.cohort.anatomy import affine

if TYPE_CHECKING:
    from deconfound_lab.cohort.cohort import Cohort

COLUMNS = {
    "participant_id": "Identifier of a simulated person.",
    "site": "Where the person was scanned.",
    "group": "CTRL, MCI, HIV or HAND.",
    "sex": "F or M.",
    "age": "Years.",
    "hiv": "Label: 1 in HIV and HAND.",
    "mci": "Label: 1 in MCI and HAND.",
}


def write_bids(cohort: Cohort, folder: str | Path, *, jobs: int | None = None, progress: bool = True) -> Path:
    """Write scans as NIfTI, `participants.tsv`, and the latents in `phenotype/severity.tsv`, for `open_scans`.

    The folder must be new or empty; `jobs` threads draw volumes, one per core by default.
    """
    need_nibabel()
    import nibabel

    root = Path(folder)
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        raise OptionError(f"the cohort's folder must be new or empty; got {root}, which is not. Name another one.")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"the cohort's folder must be one that can be written; got {root} ({error.strerror})."
        ) from error
    people = cohort.table["participant_id"].tolist()
    matrix = affine(cohort.size)
    with progress_bar("writing scans", len(people), progress) as advance:
        for person, scan in zip(people, cohort.map_scans(jobs), strict=True):
            path = root / person / "anat" / f"{person}_T1w.nii.gz"
            path.parent.mkdir(parents=True)
            nibabel.Nifti1Image(scan, matrix).to_filename(path)
            advance()
    _write_table(root / "participants.tsv", {name: cohort.table[name].tolist() for name in COLUMNS})
    (root / "phenotype").mkdir()
    severities = {f"severity_{name}": values.tolist() for name, values in cohort.severity.items()}
    _write_table(root / "phenotype" / "severity.tsv", {"participant_id": people, **severities})
    _write_json(root / "participants.json", {name: {"Description": text} for name, text in COLUMNS.items()})
    description = {
        "Name": "Simulated cohort",
        "BIDSVersion": "1.9.0",
        "DatasetType": "raw",
        "GeneratedBy": [{"Name": "deconfound", "Parameters": cohort.settings}],
    }
    _write_json(root / "dataset_description.json", description)
    return root


def _write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    lines = ["\t".join(columns), *("\t".join(map(str, cells)) for cells in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
