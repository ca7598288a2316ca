"""A network with layers attached, which is called as before and with `metadata=`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.attach.current_batch import CurrentBatch
from deconfound.attach.features import all_tensors, nesting_encoders, set_nested_tensors
from deconfound.attach.insertion import Insertion
from deconfound.attach.plan import Plan
from deconfound.attach.refit import Batches, refit_layers, restored_on_error
from deconfound.attach.report import Report, measure_layers
from deconfound.design import Design
from deconfound.errors import OptionError, StateError
from deconfound.layers import (
    AlternatingPMDN,
    Metadata,
    MetadataLayer,
    WhitenedBatch,
    check_metadata,
    check_weight,
)


class NormalizedModel(nn.Module):
    """A network into which `normalize` has put layers that remove confounds.

    The network keeps its code and its parameters. In training mode each forward pass also learns
    the layers' coefficients; in evaluation mode they are constant and label columns are not read.

    Attributes:
        network: The network.
        layers: The layers by module name, with "/" in place of ".".
        plan: What was inserted where.
    """

    def __init__(
        self,
        network: nn.Module,
        design: Design,
        plan: Plan,
        layers: Mapping[str, MetadataLayer],
    ) -> None:
        super().__init__()
        self.network = network
        self.plan = plan
        self.layers = nn.ModuleDict({name.replace(".", "/"): part for name, part in layers.items()})
        # The network's parts keep their modes: a frozen BatchNorm stays in evaluation mode.
        self.training = network.training
        self.layers.train(network.training)
        self._encoders = nesting_encoders(network)
        set_nested_tensors(self._encoders, False)
        self._current = CurrentBatch()
        self._insertions = [
            Insertion(network.get_submodule(point.name), point, layers[point.name], self._current)
            for point in plan.points
        ]
        self._set_signature()

    def forward(
        self,
        *inputs: Any,
        metadata: Metadata | None = None,
        weight: Any = None,
        labels: Any = None,
        **keywords: Any,
    ) -> Any:
        """Run the network and remove the confounds on the way.

        Args:
            *inputs: The network's own inputs.
            metadata: `design.encode(rows)` for the rows of this batch.
            weight: How many samples each row counts for when β is learned, shape `(n,)`. Rows of
                weight 0 do not influence β, as for a fit on controls only. Read in training only.
            labels: Passed on to the network, if given. Hugging Face's Trainer looks for this name.
            **keywords: The network's own keyword inputs.
        """
        # A network without this input would not accept labels=None.
        if labels is not None:
            keywords["labels"] = labels
        first = self._first_layer()
        # The first layer compares the number of rows with its features, before any layer learns.
        checked = check_metadata(metadata, first.design, None, training=self.training)
        batch: WhitenedBatch | Tensor
        if self.training:
            weights = None if weight is None else check_weight(weight, checked.shape[0])
            batch = first.whitening.whiten(checked, weights)
        else:
            batch = first.whitening.whiten_confounds(checked)
        with self._current.hold(batch):
            output = self.network(*inputs, **keywords)
        # A compiled graph has no place for hooks on tensors, and repeats no part of itself.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            for tensor in all_tensors(output):
                if tensor.requires_grad:
                    self._current.remember_for_backward(tensor, batch)
        return output

    @property
    def design(self) -> Design:
        """The design of the layers; after loading a checkpoint, that of the checkpoint."""
        return self._first_layer().design

    def coefficients(self) -> dict[str, dict[str, Tensor]]:
        """Return β by module name and confound column, in the user's own units."""
        return {part.point.name: part.layer.coefficients() for part in self._insertions}

    def skipped(self) -> dict[str, int]:
        """Return from how many batches some feature of a layer learned nothing: not finite."""
        return {part.point.name: int(part.layer.skipped) for part in self._insertions}

    def penalty(self) -> Tensor:
        """Return the sum of the penalties L* of `AlternatingPMDN` layers."""
        layers = [part for part in self.layers.values() if isinstance(part, AlternatingPMDN)]
        if not layers:
            raise OptionError(
                f"Only layer='pmdn-alternating' has a penalty, and this model has layer="
                f"{self.plan.layer!r}, which learns β without an optimiser."
            )
        return torch.stack([layer.penalty for layer in layers]).sum()

    def refit(self, batches: Batches, prior: float | None = None) -> None:
        """Fit β to rows that the network was not trained on, with the network standing still.

        Call it before validating (see `refitted`) and once after training. β learned in training
        follows a network that moves, on rows that the network may have memorised.

        Args:
            batches: Held-out batches `(inputs, metadata)` or `(inputs, metadata, weight)`: a list,
                a loader, or a function that returns an iterator. They are read once per layer, or
                once in all if there is a single batch. Metadata need the label columns.
            prior: For how many rows the β of training counts. None is 100 for each direction of
                the confounds, so that few rows change β little; 0 fits to these rows alone, which
                needs many more rows than directions.

        Example:
            >>> import torch, deconfound as dc
            >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
            >>> design = dc.Design(["age"]).fit(table)
            >>> network = torch.nn.Sequential(torch.nn.Linear(1, 1))
            >>> ages = torch.tensor(table["age"])[:, None]
            >>> model = dc.normalize(network, design, at="0", example=ages)
            >>> model.refit([(ages, design.encode(table))], prior=0)
            >>> model.eval()(ages, metadata=design.encode(table)).std().item() < 1e-4
            True
        """
        self._first_layer()
        refit_layers(self.network, self._insertions, self._current, batches, prior)

    @contextmanager
    def refitted(self, batches: Batches, prior: float | None = None) -> Iterator[None]:
        """Refit β inside this context, and put the β of training back afterwards."""
        with restored_on_error(self._insertions) as restore:
            self.refit(batches, prior)
            yield
            restore()

    def report(self, batches: Batches) -> Report:
        """Measure what the layers remove: partial R² of each confound, before and after.

        One pass in evaluation mode. See `Report`.

        Args:
            batches: As for `refit`, preferably rows that the network was not trained on.

        Example:
            >>> import torch, deconfound as dc
            >>> features, target, people = dc.example("heart")
            >>> design = dc.Design(["age", "hospital"], keep=["ill"]).fit(people)
            >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8))
            >>> model = dc.normalize(network, design, at="0", example=features[:2])
            >>> batches = [(features, design.encode(people))]
            >>> model.refit(batches, prior=0)
            >>> report = model.report(batches)
            >>> [line.after < 1e-6 for line in report.lines]
            [True, True]
        """
        self._first_layer()
        return measure_layers(self.network, self._insertions, self._current, batches)

    def remove(self) -> nn.Module:
        """Take the layers out and return the network, which then runs as before, bit for bit."""
        for insertion in self._insertions:
            insertion.handle.remove()
        self._insertions = []
        set_nested_tensors(self._encoders, True)
        return self.network

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `forward` with its signature, which cannot be copied or pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "forward"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._set_signature()

    def _set_signature(self) -> None:
        """Give this model's `forward` the signature of the network's own, plus `metadata`.

        Hugging Face's Trainer drops each column of a dataset that the signature does not name, and
        `torch.export` takes the names of the inputs from it.
        """

        def forward(*inputs: Any, **keywords: Any) -> Any:
            return NormalizedModel.forward(self, *inputs, **keywords)

        signature = inspect.signature(self.network.forward)
        forward.__signature__ = _add_parameters(signature)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward

    def _first_layer(self) -> MetadataLayer:
        if not self._insertions:
            raise StateError(
                "The layers of this model were removed. Call the network itself, or normalize it "
                "again."
            )
        return self._insertions[0].layer


def _add_parameters(signature: inspect.Signature) -> inspect.Signature:
    """Add `metadata` and `weight` to the network's parameters."""
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in ("metadata", "weight")
    ]
    networks = [p for p in signature.parameters.values() if p.name not in ("metadata", "weight")]
    # **keywords must stay the last parameter.
    last = [p for p in networks if p.kind == p.VAR_KEYWORD]
    others = [p for p in networks if p.kind != p.VAR_KEYWORD]
    return signature.replace(parameters=[*others, *own, *last])
