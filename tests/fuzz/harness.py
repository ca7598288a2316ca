"""Targets by name, and how they are run; see `tests.fuzz`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from deconfound.errors import DeconfoundError, DeconfoundWarning

Target = Callable[[st.DataObject], str]
TARGETS: dict[str, Target] = {}


def target(run: Target) -> Target:
    """Register a target under its name; a DeconfoundError is a refusal."""

    def guarded(data: st.DataObject) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeconfoundWarning)
            try:
                return run(data) or "read"
            except DeconfoundError as error:
                return "refused" if str(error).strip() else "refused without a word"

    TARGETS[run.__name__] = guarded
    return guarded


def fuzz(name: str, examples: int, seed: int | None = None) -> Counter[str]:
    """Run a target so many times; raises with the smallest failing input. Counts how inputs were taken."""
    taken: Counter[str] = Counter()

    def once(data: st.DataObject) -> None:
        taken[TARGETS[name](data)] += 1

    phases = (Phase.explicit, Phase.generate, Phase.target, Phase.shrink)
    run = given(st.data())(once)
    run = settings(
        max_examples=examples, deadline=None, database=None, derandomize=seed is None, phases=phases,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )(run)  # fmt: skip
    if seed is not None:
        run = seeded(seed)(run)
    run()
    return taken
