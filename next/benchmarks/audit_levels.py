"""Level and power of `deconfound.audit`, beside ordinary least squares on the same tables.

    OMP_NUM_THREADS=1 python benchmarks/audit_levels.py [--out FOLDER] [--jobs 2] [--share 1.0]

Every trial draws a new table from a fixed seed and audits it with `dc.audit`. The raw p of the
confound is counted. Finished blocks of trials are kept in the folder, so that an interrupted run
goes on where it stopped. The last lines print the table of `docs/results/audit_levels.csv`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from scipy.stats import f as f_distribution

import deconfound as dc

Array = NDArray[np.float64]
BLOCK = 100
RESAMPLING = dc.Resampling(permutations=199, bootstraps=0)


@dataclass(frozen=True)
class Design:
    """How tables are drawn.

    Attributes:
        name: What is special about these tables.
        n: Number of people.
        leak: The shift in sd of the second half of sites, or of the last site.
        prevalence: Share of cases; with three classes, of the rare class.
        folds: Number of test folds, whose outputs have means of their own.
        sites: Number of people in each site, or a number of equal sites.
        nested: Whether sites follow age, which is associated with the label.
        rows: The largest number of rows of a person.
        varies: Whether the site varies within people.
        weighted: Whether rows have weights that depend on site and label.
        label: "binary", "classes" or "numeric".
        rare_alone: Whether the leak is in the rare class alone.
        features: Number of features that are audited in place of the score; the leak is then in
            20 of them.
    """

    name: str
    n: int
    leak: float
    prevalence: float = 0.5
    folds: int = 1
    sites: int | tuple[int, ...] = 2
    nested: bool = False
    rows: int = 1
    varies: bool = False
    weighted: bool = False
    label: str = "binary"
    rare_alone: bool = False
    features: int = 0

    @property
    def null_trials(self) -> int:
        """2,000 tables without a leak, 500 of the large and 400 of the wide ones."""
        if self.features:
            return 400
        return 2000 if self.n <= 400 else 500


DESIGNS = (
    Design("n 60", 60, 0.75),
    Design("n 300", 300, 0.35),
    Design("n 1,000", 1000, 0.2),
    Design("prevalence .06", 300, 0.35, prevalence=0.06),
    Design("prevalence .03", 400, 0.3, prevalence=0.03),
    Design("prevalence .03, n 1,000", 1000, 0.2, prevalence=0.03),
    Design("five folds", 300, 0.35, folds=5),
    Design("five folds, prevalence .06", 300, 0.35, prevalence=0.06, folds=5),
    Design("eight sites", 300, 0.45, sites=8),
    Design("eight sites, n 1,000", 1000, 0.25, sites=8),
    Design("eight sites nested in age", 300, 0.45, sites=8, nested=True),
    Design("sites of 180, 180, 25 and 15", 400, 1.0, sites=(180, 180, 25, 15)),
    Design("one to six rows a person", 60, 0.9, rows=6),
    Design("site varies within people", 60, 0.5, rows=4, varies=True),
    Design("weights", 300, 0.4, weighted=True),
    Design("numeric label", 300, 0.35, label="numeric"),
    Design("three classes, one of 5 %", 300, 0.35, prevalence=0.05, label="classes"),
    Design("leak in the rare class alone", 400, 1.5, prevalence=0.06, rare_alone=True),
    Design("43 rows x 128 features", 43, 1.5, features=128),
    Design("171 rows x 512 features", 171, 1.0, features=512),
    Design("342 rows x 1,024 features", 342, 1.0, features=1024),
    Design("683 rows x 2,048 features", 683, 1.0, features=2048),
)


def draw_table(design: Design, leak: float, random: np.random.Generator) -> pd.DataFrame:
    """Return one table with the columns person, dx, site, age, fold, weight and score."""
    n = design.n
    dx = draw_label(design, random)
    severity = dx if design.label == "numeric" else (dx == dx.max()).astype(float)
    age = random.normal(60 + 4 * severity, 8)
    site = draw_sites(design, age, severity, random)
    repeats = random.integers(1, design.rows + 1, n) if design.rows > 1 else np.ones(n, dtype=int)
    person = np.repeat(np.arange(n), repeats)
    site = random.integers(0, site.max() + 1, len(person)) if design.varies else site[person]
    fold = random.integers(0, design.folds, n)[person]
    dx, severity = dx[person], severity[person]
    of_person = 0.7 * random.normal(size=n)[person] if design.rows > 1 else 0.0
    score = severity + of_person + random.normal(size=len(person)) + 0.5 * fold
    is_shifted = site == site.max() if not isinstance(design.sites, int) else site % 2 == 1
    if design.rare_alone:
        is_shifted &= severity == 1
    score = score + leak * is_shifted
    weight = 1 + 3 * (site == 0) * (severity == 1) if design.weighted else np.ones(len(person))
    return pd.DataFrame(
        {
            "person": [f"p{code}" for code in person],
            "dx": dx if design.label == "numeric" else [f"class {code:.0f}" for code in dx],
            "site": [f"site {code}" for code in site],
            "age": age[person],
            "fold": [f"fold {code}" for code in fold],
            "weight": weight.astype(float),
            "score": score,
        }
    )


def draw_label(design: Design, random: np.random.Generator) -> Array:
    """Return the label of each person."""
    if design.label == "numeric":
        return random.normal(size=design.n)
    is_rare = np.arange(design.n) < round(design.prevalence * design.n)
    if design.label == "classes":
        return np.where(is_rare, 2.0, random.integers(0, 2, design.n))
    return is_rare.astype(float)


def draw_sites(
    design: Design, age: Array, severity: Array, random: np.random.Generator
) -> NDArray[np.intp]:
    """Return the site of each person, which goes with the label."""
    if not isinstance(design.sites, int):
        return random.permutation(np.repeat(np.arange(len(design.sites)), design.sites))
    if design.nested:
        ranks = np.argsort(np.argsort(age + random.normal(size=design.n) * 4))
        return np.asarray(ranks * design.sites // design.n, dtype=np.intp)
    # Three in ten people are in the half of the sites that goes with their label.
    site = random.integers(0, design.sites, design.n)
    half = design.sites // 2
    follows = random.random(design.n) < 0.3
    return np.asarray(np.where(follows, site % half + half * (severity > 0.5), site))


def draw_features(
    design: Design, leak: float, table: pd.DataFrame, random: np.random.Generator
) -> Array:
    """Return features `(n, d)`, of which 20 follow the label and 20 have the leak."""
    features = random.normal(size=(len(table), design.features))
    features[:, :20] += (table["dx"] == "class 1").to_numpy()[:, None]
    features[:, 20:40] += leak * (table["site"] == "site 1").to_numpy()[:, None]
    return features


def audit_features_p(table: pd.DataFrame, features: Array) -> float:
    """Return the raw p of the site in an audit of features."""
    report = dc.audit(
        None,
        table,
        features=features,
        confounds=["site"],
        labels=["dx"],
        resampling=RESAMPLING,
        planted=None,
        probes=False,
    )
    return report.verdicts[0].effect.p


def audit_p(design: Design, table: pd.DataFrame) -> float:
    """Return the raw p of the site in an audit of the score."""
    outputs = table[["score"]].to_numpy()
    if design.label == "classes":
        outputs = np.column_stack([-outputs, np.zeros(len(outputs)), outputs])
    options = {"person": "person"} if design.rows > 1 else {}
    if design.folds > 1:
        options["fold"] = "fold"
    if design.weighted:
        options["weight"] = "weight"
    positive = "class 1" if design.label == "binary" else None
    report = dc.audit(
        outputs,
        table,
        confounds=["site"],
        labels=["dx"],
        positive=positive,
        resampling=RESAMPLING,
        planted=None,
        probes=False,
        **options,
    )
    return report.verdicts[0].effect.p


def least_squares_p(design: Design, table: pd.DataFrame) -> float:
    """Return the p-value of the F test of the site beside labels and folds, on person means."""
    keys = ["person", "site"] if design.varies else ["person"]
    means = table.groupby(keys, sort=False).agg(
        {"score": "mean", "dx": "first", "site": "first", "fold": "first", "weight": "mean"}
    )
    cells = means["dx"].to_frame() if design.label == "numeric" else pd.get_dummies(means["dx"])
    parts = [cells.to_numpy(float), pd.get_dummies(means["fold"]).to_numpy(float)]
    if design.varies:
        parts.append(pd.get_dummies(means.index.get_level_values("person")).to_numpy(float))
    without = np.column_stack([np.ones(len(means)), *parts])
    whole = np.column_stack([without, pd.get_dummies(means["site"]).to_numpy(float)])
    root = np.sqrt(means["weight"].to_numpy())[:, None]
    score = means["score"].to_numpy()[:, None] * root
    left = [
        score - x @ np.linalg.lstsq(x, score, rcond=None)[0] for x in (root * without, root * whole)
    ]
    ranks = [np.linalg.matrix_rank(x) for x in (without, whole)]
    free, extra = len(means) - ranks[1], ranks[1] - ranks[0]
    squares = [float((part**2).sum()) for part in left]
    return float(
        f_distribution.sf((squares[0] - squares[1]) / extra / (squares[1] / free), extra, free)
    )


def run_block(design: Design, leak: float, first: int, count: int) -> dict[str, int]:
    """Audit some tables and count the p-values of at most .05."""
    found = {"audit": 0, "least_squares": 0, "unanswered": 0, "trials": count}
    for trial in range(first, first + count):
        seed = [DESIGNS.index(design), int(leak > 0), trial]
        random = np.random.default_rng(seed)
        table = draw_table(design, leak, random)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if design.features:
                p = audit_features_p(table, draw_features(design, leak, table, random))
            else:
                p = audit_p(design, table)
                found["least_squares"] += int(least_squares_p(design, table) <= 0.05)
        found["unanswered"] += int(np.isnan(p))
        found["audit"] += int(p <= 0.05)
    return found


def run_cell(arguments: tuple[int, float, int, pathlib.Path]) -> pathlib.Path:
    """Run one block, unless its file exists."""
    index, leak, first, folder = arguments
    design = DESIGNS[index]
    kind = "leak" if leak else "null"
    path = folder / f"{index:02d}-{kind}-{first:05d}.json"
    if not path.exists():
        result = run_block(design, leak, first, BLOCK)
        path.write_text(json.dumps({"design": asdict(design), "leak": leak, **result}))
    return path


def summarise(folder: pathlib.Path) -> pd.DataFrame:
    """Add up all blocks: level without a leak, power with one, each with a 95 % interval."""
    rows = []
    for index, design in enumerate(DESIGNS):
        row: dict[str, object] = {"design": design.name, "n": design.n, "leak_sd": design.leak}
        for kind in ("null", "leak"):
            blocks = [json.loads(p.read_text()) for p in folder.glob(f"{index:02d}-{kind}-*.json")]
            trials = sum(block["trials"] for block in blocks)
            for name in ("audit",) if design.features else ("audit", "least_squares"):
                total = sum(block[name] for block in blocks)
                if trials:
                    row[f"{kind}_{name}"] = round(total / trials, 4)
                    interval = binomtest(total, trials).proportion_ci(method="wilson")
                    row[f"{kind}_{name}_low"] = round(interval.low, 4)
                    row[f"{kind}_{name}_high"] = round(interval.high, 4)
            row[f"{kind}_tables"] = trials
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    """Run all blocks that the folder lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/audit_levels"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--power", type=int, default=200, help="tables with a leak in each design")
    parser.add_argument("--share", type=float, default=1.0, help="share of tables without a leak")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = []
    for index, design in enumerate(DESIGNS):
        null_trials = int(design.null_trials * options.share)
        cells += [(index, 0.0, first, options.out) for first in range(0, null_trials, BLOCK)]
        cells += [
            (index, design.leak, first, options.out) for first in range(0, options.power, BLOCK)
        ]
    cells.sort(key=lambda cell: cell[2])
    with ProcessPoolExecutor(options.jobs) as pool:
        for done, path in enumerate(pool.map(run_cell, cells), start=1):
            print(f"{done} of {len(cells)} blocks: {path.name}", flush=True)
    table = summarise(options.out)
    table.to_csv(options.out / "audit_levels.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
