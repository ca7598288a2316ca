"""The one collector of features: what modules return while a network runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from deconfound.attach.features import find_features
from deconfound.attach.model import NormalizedModel
from deconfound.attach.plan import Where, watching
from deconfound.attach.select import Selector, select_modules
from deconfound.errors import OptionError, StateError, nearest_names


class Collector:
    """Features that `collect` gathers, by module name."""

    def __init__(self, names: Iterable[str], detach: bool) -> None:
        self._detach = detach
        self._batches: dict[str, list[Tensor]] = {name: [] for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the modules."""
        return tuple(self._batches)

    def features(self, name: str | None = None) -> Tensor:
        """Return the features of all forward passes so far, shape `(n, …)`.

        Args:
            name: The module. It may be left out if there is one only.
        """
        if name is None and len(self._batches) == 1:
            name = self.names[0]
        if name not in self._batches:
            raise OptionError(
                f"name={name!r} was not collected. {nearest_names(str(name), self.names)}"
            )
        batches = self._batches[name]
        if not batches:
            raise StateError(
                f"No forward pass has reached module {name!r} yet. "
                "Call the network inside the `with collect(…)` block."
            )
        # A single batch is returned without a copy, and with its graph if it has one.
        return batches[0] if len(batches) == 1 else torch.cat(batches)

    def clear(self) -> None:
        """Forget all features, for use batch by batch."""
        for batches in self._batches.values():
            batches.clear()

    def _record(self, name: str, value: object) -> None:
        features = find_features(value, name)
        self._batches[name].append(features.detach() if self._detach else features)


@contextmanager
def collect(
    network: nn.Module,
    at: Selector | Iterable[Selector] | None = None,
    *,
    where: Where = "after",
    detach: bool = True,
) -> Iterator[Collector]:
    """Collect features of a network from the forward passes inside a `with` block.

    Args:
        network: Any module. For a `NormalizedModel`, names are those of its network, and what is
            collected at a normalised module is its normalised output.
        at: Modules, as in `normalize`. None collects the input of the last linear layer.
        where: "after" collects what a module returns, "before" what it receives.
        detach: False keeps the graph of the features, for losses on them.

    Example:
        >>> import torch
        >>> from deconfound.attach import collect
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        >>> with collect(network, "0") as collector:
        ...     for batch in torch.randn(10, 3).split(4):
        ...         logits = network(batch)
        >>> collector.features().shape
        torch.Size([10, 8])
    """
    if where not in ("after", "before"):
        raise OptionError(f"where must be 'after' or 'before'; got {where!r}.")
    plain = network.network if isinstance(network, NormalizedModel) else network
    if at is None:
        at, where = _last_linear(plain), "before"
    modules: Mapping[str, nn.Module] = select_modules(plain, at)
    collector = Collector(modules, detach)
    with watching(modules, where, collector._record):
        yield collector


def _last_linear(network: nn.Module) -> str:
    modules = network.named_modules()
    names: list[str] = [name for name, part in modules if name and isinstance(part, nn.Linear)]
    if not names:
        raise OptionError("at=None needs a network with a linear layer; got none. Name a module.")
    return names[-1]
