"""The main job in small: a plain network and one with PMDN on synthetic images, and their audit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

import deconfound as dc
from deconfound_lab.synthetic import (
    CEILING,
    Problem,
    fit_cell,
    make_cell,
    make_problem,
    measure,
    predict,
)

ARMS = {"plain network": "plain", "with PMDN": "pmdn"}
# At this rate 300 steps are enough.
STEPS, LEARNING_RATE = 300, 1e-3
TEST_IMAGES_PER_GROUP = 2000
# The accuracy of a network without the confound lies within this distance of its expectation in
# 99.7 % of test sets: three standard errors.
MARGIN = 3 * math.sqrt(CEILING * (1 - CEILING) / (2 * TEST_IMAGES_PER_GROUP))


@dataclass(frozen=True)
class DemoResult:
    """What one network does with new images.

    Attributes:
        logits: Its outputs where the confound is associated with the group, shape `(n, 1)`.
        accuracy: Its accuracy there.
        independent: Its accuracy where the confound is independent of the group.
        dcor2: The paper's dcor² of its first fully connected layer and the confound.
    """

    logits: Tensor
    accuracy: float
    independent: float
    dcor2: float


def run_demo(
    seed: int = 0, steps: int = STEPS, on_progress: Callable[[str], None] | None = None
) -> tuple[dict[str, DemoResult], dc.Audit]:
    """Train both networks on 2,000 images, measure them on new ones, and audit them.

    Args:
        seed: The seed of images, first weights and order.
        steps: The number of training steps of 20 images.
        on_progress: Called with a description before each part.
    """
    report = on_progress or (lambda text: None)
    results: dict[str, DemoResult] = {}
    for name, arm in ARMS.items():
        report(f"training the {name}" if arm == "plain" else f"training the network {name}")
        cell = make_cell(arm, 20, seed, steps=steps, lr=LEARNING_RATE)
        problem = make_problem(cell, test_per_group=TEST_IMAGES_PER_GROUP)
        results[name] = train_network(cell, problem)
    report("auditing both")
    return results, audit_networks(results, problem)


def train_network(cell: dict[str, object], problem: Problem) -> DemoResult:
    """Train and refit the network of a cell, and measure it on new images."""
    method, _ = fit_cell(cell, problem)
    measures = measure(method, problem)
    logits, _ = predict(method, problem.design, problem.tests["associated"])
    names = ("accuracy", "independent", "dcor2")
    return DemoResult(logits, *(measures[name] for name in names))


def audit_networks(results: Mapping[str, DemoResult], problem: Problem) -> dc.Audit:
    """Audit the outputs where the confound is associated with the group."""
    return dc.audit(
        {name: result.logits for name, result in results.items()},
        problem.tests["associated"].table,
        confounds=["confound"],
        labels=["group"],
        resampling=dc.Resampling(permutations=99, bootstraps=100),
        planted=None,
        probes=False,
    )


def make_table(results: Mapping[str, DemoResult]) -> pd.DataFrame:
    """Return one line of text for each network."""
    columns = ("", "accuracy", "accuracy, confound independent", "dcor² with the confound")
    lines = [
        (name, f"{one.accuracy:.1%}", f"{one.independent:.1%}", f"{one.dcor2:.3f}")
        for name, one in results.items()
    ]
    return pd.DataFrame(lines, columns=columns)


def describe(plain: DemoResult, ours: DemoResult) -> str:
    """Return what both results show, and no more: a difference counts beyond 3 standard errors."""
    sentences = [
        f"Without the confound, {CEILING:.1%} is the best accuracy. "
        f"The plain network has {plain.accuracy:.1%}, and with PMDN it is {ours.accuracy:.1%}."
    ]
    if plain.accuracy > CEILING + MARGIN:
        sentences.append(
            "The plain network's surplus comes from the confound: where the confound is "
            f"independent of the group, it has {plain.independent:.1%}."
        )
    else:
        sentences.append("This plain network does not show that it uses the confound.")
    is_at_ceiling = abs(ours.accuracy - CEILING) <= MARGIN
    if is_at_ceiling and abs(ours.independent - CEILING) <= MARGIN:
        sentences.append(
            f"With PMDN both accuracies are as good as possible without it "
            f"({ours.independent:.1%} where it is independent)."
        )
    else:
        sentences.append(
            "With PMDN the network is not within three standard errors "
            f"({MARGIN:.1%}) of it. Train longer: raise --steps."
        )
    return " ".join(sentences)
