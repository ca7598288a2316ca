"""Strength of a confound: the product and a loop by hand on the same images, at four strengths.

    OMP_NUM_THREADS=1 python benchmarks/strength.py [--minutes 40] [--threads 1]

Images of PACS show an animal or another thing (the label), as a photograph or a drawing (the
confound). Label and confound agree in .5 to .95 of the training rows, and are independent in the
test rows. Five arms are trained through `deconfound.runs.fit` and by hand (`strength_by_hand.py`).
A finished cell is a row of `docs/results/strength.csv` and is skipped the next time. The last step
writes `docs/results/strength.md` from all rows.

The folder of data is $DECONFOUND_DATA, or `../shared/data` beside the repository.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.special import logit
from scipy.stats import t as student
from strength_by_hand import ARMS, CONFOUND, LABEL, POSITIVE, Arm, fit_by_hand

from deconfound.metrics import auc, within_group_dcor_sqr
from deconfound.runs import fit

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
ANIMALS = ("dog", "elephant", "giraffe", "horse")

SHARES = (0.5, 0.7, 0.85, 0.95)
SEEDS = (0, 1, 2)
SIDES = ("product", "hand")
SIZE = 32
EPOCHS = 14
ROWS = 2000
TEST_ROWS = 1200
# PACS has 898 photographs of other things, too few for half of the training rows at a share of .95.
PHOTOGRAPHS = 0.3

COLUMNS = ("share", "arm", "seed", "side", "auc", "dcor2", "worst_group", "seconds")
INTRODUCTION = (
    "# Strength of a confound",
    "",
    "`benchmarks/strength.py` writes this page from `strength.csv`.",
    "",
    "Images of PACS at 32 × 32 show an animal or another thing, as a photograph or a drawing.",
    "Each network is trained on 2,000 rows, of which a share agrees: animals are drawn, and other",
    "things are photographed. The share is the same among photographs and drawings. Photographs",
    "are .3 of the rows, so animals become more frequent as the share grows: .50, .58, .64, .68.",
    "The 1,200 test rows are other images, in which label and confound are independent.",
    "",
    "## The product",
    "",
    "AUC of the test rows / dcor² of logit and confound within label groups / accuracy of the",
    "worst of the four groups at logit 0. Columns are shares, and figures are means over seeds.",
    "",
)
ANOTHER_EXPERIMENT = (
    "",
    "## An earlier experiment on other images",
    "",
    "These figures come from other images and networks, with two seeds. Orders of the arms can be",
    "compared with the table above; numbers cannot.",
    "",
    "| | .50 | .70 | .85 | .95 |",
    "|---|---|---|---|---|",
    "| none | .923 / .002 / .82 | .925 / .032 / .80 | .882 / .113 / .69 | .870 / .189 / .63 |",
    "| pmdn | .929 / .001 / .83 | .926 / .000 / .83 | .869 / .002 / .78 | .761 / .009 / .64 |",
    "| overlap | .921 / .001 / .81 | .913 / .000 / .83 | .927 / .000 / .85 | .899 / .001 / .80 |",
    "| overlap and pmdn "
    "| .921 / .002 / .81 | .914 / .000 / .81 | .927 / .002 / .83 | .678 / .005 / .29 |",
    "| ranking | .958 / .001 / .87 | .954 / .001 / .87 | .920 / .000 / .80 | .768 / .006 / .58 |",
)
COMPARISON = (
    "",
    "## The product beside a loop by hand",
    "",
    "Mean AUC by hand (`benchmarks/strength_by_hand.py`) minus that of the product, with the",
    "95 % interval over seeds. Rows of all parts, first weights and epochs are the same; the order",
    "of rows is drawn separately. Two sides agree if the interval holds 0 or the difference is at",
    "most .01. With three seeds, intervals are wide.",
    "",
)

# Two sides agree in a cell if their mean AUC differs by no more than this, or by less than the
# interval of the difference over seeds.
SAME_AUC = 0.01


def main() -> None:
    """Train the cells that are not in the file yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell later")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    end = time.monotonic() + 60 * arguments.minutes
    path = RESULTS / "strength.csv"
    with tempfile.TemporaryDirectory() as scratch:
        # The user's own cache stays as it is.
        os.environ["DECONFOUND_CACHE"] = f"{scratch}/cache"
        folder = pathlib.Path(scratch)
        for cell in cells_to_do(path):
            if time.monotonic() > end:
                break
            append(path, {**cell, **run_cell(folder, **cell)})
    page = format_page(pd.read_csv(path))
    (RESULTS / "strength.md").write_text(page)
    print(page)


