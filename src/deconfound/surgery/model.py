"""`normalize`: a network with metadata layers attached, called with `metadata=`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import OptionError, ShapeError
from deconfound.layers import MDN, PMDN, RMDN, AlternatingPMDN, JointPMDN, MetadataLayer, frozen_statistics
from deconfound.layers.alternating import PenaltyLayer
from deconfound.layers.rows import Metadata, as_mask, as_tensor, refuse_nan
from deconfound.surgery.carrier import Carrier, Pass
from deconfound.surgery.insertion import Insertion
from deconfound.surgery.plan import Plan, observe, place, refuse_lazy
from deconfound.surgery.select import Selector, select

LAYERS: dict[str, type[MetadataLayer]] = {
    "mdn": MDN,
    "pmdn": PMDN,
    "rmdn": RMDN,
    "pmdn-alternating": AlternatingPMDN,
    "pmdn-joint": JointPMDN,
}
_REQUIRED: Any = object()


class NormalizedModel(nn.Module):
    """A network with metadata layers attached by `normalize`; call it as before, and with `metadata=`.

    The network's code and parameters are untouched: the layers hang on its modules as forward hooks.
    `model.network` is the network, `model.layers` the inserted layers by path.
    """

    def __init__(self, network: nn.Module, plan: Plan, layer_norm: bool, options: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.plan = plan
        self.layers = nn.ModuleDict()
        self.layer_norms = nn.ModuleDict()
        self._carrier = Carrier()
        self._insertions = []
        modules = dict(network.named_modules(remove_duplicate=False))
        for planned in plan.places:
            insertion = Insertion(planned, plan.design, LAYERS[plan.layer], options, layer_norm, self._carrier)
            if planned.feature_shape is not None:
                self._adopt(planned.path, insertion, insertion.build())
            self._insertions.append(insertion)
        for insertion in self._insertions:  # nothing above touches the network
            insertion.attach(modules[insertion.place.path])

    def forward(self, *inputs: Any, metadata: Metadata | None = _REQUIRED, fit_on: Any = None, **keywords: Any) -> Any:
        """Run the network and normalise on the way.

        Args:
            *inputs: The network's own arguments.
            metadata: What `design.encode` returns for the rows of this batch. `None` is allowed in eval and
                means the population mean.
            fit_on: One boolean per row: which rows β is learned from. All rows are normalised.
            **keywords: The network's own keyword arguments.
        """
        if metadata is _REQUIRED:
            raise ShapeError(
                "metadata must be given; got none. Write model(inputs, metadata=design.encode(rows)), or "
                "metadata=None in eval for the population mean."
            )
        current = self._pass(metadata, fit_on)
        with self._carrier.carry(current):
            output = self.network(*inputs, **keywords)
        if not torch.compiler.is_compiling():
            self._adopt_new(current)
        return output

    @property
    def design(self) -> Design:
        """The design of the inserted layers; after loading a checkpoint, the checkpoint's."""
        built = [insertion.layer for insertion in self._insertions if insertion.layer is not None]
        return built[0].design if built else self.plan.design

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

    def frozen_statistics(self) -> AbstractContextManager[None]:
        """A context in which training-mode forwards change nothing that the layers have learned."""
        return frozen_statistics(self)

    def remove(self) -> nn.Module:
        """Take the layers out again and return the network, bit for bit as it was plus its own training."""
        for insertion in self._insertions:
            insertion.detach()
        return self.network

    def _pass(self, metadata: Metadata | None, fit_on: Any) -> Pass:
        if metadata is None:
            if self.training:
                raise ShapeError("metadata must be given in training; got None. Write metadata=design.encode(rows).")
            return Pass(None, None)
        n = len(metadata) if hasattr(metadata, "__len__") else 0
        tensor = as_tensor(metadata, self.design, n)
        refuse_nan(tensor, self.design, self.training)
        return Pass(tensor, as_mask(fit_on, n, tensor.device) if self.training else None)

    def _adopt(self, path: str, insertion: Insertion, layer: MetadataLayer) -> None:
        key = path.replace(".", "/")
        self.layers[key] = layer
        if insertion.layer_norm is not None:
            self.layer_norms[key] = insertion.layer_norm

    def _adopt_new(self, current: Pass) -> None:
        """After the first forward: take over the layers that it built, and refuse places that it never reached."""
        if len(self.layers) == len(self._insertions):
            return
        for insertion in self._insertions:
            if insertion.layer is None:
                raise OptionError(
                    f"module {insertion.place.path!r} must be called by the network's forward; got no call of "
                    f"{insertion.place.module}. Call model.remove() and choose another module."
                )
            self._adopt(insertion.place.path, insertion, insertion.layer)
        self.plan = replace(self.plan, places=tuple(insertion.place for insertion in self._insertions))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Build layers that wait for their first forward from the shapes of a checkpoint."""
        for insertion in self._insertions:
            key = f"{prefix}layers.{insertion.place.path.replace('.', '/')}._extra_state"
            if insertion.layer is None and key in state_dict:
                self._adopt(insertion.place.path, insertion, insertion.build_from(state_dict[key]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def normalize(
    network: nn.Module,
    design: Design,
    at: Selector | Iterable[Selector] | None = None,
    layer: str = "pmdn",
    *,
    example: Any = None,
    where: Literal["after", "before"] = "after",
    share: Literal["auto", "positions"] | None = "auto",
    layer_norm: bool = False,
    dry_run: bool = False,
    **options: Any,
) -> Any:
    """Attach confounder-removing layers to a network.

    Args:
        network: Any module. Its code is not edited; `model.remove()` gives it back.
        design: A fitted design.
        at: Where: module names, globs (`"layer4.*"`), module types, predicates of path and module, or a list of
            these. None picks every linear layer with flat features `(n, d)`, the network's fully connected head
            with its output, and needs `example`; a network without one takes its last convolution.
        layer: "pmdn", "mdn", "rmdn", "pmdn-alternating" or "pmdn-joint".
        example: One batch of inputs (a tensor, a tuple of positional or a mapping of keyword arguments), run
            once in eval mode to find the feature shapes. Without it they are found at the first forward, which
            layers with parameters cannot wait for.
        where: "after" a module normalises its output, "before" its first input.
        share: "auto" shares coefficients over the positions of sequences, whose length may vary, and gives all
            other features their own. "positions" shares always, None never.
        layer_norm: Put a LayerNorm before each layer, as the paper does. It divides each sample by its own norm,
            which mixes label and confound in a way that a linear layer cannot undo: on the synthetic data
            .859 accuracy against the ceiling of .833, where no LayerNorm gives .833.
        dry_run: Return the plan, and change nothing.
        **options: The layer's own options.

    Returns:
        A `NormalizedModel`, or the `Plan` if `dry_run`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0], "sex": ["F", "M", "F", "M"], "dx": [0, 1, 1, 0]}
        >>> design = dc.Design(confounds=["age", "sex"], keep=["dx"]).fit(table)
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> print(dc.normalize(network, design, at=["0", "2"], example=torch.randn(4, 3), dry_run=True))
        path  module  features  coefficients  bytes  action
        0     Linear  8         32            128    insert pmdn after
        2     Linear  1         4             16     insert pmdn after
        >>> model = dc.normalize(network, design, at=["0", "2"])
        >>> model(torch.randn(4, 3), metadata=design.encode(table)).shape
        torch.Size([4, 1])
    """
    if layer not in LAYERS:
        raise OptionError(f"layer must be one of {', '.join(map(repr, LAYERS))}; got {layer!r}.")
    if where not in ("after", "before"):
        raise OptionError(f"where must be 'after' or 'before'; got {where!r}.")
    if share not in ("auto", "positions", None):
        raise OptionError(f"share must be 'auto', 'positions' or None; got {share!r}.")
    refuse_lazy(network)
    needs_shapes = layer_norm or issubclass(LAYERS[layer], PenaltyLayer) or at is None
    if example is None and needs_shapes:
        reason = "at=None" if at is None else "layer_norm=True" if layer_norm else f"layer={layer!r}"
        raise OptionError(f"example must be given with {reason}; got None. Pass one batch of the network's inputs.")
    modules = _candidates(network) if at is None else select(network, at)
    seen = None if example is None else observe(network, modules, example, where)
    if at is None:
        assert seen is not None
        modules = _sensible(modules, seen)
    places = tuple(
        place(path, module, where, share, None if seen is None else seen[path]) for path, module in modules.items()
    )
    plan = Plan(places, design, layer)
    return plan if dry_run else NormalizedModel(network, plan, layer_norm, options)


def _candidates(network: nn.Module) -> dict[str, nn.Module]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {path: module for path, module in network.named_modules() if path and isinstance(module, kinds)}


def _sensible(modules: dict[str, nn.Module], seen: dict[str, Any]) -> dict[str, nn.Module]:
    """The fully connected head: linear layers that are called once with flat features; else the last convolution."""
    called = {path: module for path, module in modules.items() if len(seen[path]) == 1}
    flat: dict[str, nn.Module] = {
        path: module for path, module in called.items() if isinstance(module, nn.Linear) and seen[path][0][0].ndim == 2
    }
    convolutions = [path for path, module in called.items() if not isinstance(module, nn.Linear)]
    if flat:
        return flat
    if convolutions:
        return {convolutions[-1]: modules[convolutions[-1]]}
    raise OptionError("at=None must find linear layers with flat features or a convolution; got neither. Name modules.")
