"""The paper's MRI experiment on the simulated cohort: every arm, batch size and fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from deconfound.training import Fold, kfold, stratum_codes
from deconfound_lab.cohort.cohort import Cohort, simulate_cohort
from deconfound_lab.cohort.strengths import variant_of
from deconfound_lab.footing import refits
from deconfound_lab.harness import Cell, Experiment, Finished, Page, Progress, Signals
from deconfound_lab.mri.maps import FILE as MAPS
from deconfound_lab.mri.maps import save_maps, train_maps, write_files
from deconfound_lab.mri.page import make_page
from deconfound_lab.mri.plan import ARMS, FULL, QUICK, Arm, Plan
from deconfound_lab.mri.results import OURS, Results
from deconfound_lab.mri.summary import SHOWN_BATCH, summarise
from deconfound_lab.mri.training import FoldTraining, Volumes, load, train_arm

# Which trainings there are changes nothing in any of them, so a plan may grow in the same folder.
_WHICH = ("parts", "bootstraps")


class MriExperiment(Experiment):
    """Every training of a plan; when all are there, the maps of a layer's coefficients.

    Args:
        quick: 32³, a smaller network, one batch size, one fold: minutes on two cores, instead of all of it on a GPU.
        device: Where it is trained.
        plan: Used instead of the full or the quick one.
        cache: Where the simulated volumes are stored.
        show: Whether a bar is shown while volumes are simulated.
    """

    modules: ClassVar[tuple[str, ...]] = ("cohort.cohort", "mri.training", "mri.measures", "mri.maps")

    def __init__(
        self,
        quick: bool = False,
        device: str = "cpu",
        *,
        plan: Plan | None = None,
        cache: str | Path | None = None,
        show: bool = False,
    ) -> None:
        self.plan = plan or (QUICK if quick else FULL)
        self.device, self.cache, self.show = torch.device(device), cache, show
        self.seed = self.plan.seed
        self.data = self.cohort.fingerprint

    @property
    def definition(self) -> Mapping[str, Any]:
        """The plan and the cohort, whose fingerprint is one of settings: voxels differ in the last bit on a GPU."""
        plan = {name: value for name, value in self.plan.to_dict().items() if name not in _WHICH}
        return {"plan": plan, "data": self.data}

    @cached_property
    def cohort(self) -> Cohort:
        """The people of the paper's Table 1."""
        return self._simulate(0, people=self.plan.people)

    @cached_property
    def independent(self) -> Cohort:
        """People of another seed in whom labels and confounds are independent."""
        return self._simulate(1, independent=True, people=self._multiple_of_four)

    @cached_property
    def oracle(self) -> Volumes:
        """Further people of that kind on the device, whom the oracle learns from; at the sites of Table 1."""
        kind = replace(variant_of(self.plan.variant), unseen_site=False)
        cohort = self._simulate(2, independent=True, people=self._multiple_of_four, variant=kind)
        return load(cohort.keep(self.cache, progress=self.show), self.device)

    def _simulate(self, seed: int, **options: Any) -> Cohort:
        made = {"anatomy": self.plan.anatomy, "device": self.device, "variant": self.plan.variant, **options}
        return simulate_cohort(self.plan.size, self.plan.seed + seed, **made)

    @property
    def _multiple_of_four(self) -> int | None:
        return None if self.plan.people is None else 4 * -(-self.plan.people // 4)

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """Folds with the same share of every site and group."""
        strata = stratum_codes([self.cohort.table["site"], self.cohort.table["group"]])
        return kfold(strata, np.asarray(self.cohort.table["person"]), folds=self.plan.folds, seed=self.plan.seed)

    @cached_property
    def volumes(self) -> tuple[Volumes, Volumes]:
        """The cohort and the independent people on the device."""
        cohort, independent = (
            load(each.keep(self.cache, progress=self.show), self.device) for each in (self.cohort, self.independent)
        )
        return cohort, independent

    def cells(self) -> list[Cell]:
        """One for each training."""
        return [
            Cell(
                f"{name}, batch {batch}, fold {fold}",
                {"name": name, "batch": batch, "fold": fold, "arm": asdict(ARMS[name])},
            )
            for batch, fold, name in self.plan.trainings()
        ]

    def compute(self, cell: Cell, signals: Signals) -> dict[str, Any]:
        """Train an arm, and predict the test fold and the independent people with it, refitted and as trained."""
        arm, batch, fold = ARMS[cell.definition["name"]], cell.definition["batch"], cell.definition["fold"]
        cohort, independent = self.volumes
        data = self.training(fold, arm)
        made, result = train_arm(self.plan, data, arm, batch)
        test, everyone = self.folds[fold].test, np.arange(len(independent))
        before = {}
        if refits(arm.method):
            before = {
                "logits as trained": data.predict(made, cohort, test).logits.numpy(),
                "independent as trained": data.predict(made, independent, everyone).logits.numpy(),
            }
            data.refit(made)
        tested = data.predict(made, cohort, test)
        assert tested.features is not None
        return {
            **before,
            "rows": test,
            "logits": tested.logits.numpy(),
            "features": tested.features.numpy(),
            "independent": data.predict(made, independent, everyone).logits.numpy(),
            "history": [
                {"epoch": e.number, "train_loss": e.training, "val_loss": e.validation} for e in result.history
            ],
            "best": result.best,
            "validation": data.judge(made),
            "seconds": result.seconds,
        }

    def training(self, fold: int, arm: Arm) -> FoldTraining:
        """The data of a fold; for the oracle as many other people, of whom none is tested."""
        plan, volumes, rows = self.plan, self.volumes[0], self.folds[fold]
        seed = 1000 * (plan.seed if plan.start is None else plan.start) + fold
        if arm.oracle:
            volumes = self.oracle
            order = np.random.default_rng(1000 * plan.seed + fold).permutation(len(volumes))
            train, validation = np.split(order, [len(rows.train)])
            rows = Fold("oracle", train, validation[: len(rows.validation)], np.empty(0, dtype=np.intp))
        return FoldTraining(plan.network, volumes, rows, seed, plan.gamma, balanced=arm.balanced)

    def summarise(self, finished: Mapping[str, Finished], failures: Mapping[str, str]) -> dict[str, Any] | None:
        """Measure every arm at every batch size, as far as they are trained."""
        if not finished:
            return None
        named = zip(self.cells(), self.plan.trainings(), strict=True)
        trained = {training: finished[cell.key] for cell, training in named if cell.key in finished}
        return summarise(self.plan, self.cohort, self.independent, trained, failures).to_dict()

    def afterwards(self, folder: Path, progress: Progress | None) -> None:
        """The maps, where our arm is part of the plan."""
        if OURS in self.plan.arms and not (folder / MAPS).exists():
            self.make_maps(folder, progress)

    def make_maps(self, folder: Path, progress: Progress | None = None) -> None:
        """Train ours with a layer in the first block, and write its coefficients as `maps.npz`, picture and NIfTI."""
        if progress is not None:
            progress("maps of the coefficients", 0, 1)
        batch = SHOWN_BATCH if SHOWN_BATCH in self.plan.batch_sizes else self.plan.batch_sizes[0]
        # Where the confounds are is learned well before the labels are.
        third = replace(self.plan, epochs=-(-self.plan.epochs // 3), least_steps=self.plan.least_steps // 3)
        save_maps(train_maps(third, self.training(0, ARMS[OURS]), batch, self.data, self.modules), folder)
        write_files(folder)
        if progress is not None:
            progress("maps of the coefficients", 1, 1)

    @classmethod
    def page(cls, results: Mapping[str, Any], folder: Path) -> Page:
        """The paper's tables and figures."""
        return make_page(Results.from_dict(results), folder, cls.modules)
