"""`normalize`: attach metadata layers to a network; every check comes before the first change."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Literal, overload

from torch import nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError, did_you_mean
from deconfound.layers import MDN, PMDN, RMDN, AlternatingPMDN, Erase, JointPMDN, MetadataLayer
from deconfound.layers.alternating import PenaltyLayer
from deconfound.surgery.insertion import Insertion
from deconfound.surgery.model import NormalizedModel
from deconfound.surgery.norms import layer_norm_for
from deconfound.surgery.outputs import sequence_axis
from deconfound.surgery.plan import Observed, Place, Plan, observe, place, refuse_lazy
from deconfound.surgery.select import Selector, select

LAYERS: dict[str, type[MetadataLayer]] = {
    "mdn": MDN,
    "pmdn": PMDN,
    "rmdn": RMDN,
    "erase": Erase,
    "pmdn-alternating": AlternatingPMDN,
    "pmdn-joint": JointPMDN,
}


@overload
def normalize(
    network: nn.Module,
    design: Design,
    at: Selector | Iterable[Selector] | None = None,
    layer: str = "pmdn",
    *,
    example: Any = None,
    where: Literal["after", "before"] = "after",
    share: Literal["auto", "positions"] | None = "auto",
    layer_norm: bool | Selector | Iterable[Selector] = False,
    dry_run: Literal[False] = False,
    **options: Any,
) -> NormalizedModel: ...


@overload
def normalize(
    network: nn.Module, design: Design, at: Any = None, layer: str = "pmdn", *, dry_run: Literal[True], **options: Any
) -> Plan: ...


def normalize(
    network: nn.Module,
    design: Design,
    at: Selector | Iterable[Selector] | None = None,
    layer: str = "pmdn",
    *,
    example: Any = None,
    where: Literal["after", "before"] = "after",
    share: Literal["auto", "positions"] | None = "auto",
    layer_norm: bool | Selector | Iterable[Selector] = False,
    dry_run: bool = False,
    **options: Any,
) -> NormalizedModel | Plan:
    """Attach confounder-removing layers to a network.

    Args:
        network: Any module. Its code is not edited; `model.remove()` gives it back.
        design: A fitted design.
        at: Where: module names, globs (`"layer4.*"`), module types, predicates of path and module, or a list of
            these. None picks every linear layer with flat features `(n, d)`, the network's fully connected head
            with its output, and needs `example`; a network without one takes its last convolution.
        layer: "pmdn", "mdn", "rmdn", "erase", "pmdn-alternating" or "pmdn-joint".
        example: One batch of inputs (a tensor, a tuple of positional or a mapping of keyword arguments), run
            once in eval mode to find the feature shapes. Without it they are found at the first forward, which
            layers with parameters cannot wait for.
        where: "after" a module normalises its output, "before" its first input. Of an output that is a tuple, a mapping
            or a dataclass the first tensor is normalised, and the plan says which: for an `nn.LSTM` the outputs at
            every position, not the last state.
        share: "auto" shares coefficients over the positions of sequences, whose length may vary, and gives all
            other features their own. "positions" shares always, None never.
        layer_norm: True puts a LayerNorm before each layer, as the paper does; selectors as in `at` put one after each
            module that they name, and before the layer where there is one. It divides each sample by its own norm,
            which mixes label and confound in a way that a linear layer cannot undo: see `docs/concepts/theory.md`. A
            single feature, such as a lone logit, gets none: LayerNorm would make it a constant.
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
    if not isinstance(network, nn.Module):
        raise OptionError(f"network must be a torch module; got {type(network).__name__}.")
    if not isinstance(design, Design):
        raise OptionError(f"design must be a fitted Design; got {type(design).__name__}.")
    kind = _kind(layer, design, options)
    if where not in ("after", "before"):
        raise OptionError(f"where must be 'after' or 'before'; got {where!r}.")
    if share not in ("auto", "positions", None):
        raise OptionError(f"share must be 'auto', 'positions' or None; got {share!r}.")
    refuse_lazy(network)
    _refuse_normalised(network)
    needs_shapes = layer_norm is not False or issubclass(kind, PenaltyLayer) or at is None
    if example is None and needs_shapes:
        norms = "layer_norm=True" if layer_norm is True else "layer_norm"
        reason = "at=None" if at is None else norms if layer_norm is not False else f"layer={layer!r}"
        raise OptionError(f"example must be given with {reason}; got None. Pass one batch of the network's inputs.")
    modules = _candidates(network) if at is None else select(network, at)
    seen = None if example is None else observe(network, modules, example, where)
    if at is None:
        assert seen is not None
        modules = _sensible(modules, seen, kind.least_features(design))
    places = _places(network, modules, where, share, seen)
    _refuse_narrow(places, layer, kind.least_features(design))
    norm_places = _norm_places(network, places, layer_norm, share, example)
    plan = Plan(places, design, layer, norm_places, kind.coefficient_rows(design))
    return plan if dry_run else NormalizedModel(network, plan, kind, options)