def cells_to_do(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield the cells that have no row, one seed after the other."""
    names = ("seed", "share", "arm", "side")
    done = set()
    if path.exists():
        done = set(pd.read_csv(path)[list(names)].itertuples(index=False, name=None))
    for values in product(SEEDS, SHARES, ARMS, SIDES):
        if values not in done:
            yield dict(zip(names, values, strict=True))


def append(path: pathlib.Path, row: dict[str, Any]) -> None:
    """Add a row to the file, and print it."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)


def run_cell(
    folder: pathlib.Path, *, share: float, arm: str, seed: int, side: str
) -> dict[str, Any]:
    """Train one arm on one draw of rows, and measure its logits of the test rows."""
    table = draw_table(read_labels(), share, seed)
    images = write_images(folder)
    # Seconds of the processor, which other people's work on the machine does not change.
    start = time.process_time()
    if side == "product":
        logits = fit_product(folder, images, table, ARMS[arm], seed)
    else:
        pixels = np.stack([read_pixels(images / name) for name in table["file"]])
        start = time.process_time()  # The product's cache holds decoded images as well.
        logits = fit_by_hand(pixels, table, ARMS[arm], EPOCHS, seed)
    seconds = round(time.process_time() - start, 1)
    return {**measure(logits, table[table["part"] == "test"]), "seconds": seconds}


def read_labels() -> pd.DataFrame:
    """Return the file, kind and source of each image."""
    labels = pd.read_csv(data_folder() / "labels.csv")
    is_animal, is_photograph = labels["category"].isin(ANIMALS), labels["domain"] == "photo"
    return pd.DataFrame(
        {
            "file": labels["file"].str.replace(".jpg", ".png"),
            LABEL: np.where(is_animal, POSITIVE, "other"),
            CONFOUND: np.where(is_photograph, "photograph", "drawing"),
        }
    )


def data_folder() -> pathlib.Path:
    """Return the folder of PACS."""
    data = os.environ.get("DECONFOUND_DATA", ROOT.parent.parent / "shared" / "data")
    folder = pathlib.Path(data) / "pacs64"
    if not folder.exists():
        raise SystemExit(f"There is no folder {str(folder)!r}. Set DECONFOUND_DATA.")
    return folder


def draw_table(labels: pd.DataFrame, share: float, seed: int) -> pd.DataFrame:
    """Return training rows, drawn by the seed, and the test rows, which are always the same."""
    tested = draw_cells(labels, lambda kind, source: TEST_ROWS // 4, seed=0)

    def count(kind: str, source: str) -> int:
        of_source = PHOTOGRAPHS if source == "photograph" else 1 - PHOTOGRAPHS
        does_agree = (kind == POSITIVE) == (source == "drawing")
        return round(ROWS * of_source * (share if does_agree else 1 - share))

    trained = draw_cells(labels.drop(tested.index), count, seed)
    parts = [trained.assign(part="train"), tested.assign(part="test")]
    return pd.concat(parts).reset_index(drop=True)


def draw_cells(labels: pd.DataFrame, count: Callable[[str, str], int], seed: int) -> pd.DataFrame:
    """Return `count(kind, source)` rows of each cell, without replacement."""
    drawn = [
        rows.sample(count(*cell), random_state=seed)
        for cell, rows in labels.groupby([LABEL, CONFOUND])
    ]
    return pd.concat(drawn)


def write_images(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder with all images at the size of the networks; both sides read these."""
    images = folder / "images"
    if not images.exists():
        images.mkdir()
        with zipfile.ZipFile(data_folder() / "images.zip") as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    # Pillow averages over all pixels that a new one covers.
                    small = Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.BILINEAR)
                small.save(images / name.replace(".jpg", ".png"))
    return images


def read_pixels(path: pathlib.Path) -> NDArray[np.uint8]:
    """Return an image, shape `(3, height, width)`."""
    return np.asarray(Image.open(path)).transpose(2, 0, 1)


def fit_product(
    folder: pathlib.Path, images: pathlib.Path, table: pd.DataFrame, arm: Arm, seed: int
) -> NDArray[np.float64]:
    """Return the logits of the test rows from a run of the product.

    Each level of the column `part` makes a fold that tests its rows. The first part of two trains
    the first fold alone, which tests the rows of the level "test".
    """
    rows = folder / "rows.csv"
    table.to_csv(rows, index=False)
    config = {
        "data": {
            "source": str(images),
            "table": str(rows),
            "id": "file",
            "labels": [LABEL],
            "positive": POSITIVE,
        },
        "design": {"confounds": [CONFOUND]},
        "method": "pmdn" if arm.has_layers else "none",
        "training": {
            "epochs": EPOCHS,
            "balance": "overlap" if arm.is_balanced else None,
            "loss": "ranking" if arm.is_ranking else None,
        },
        "splits": {"kind": "column", "column": "part"},
        "run": {"folder": str(folder / "run"), "seed": seed, "features": False},
    }
    run = fit(config, part=(1, 2), audit=False, force=True)
    assert run.finished == ("test",), run
    predictions = run.predictions.set_index("id")
    tested = table.loc[table["part"] == "test", "file"]
    return logit(predictions.loc[tested, f"prob_{POSITIVE}"].to_numpy())


def measure(logits: NDArray[np.floating[Any]], tested: pd.DataFrame) -> dict[str, float]:
    """Return AUC, dcor² of logit and source within each kind, and accuracy of the worst group."""
    is_animal = (tested[LABEL] == POSITIVE).to_numpy()
    is_photograph = (tested[CONFOUND] == "photograph").to_numpy(float)
    is_right = pd.Series((logits > 0) == is_animal, tested.index)
    accuracy = is_right.groupby([tested[LABEL], tested[CONFOUND]]).mean()
    values = {
        "auc": auc(logits, is_animal),
        "dcor2": within_group_dcor_sqr(logits, is_photograph, tested[LABEL]),
        "worst_group": accuracy.min(),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def format_page(rows: pd.DataFrame) -> str:
    """Return the page with the figures of the product, of both sides, and of another experiment."""
    sides = {side: part.drop(columns="side") for side, part in rows.groupby("side")}
    means = sides["product"].groupby(["arm", "share"])[["auc", "dcor2", "worst_group"]].mean()
    lines = [
        *INTRODUCTION,
        *format_table(lambda arm, share: " / ".join(short(x) for x in means.loc[(arm, share)])),
        *ANOTHER_EXPERIMENT,
        *format_comparison(sides["hand"].merge(sides["product"], on=["share", "arm", "seed"])),
    ]
    return "\n".join([*lines, ""])


def format_table(cell: Callable[[str, float], str]) -> list[str]:
    """Return a table in Markdown with a row for each arm and a column for each share."""
    lines = [
        "| | " + " | ".join(f"{share:.2f}".lstrip("0") for share in SHARES) + " |",
        "|---" * (1 + len(SHARES)) + "|",
    ]
    for arm in ARMS:
        cells = []
        for share in SHARES:
            try:
                cells.append(cell(arm, share))
            except KeyError:  # These cells are not trained yet.
                cells.append("–")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def format_comparison(pairs: pd.DataFrame) -> list[str]:
    """Return the differences in AUC of both sides, with sentences on whether they agree."""
    pairs = pairs.assign(difference=pairs["auc_x"] - pairs["auc_y"])
    cells = estimate_means(pairs.groupby(["arm", "share"])["difference"])
    arms = estimate_means(pairs.groupby("arm")["difference"])
    equal, narrow = int(cells["is_equal"].sum()), int((cells["mean"].abs() <= SAME_AUC).sum())
    return [
        *COMPARISON,
        *format_table(lambda arm, share: format_mean(cells.loc[(arm, share)])),
        "",
        f"The two sides agree in {equal} of {len(cells)} cells; one in twenty differs by chance.",
        f"In {narrow} of them the means differ by at most {SAME_AUC}, whatever the interval.",
        "",
        "Over all shares and seeds:",
        "",
        "| arm | difference |",
        "|---|---|",
        *[f"| {arm} | {format_mean(arms.loc[arm])} |" for arm in ARMS if arm in arms.index],
    ]


def estimate_means(groups: Any) -> pd.DataFrame:
    """Return the mean of each group, half of its 95 % interval, and whether both sides agree."""
    means = groups.agg(["mean", "std", "count"])
    # A single seed has no interval.
    means["half"] = student.ppf(0.975, means["count"] - 1) * means["std"] / means["count"] ** 0.5
    means["is_equal"] = means["mean"].abs() <= means["half"].fillna(0).clip(lower=SAME_AUC)
    return means


def format_mean(estimate: pd.Series) -> str:
    """Return a mean with half of its interval, and a mark if the sides do not agree."""
    mark = "" if estimate["is_equal"] else " **differs**"
    return f"{estimate['mean']:+.3f} ± {estimate['half']:.3f}{mark}"


def short(number: float) -> str:
    """Return a number below 1 without its zero: .923."""
    return f"{number:.3f}".replace("0.", ".", 1)


if __name__ == "__main__":
    main()
