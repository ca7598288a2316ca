"""A network with metadata layers attached, called with `metadata=`."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, ShapeError
from deconfound.layers import MetadataLayer, frozen_statistics
from deconfound.layers.alternating import PenaltyLayer
from deconfound.layers.checkpoint import FORMAT, read_state, warn_of_old_format, warn_of_other_design
from deconfound.layers.whitened import Metadata, as_tensor, as_weights, refuse_nan
from deconfound.renamed import RENAMED, no_attribute
from deconfound.surgery.adapt import Adaptation, adapt
from deconfound.surgery.carrier import Carrier, Pass
from deconfound.surgery.insertion import Insertion
from deconfound.surgery.norms import attach_all, hooks_for, layer_norm_for
from deconfound.surgery.order import BatchOrder
from deconfound.surgery.outputs import tensors_in
from deconfound.surgery.plan import Plan
from deconfound.surgery.refit import Batches, refit, refitted

_REQUIRED: Any = object()


class NormalizedModel(nn.Module):
    """A network with metadata layers attached by `normalize`; call it as before, and with `metadata=`.

    The network's code and parameters are untouched: the layers hang on its modules as forward hooks.
    `model.network` is the network, `model.layers` the inserted layers by path, with "/" for ".".
    """

    def __init__(self, network: nn.Module, plan: Plan, kind: type[MetadataLayer], options: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.plan = plan
        self.layers = nn.ModuleDict()
        self._norms = hooks_for(plan.norms, layer_norm_for)
        self.site_offsets = nn.ModuleDict()  # of a copy that `adapt` made for a new site
        self.layer_norms = nn.ModuleDict({hook.place.path.replace(".", "/"): hook.norm for hook in self._norms})
        self._carrier = Carrier()
        self._insertions: list[Insertion] = []
        self._removed = False
        self._order = BatchOrder()
        self.reports_skipped = True  # a training loop that reports them itself sets this to False
        self._reported = 0
        modules = dict(network.named_modules(remove_duplicate=False))
        for planned in plan.places:
            insertion = Insertion(planned, plan.design, kind, options, self._carrier)
            if planned.feature_shape is not None:
                self._adopt(planned.path, insertion.build())
            self._insertions.append(insertion)
        first = next((parameter for parameter in network.parameters() if parameter.is_floating_point()), None)
        if first is not None:
            self.layers.to(first.device, first.dtype)  # half precision is refused by the layers' statistics
            self.layer_norms.to(first.device, first.dtype)
        attach_all(network, self._norms)  # where both stand at one place, LayerNorm comes first
        for insertion in self._insertions:  # nothing above touches the network
            insertion.attach(modules[insertion.place.path])

    def forward(
        self,
        *inputs: Any,
        metadata: Metadata | None = _REQUIRED,
        fit_on: Any = None,
        weight: Any = None,
        **keywords: Any,
    ) -> Any:
        """Run the network and normalise on the way.

        Args:
            *inputs: The network's own arguments.
            metadata: What `design.encode` returns for the rows of this batch. `None` is allowed in eval and
                means the population mean. Layers that read no confounds in eval (`erase`) need none there.
            fit_on: One boolean per row: which rows β is learned from. All rows are normalised.
            weight: One number of 0 or more per row: how many samples it counts for when β is learned.
            **keywords: The network's own keyword arguments.
        """
        if (
            metadata is _REQUIRED
            and not self.training
            and not any(part.kind.reads_confounds for part in self._insertions)
        ):
            metadata = None
        if metadata is _REQUIRED:
            raise ShapeError(
                "metadata must be given; got none. Write model(inputs, metadata=design.encode(rows)), or "
                "metadata=None in eval for the population mean."
            )
        if self._removed:
            raise DeconfoundError(
                "a model must have its layers to be called; got one after remove(). Call the network itself, or "
                "normalize it again."
            )
        current = self._pass(metadata, fit_on, weight)
        if self.training and not current.traced:
            given = tensors_in((*inputs, *keywords.values()))
            current.inputs_want_gradients = any(tensor.requires_grad for tensor in given)
        output = self._carrier.carry(current, lambda: self.network(*inputs, **keywords))
        if not current.traced:
            self._adopt_new()
            if self.training and current.may_be_recomputed:
                for tensor in tensors_in(output):
                    self._carrier.keep_for_backward(current, tensor)
        return output

    @property
    def design(self) -> Design:
        """The design of the inserted layers; after loading a checkpoint, the checkpoint's."""
        built = next((insertion.layer for insertion in self._insertions if insertion.layer is not None), None)
        return self.plan.design if built is None else built.design

    def coefficients(self) -> dict[str, dict[str, Tensor]]:
        """β by path and confound column, in the user's own units."""
        built = ((insertion.place.path, insertion.layer) for insertion in self._insertions)
        return {path: layer.coefficients() for path, layer in built if layer is not None}

    def penalty(self) -> Tensor:
        """The sum of the layers' penalties after a training forward, for layers whose β are parameters."""
        layers = [layer for layer in self.layers.values() if isinstance(layer, PenaltyLayer)]
        if not layers:
            raise OptionError(
                f"penalty must come from layers with trainable β; got layer={self.plan.layer!r}, which learns β by "
                "itself. Use layer='pmdn-alternating' or 'pmdn-joint'."
            )
        return torch.stack([layer.penalty for layer in layers]).sum()

    def skipped(self) -> dict[str, int]:
        """How many training batches taught each layer nothing, by path: features or metadata were not finite."""
        built = ((insertion.place.path, insertion.layer) for insertion in self._insertions)
        return {path: int(layer.skipped) for path, layer in built if layer is not None}

    def train(self, mode: bool = True) -> Self:
        """Switch between training and eval; where training ends with skipped batches, a warning says so."""
        if self.training and not mode and self.reports_skipped:
            self._report_skipped()
        return super().train(mode)

    def _report_skipped(self) -> None:
        counts = self.skipped()
        most = max(counts.values(), default=0)
        if most > self._reported:
            paths = ", ".join(f"{path!r} ({count})" for path, count in counts.items() if count)
            warnings.warn(
                f"Training batches were skipped by the layers at {paths}: features or metadata (a NaN label, say) were "
                "not finite, and the coefficients learned nothing from them.",
                DeconfoundWarning,
                stacklevel=3,
            )
        self._reported = most

    def frozen_statistics(self) -> AbstractContextManager[None]:
        """A context in which training-mode forwards change nothing that the layers have learned."""
        if len(self.layers) < len(self._insertions):
            raise DeconfoundError(
                "layers must exist before they are frozen; got some that wait for their first forward. Pass example= "
                "to normalize, or call the model once before."
            )
        return frozen_statistics(self)

    def refit(self, batches: Batches, prior: float | None = None) -> None:
        """Fit β to rows that the network is not trained on: call it before validating, and once after training.

        β learned in training follows a network that moves, on rows that it may have memorised; held-out rows show what
        the network does to new people. The network itself is not changed. Each layer refits on features from which
        those before it have already removed their part: one pass over the rows per layer, or one in all for a single
        batch.

        Args:
            batches: Pairs of inputs (a tensor, a tuple of positional or a mapping of keyword arguments) and
                metadata with the keep columns, and as a third part, if rows have them, weights; a list, a loader, or a
                function that returns an iterator.
            prior: For how many rows the β of training counts. None is 100 for each direction of the confounds, so
                that few rows or many confounds move β little.

        Example:
            >>> import torch, deconfound as dc
            >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
            >>> design = dc.Design(confounds=["age"]).fit(table)
            >>> network = torch.nn.Sequential(torch.nn.Linear(1, 1))
            >>> model = dc.normalize(network, design, at="0", example=torch.zeros(1, 1))
            >>> held_out = torch.tensor(table["age"])[:, None]
            >>> model.refit([(held_out, design.encode(table))], prior=0)
            >>> model.eval()(held_out, metadata=design.encode(table)).std().item() < 1e-4
            True
        """
        refit(self, batches, prior)

    def refitted(self, batches: Batches, prior: float | None = None) -> AbstractContextManager[None]:
        """A context in which the layers are refitted as by `refit`, and after which training goes on as before."""
        return refitted(self, batches, prior)

    def adapt(self, batches: Batches, prevalence: tuple[float, float] = (0.05, 0.95)) -> Adaptation:
        """A copy of this model for the rows of a new site, whose offset is estimated from rows that need no labels.

        Offset and prevalence are not both identifiable. Rows with known labels (controls, say), if there are ten or
        more, are used alone. Without them the offset is reported for every prevalence of the range, and the copy takes
        off only what none of them explains. This model is not changed.

        Args:
            batches: Pairs of inputs and metadata of the new site's rows, as for `refit`, encoded by a design with
                `unseen="mean"`; labels NaN where they are not known.
            prevalence: The range of each label's share at the new site.

        Example:
            >>> import torch, deconfound as dc
            >>> table = {"site": ["A", "B"] * 20, "dx": [0, 0, 1, 1] * 10}
            >>> design = dc.Design(confounds=["site"], keep=["dx"], unseen="mean").fit(table)
            >>> network = torch.nn.Sequential(torch.nn.Identity())
            >>> model = dc.normalize(network, design, at="0", example=torch.zeros(1, 1))
            >>> known = torch.tensor(table["dx"])[:, None].float() + torch.randn(40, 1) / 10
            >>> model.refit([(known, design.encode(table))], prior=0)
            >>> controls = {"site": ["C"] * 10, "dx": [0] * 10}
            >>> new = torch.randn(10, 1) / 10 + 3.0
            >>> found = model.adapt([(new, design.encode(controls))])
            >>> round(found.offsets["0"].subtracted.item())
            3
        """
        return adapt(self, batches, prevalence)

    def remove(self) -> nn.Module:
        """Take the layers out again and return the network, bit for bit as it was plus its own training."""
        for insertion in self._insertions:
            insertion.detach()
        for norm in self._norms:
            norm.detach()
        self._removed = True
        return self.network

    def __getattr__(self, name: str) -> Any:
        if f"deconfound.NormalizedModel.{name}" in RENAMED:
            raise no_attribute("deconfound.NormalizedModel", name)
        return super().__getattr__(name)

    def _pass(self, metadata: Metadata | None, fit_on: Any, weight: Any) -> Pass:
        if metadata is None:
            if self.training:
                raise ShapeError("metadata must be given in training; got None. Write metadata=design.encode(rows).")
            return Pass(None, None, training=False)
        n = metadata.shape[0] if getattr(metadata, "ndim", 0) else 0
        tensor = as_tensor(metadata, self.design, n)
        refuse_nan(tensor, self.design, self.training)
        if self.training and not torch.compiler.is_compiling():
            self._order.see(tensor)
        return Pass(tensor, as_weights(weight, fit_on, n, tensor.device), self.training)

    def _adopt(self, path: str, layer: MetadataLayer) -> None:
        self.layers[path.replace(".", "/")] = layer

    def _adopt_new(self) -> None:
        """After the first forward: take over the layers that it built, and refuse places that it never reached."""
        if len(self.layers) == len(self._insertions):
            return
        for insertion in self._insertions:
            if insertion.layer is None:
                raise OptionError(
                    f"module {insertion.place.path!r} must be called by the network's forward; got no call of "
                    f"{insertion.place.module}. Call model.remove() and choose another module."
                )
            self._adopt(insertion.place.path, insertion.layer)
        self.plan = replace(self.plan, places=tuple(insertion.place for insertion in self._insertions))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Build layers that wait for their first forward from the shapes of a checkpoint."""
        first = next((parameter for parameter in self.network.parameters() if parameter.is_floating_point()), None)
        own, loaded, old = self.design, None, False
        for insertion in self._insertions:
            key = f"{prefix}layers.{insertion.place.path.replace('.', '/')}._extra_state"
            if insertion.layer is None and key in state_dict:
                layer = insertion.build_from(state_dict[key]).train(self.training)
                layer = layer if first is None else layer.to(first.device, first.dtype)
                self._adopt(insertion.place.path, layer)
            if insertion.layer is not None and key in state_dict:
                loaded = read_state(state_dict[key])
                old = old or loaded.format < FORMAT
                insertion.layer.reports_old_format = False
        if old:  # once for all layers
            warn_of_old_format()
        if loaded is not None:
            warn_of_other_design(own, loaded.design)
        self.plan = replace(self.plan, places=tuple(insertion.place for insertion in self._insertions))
        super()._load_from_state_dict(state_dict, prefix, *rest)