def _norm_places(
    network: nn.Module,
    places: tuple[Place, ...],
    layer_norm: bool | Selector | Iterable[Selector],
    share: str | None,
    example: Any,
) -> tuple[Place, ...]:
    """Where LayerNorm goes; a single feature takes none."""
    if isinstance(layer_norm, bool):
        found = places if layer_norm else ()
    else:
        modules = select(network, layer_norm, "layer_norm")
        found = _places(network, modules, "after", share, observe(network, modules, example, "after"))
    return tuple(place for place in found if layer_norm_for(place) is not None)


def _kind(layer: str, design: Design, options: dict[str, Any]) -> type[MetadataLayer]:
    """The layer's class, after one has been made with these options to see that they are right."""
    if layer not in LAYERS:
        raise OptionError(f"layer must be one of {', '.join(map(repr, LAYERS))}; got {layer!r}.")
    kind = LAYERS[layer]
    known = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in ("share", "channel_axis")
    ]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, [*known, "example", "where", "share", "layer_norm", "dry_run"])
            raise OptionError(
                f"options of layer={layer!r} must be among {', '.join(known) or 'none'}; got {name!r}.{hint}"
            )
    kind(design, 1, **options)
    return kind


def _refuse_normalised(network: nn.Module) -> None:
    for path, module in network.named_modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(isinstance(hook, Insertion) for hook in hooks):
            raise OptionError(
                f"network must be plain; got one with a layer at {path!r} already. Name all places in one call, or "
                "call remove() on the model that holds it."
            )


def _places(
    network: nn.Module,
    modules: dict[str, nn.Module],
    where: str,
    share: str | None,
    seen: dict[str, list[Observed]] | None,
) -> tuple[Place, ...]:
    places, faults = [], []
    for path, module in modules.items():
        calls = None if seen is None else seen[path]
        try:
            places.append(place(path, module, where, share, sequence_axis(network, path), calls))
        except DeconfoundError as fault:
            faults.append(str(fault))
    if faults:
        raise OptionError("\n".join(faults))
    return tuple(places)


def _candidates(network: nn.Module) -> dict[str, nn.Module]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {path: module for path, module in network.named_modules() if path and isinstance(module, kinds)}


def _refuse_narrow(places: tuple[Place, ...], layer: str, least: int) -> None:
    """A layer that takes directions away must leave some."""
    narrow = [place for place in places if place.feature_shape is not None and place.features < least]
    if narrow:
        got = ", ".join(f"{place.features} at {place.path!r}" for place in narrow)
        raise OptionError(
            f"features must be at least {least} for layer={layer!r}, which takes {least - 1} directions away; got "
            f"{got}. Leave these places out, choose wider ones, or name fewer confounds."
        )


def _sensible(modules: dict[str, nn.Module], seen: dict[str, list[Observed]], least: int) -> dict[str, nn.Module]:
    """The fully connected head: linear layers that are called once with flat features; else the last convolution."""
    called = {
        path: module
        for path, module in modules.items()
        if len(seen[path]) == 1 and seen[path][0].features[0].numel() >= least
    }
    flat: dict[str, nn.Module] = {
        path: module
        for path, module in called.items()
        if isinstance(module, nn.Linear) and seen[path][0].features.ndim == 2
    }
    convolutions = [path for path, module in called.items() if not isinstance(module, nn.Linear)]
    if flat:
        return flat
    if convolutions:
        return {convolutions[-1]: modules[convolutions[-1]]}
    raise OptionError("at=None must find linear layers with flat features or a convolution; got neither. Name modules.")
