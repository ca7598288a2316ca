"""Whether a linear removal was enough: what a non-linear probe finds where a linear one finds nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deconfound.metrics.columns import Column
from deconfound.metrics.probes import probe
from deconfound.metrics.resampling import Estimate, Resampling, holm

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

LEVEL = 0.05


@dataclass(frozen=True)
class BeyondLinear:
    """A confound that only a non-linear probe reads from features: trees and networks will read it too.

    Attributes:
        confound: Its name.
        linear: What a linear probe finds.
        nonlinear: What a non-linear one finds.
    """

    confound: str
    linear: Estimate
    nonlinear: Estimate

    @property
    def text(self) -> str:
        """For a warning."""
        what = "R²" if self.nonlinear.statistic.endswith("r2") else "AUC"
        return (
            f"{self.confound} is still in the features, though not linearly: a non-linear probe reaches a "
            f"cross-validated {what} of {self.nonlinear.value:.2f} (a linear one {self.linear.value:.2f}, chance "
            f"{self.nonlinear.chance:.2f}). A linear model after it cannot use that; trees, kernels and networks can."
        )


def beyond_linear(
    features: "Samples",
    confounds: Sequence[Column],
    *,
    groups: "Samples | None" = None,
    resampling: Resampling | None = None,
) -> tuple[BeyondLinear, ...]:
    """The confounds that a non-linear probe reads from features, and a linear one does not.

    A confound is told where the non-linear probe is significant at 5 % after Holm's correction over the confounds, and
    the linear probe is not.

    Args:
        features: `(n, d)`, after a linear removal.
        confounds: What was removed.
        groups: `(n,)` codes of label groups; permutations stay within them.
        resampling: How many permutations.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> site = rng.integers(0, 2, 300)
        >>> scaled = rng.normal(size=(300, 2)) * (1 + 2 * site[:, None])  # means agree, spreads do not
        >>> from deconfound.metrics import column
        >>> [found.confound for found in beyond_linear(scaled, [column("site", site)])]
        ['site']
    """
    drawn = resampling or Resampling(permutations=99, bootstraps=40)
    linear = [probe(features, each, "linear", groups=groups, resampling=drawn) for each in confounds]
    curved = [probe(features, each, "nonlinear", groups=groups, resampling=drawn) for each in confounds]
    adjusted = holm([found.p for found in curved])
    return tuple(
        BeyondLinear(each.name, one, other)
        for each, one, other, p in zip(confounds, linear, curved, adjusted, strict=True)
        if p <= LEVEL < one.p
    )
