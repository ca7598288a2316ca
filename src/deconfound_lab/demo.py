"""The main job in small: the plain CNN and the same CNN with PMDN on synthetic images, and the audit of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import deconfound as dc
from deconfound.auditing import html_table, section
from deconfound_lab.synthetic.images import CEILING, CEILING_WITH_CONFOUND
from deconfound_lab.synthetic.measures import measure, outputs
from deconfound_lab.synthetic.plan import Setup
from deconfound_lab.synthetic.training import make_problem, make_trainer

NETWORKS = {"plain CNN": "none", "CNN with PMDN": "pmdn"}
TEST_PER_GROUP = 2000
# Three standard errors of an accuracy on 4,000 images.
MARGIN = 0.018


@dataclass(frozen=True)
class DemoResult:
    """What one network does on images that it has not seen.

    `logits` and `accuracy` are those where confound and group go together, as in training; `dcor2` is that of the first
    fully connected layer's output with the confound, bias-corrected, within each group and averaged.
    """

    logits: Tensor
    accuracy: float
    accuracy_independent: float
    dcor2: float


def train(
    method: str, steps: int = 1000, batch: int = 20, seed: int = 0, tick: Callable[[], None] | None = None
) -> DemoResult:
    """Train the CNN of the paper with a method, refit it on validation images, and measure it on new ones."""
    problem = make_problem("one", seed, torch.device("cpu"), test_per_group=TEST_PER_GROUP)
    trainer = make_trainer(Setup(method, batch, steps=steps), seed, problem, steps)
    for _ in range(steps):
        trainer.step()
        if tick is not None:
            tick()
    trainer.refit()
    found = measure(trainer.method, problem.design, problem.tests)
    logits, _ = outputs(trainer.method, problem.design, problem.tests["tied"])
    return DemoResult(logits, *(found[name] for name in ("accuracy", "accuracy_independent", "dcor2")))


def sentence(plain: DemoResult, ours: DemoResult) -> str:
    """What the two results say; no more than they do."""
    numbers = (
        f"The plain network has {plain.accuracy:.1%} where the confound goes with the group and "
        f"{plain.accuracy_independent:.1%} where it says nothing; with PMDN it is {ours.accuracy:.1%} and "
        f"{ours.accuracy_independent:.1%}."
    )
    if plain.accuracy > CEILING + MARGIN and abs(ours.accuracy - ours.accuracy_independent) < 2 * MARGIN:
        return (
            f"{numbers} What the plain network has above {CEILING:.1%} is the confound's doing (with it, "
            f"{CEILING_WITH_CONFOUND:.1%} is possible), and PMDN does without."
        )
    return f"{numbers} These networks are too little trained, or too unlucky, to show more: try more --steps."


HEAD = ("", "accuracy", "accuracy, confound independent", "dcor² with the confound")


def lines(results: Mapping[str, DemoResult]) -> list[list[str]]:
    """A line for each network, under `HEAD`."""
    return [
        [name, f"{each.accuracy:.1%}", f"{each.accuracy_independent:.1%}", f"{each.dcor2:.3f}"]
        for name, each in results.items()
    ]


def page(results: Mapping[str, DemoResult], report: dc.Audit) -> str:
    """The page of the audit, with what the terminal shows before it."""
    title = f"What the two networks learned; {CEILING:.1%} is the most without the confound"
    told = section(title, html_table(HEAD, lines(results), label="networks"), lead=sentence(*results.values()))
    return report.to_html().replace("<section", f"{told}<section", 1)


def audit(results: Mapping[str, DemoResult], seed: int = 0, progress: Any = None) -> dc.Audit:
    """The audit of the networks on the images where confound and group go together."""
    problem = make_problem("one", seed, torch.device("cpu"), test_per_group=TEST_PER_GROUP)
    return dc.audit(
        {name: result.logits.numpy() for name, result in results.items()},
        problem.tests["tied"].table,
        confounds=["confound"],
        labels=["group"],
        permutations=99,
        bootstraps=199,
        embedding=False,
        progress=progress,
    )
