"""The methods `mdn`, `rmdn` and `pmdn`: layers that remove confounds, inside the network."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

from deconfound.attach import NormalizedModel, normalize
from deconfound.layers import MDN, PMDN, RMDN, MetadataLayer
from deconfound.methods.base import Batch, Batches, Criterion, Method, Setting, default_modules

# The options of `normalize` that users of a method choose; the setting has the others.
SHARED_OPTIONS = ("per", "where", "channel_axis")


def signature_with(layer: type[MetadataLayer]) -> inspect.Signature:
    """Return the signature of a layered method, with the options of its layer by name."""
    needed = inspect.signature(Method).parameters.values()
    normalize_options = inspect.signature(normalize).parameters
    shared = [normalize_options[name] for name in SHARED_OPTIONS]
    own = [*inspect.signature(layer).parameters.values()][2:]  # after design and shape
    return inspect.Signature([*needed, *shared, *own])


class LayeredMethod(Method):
    """A network with layers of one kind.

    The layers learn β in each training forward pass, under the batch's `layer_weight`. Held-out
    rows refit it, because β of the training follows a network that moves.

    Args:
        network: Any module that maps `(n, …)` to logits. The layers are hooks at its modules.
        setting: The problem. `at` says after which modules the layers stand.
        **options: `per`, `where` and `channel_axis` of `deconfound.normalize`, and the options of
            the layer.

    Attributes:
        network: The network with its layers, a `NormalizedModel`.
        layer: The kind of layer, as in `deconfound.normalize`.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.methods import Batch, Setting, make_method
        >>> features, target, people = dc.example("heart")
        >>> design = dc.Design(["age", "hospital"], keep=["ill"]).fit(people)
        >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        >>> method = make_method("pmdn", network, Setting(design, features[:2], at="0"))
        >>> held_out = Batch(features, torch.from_numpy(design.encode(people)), target)
        >>> with method.refitted(lambda: [held_out]):  # as a validation does
        ...     logits = method.eval()(held_out.x, held_out.metadata)
    """

    needs_confounds = True
    network: NormalizedModel
    layer: ClassVar[str]

    def __init__(self, network: nn.Module, setting: Setting, **options: Any) -> None:
        at = default_modules(network) if setting.at is None else setting.at
        model = normalize(network, setting.design, at, setting.example, layer=self.layer, **options)
        super().__init__(model, setting)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return logits `(n, outputs)` from features without the confounds."""
        logits: Tensor = self.network(x, metadata=metadata)
        return logits

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss of a training batch, from which the layers learn as well."""
        logits = self.network(batch.x, metadata=batch.metadata, weight=batch.layer_weight)
        return criterion(logits, batch)

    def refit(self, batches: Batches) -> None:
        """Fit β to held-out rows, as `NormalizedModel.refit` does.

        Rows of `layer_weight` 0 are left out. If no row has weight, β stays.
        """
        if has_weight(batches):
            self.network.refit(lambda: rows_with_weight(batches))

    @contextmanager
    def refitted(self, batches: Batches) -> Iterator[None]:
        """Refit β inside this context, and put the β of the training back afterwards."""
        if not has_weight(batches):
            yield
            return
        with self.network.refitted(lambda: rows_with_weight(batches)):
            yield


class MDNMethod(LayeredMethod):
    """Layers that fit the confounds by least squares on each batch: `deconfound.MDN`."""

    layer = "mdn"
    __signature__ = signature_with(MDN)


class RMDNMethod(LayeredMethod):
    """Layers that fit the confounds by recursive least squares: `deconfound.RMDN`."""

    layer = "rmdn"
    __signature__ = signature_with(RMDN)


class PMDNMethod(LayeredMethod):
    """Layers that learn the confounds' effects while the network trains: `deconfound.PMDN`."""

    layer = "pmdn"
    __signature__ = signature_with(PMDN)


def has_weight(batches: Batches) -> bool:
    """Return True if some row counts when confounds are fitted."""
    return next(rows_with_weight(batches), None) is not None


def rows_with_weight(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Iterate over inputs, metadata and weights of the rows that count; batches may lack them."""
    for batch in batches():
        if batch.layer_weight is None:
            yield batch.x, batch.metadata, None
            continue
        does_count = batch.layer_weight > 0
        if bool(does_count.any()):
            yield batch.x[does_count], batch.metadata[does_count], batch.layer_weight[does_count]
