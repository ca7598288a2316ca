"""`normalize`: put layers into a network. Every check comes before the first change."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from deconfound.attach.insertion import has_insertion
from deconfound.attach.model import NormalizedModel
from deconfound.attach.plan import Per, Plan, Where, find_points
from deconfound.attach.select import Selector, select_modules
from deconfound.design import Design
from deconfound.errors import OptionError, StateError, nearest_names
from deconfound.layers import MDN, PMDN, RMDN, AlternatingPMDN, MetadataLayer

LAYERS: dict[str, type[MetadataLayer]] = {
    "mdn": MDN,
    "pmdn": PMDN,
    "rmdn": RMDN,
    "pmdn-alternating": AlternatingPMDN,
}


def normalize(  # noqa: PLR0913
    network: nn.Module,
    design: Design,
    at: Selector | Iterable[Selector],
    example: Any,
    *,
    layer: str = "pmdn",
    per: Per = "channel",
    where: Where = "after",
    channel_axis: int | None = None,
    show: bool = False,
    **options: Any,
) -> NormalizedModel:
    """Put layers that remove confounds into a network.

    The network's code is not changed: the layers are forward hooks, and `model.remove()` takes them
    out again. Call the model as you called the network, with `metadata=design.encode(rows)`.

    Args:
        network: Any module.
        design: A fitted design.
        at: Where the layers go: module names, globs such as `"layer4.*"`, module types, or a list
            of these. The network's fully connected layers are a good start.
        example: One batch of inputs, two rows are enough: a tensor, a tuple of inputs, or a dict of
            keyword inputs. The network runs on it once, to find the shapes of the features.
        layer: "pmdn", "mdn", "rmdn" or "pmdn-alternating".
        per: "channel" fits one coefficient for each channel of an image or a sequence, to its mean
            over all positions, which allows other sizes later. "feature" fits one for each pixel or
            position, as the paper does, for networks that read a single position. Flat features
            have one each.
        where: "after" a module normalises its output, "before" its input. If the output is a tuple,
            a mapping or a dataclass, its first tensor alone is normalised: of an `nn.LSTM` the
            outputs at all positions, and not the last states `h_n` and `c_n`. A network that reads
            these needs a layer before the module that uses them.
        channel_axis: The axis of the channels, if it cannot be inferred from the modules.
        show: Print the plan before anything is changed.
        **options: Options of the layer, such as `memory=` of `PMDN`.

    Returns:
        The model, which shares its parameters with `network`.

    Example:
        >>> import torch, deconfound as dc
        >>> features, target, people = dc.example("heart")
        >>> design = dc.Design(["age", "sex", "hospital"], keep=["ill"]).fit(people)
        >>> network = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        ... )
        >>> model = dc.normalize(network, design, at=["0", "2"], example=features[:2], show=True)
        module  type    features  coefficients  layer
        0       Linear  32        224           pmdn after
        2       Linear  1         7             pmdn after
        >>> model(features[:50], metadata=design.encode(people[:50])).shape
        torch.Size([50, 1])
    """
    intended = plan(
        network,
        design,
        at,
        example,
        layer=layer,
        per=per,
        where=where,
        channel_axis=channel_axis,
        **options,
    )
    if show:
        print(intended)
    layers = {
        point.name: LAYERS[layer](design, point.shape, **options).to(point.device, point.dtype)
        for point in intended.points
    }
    return NormalizedModel(network, design, intended, layers)


def plan(
    network: nn.Module,
    design: Design,
    at: Selector | Iterable[Selector],
    example: Any,
    *,
    layer: str = "pmdn",
    per: Per = "channel",
    where: Where = "after",
    channel_axis: int | None = None,
    **options: Any,
) -> Plan:
    """Return what `normalize` would do with the same arguments, and change nothing.

    Example:
        >>> import torch, deconfound as dc
        >>> design = dc.Design(["age"]).fit({"age": [61.5, 70.2, 78.9, 55.4]})
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 5), torch.nn.ReLU())
        >>> example = torch.zeros(2, 1, 28, 28)
        >>> print(dc.attach.plan(network, design, "0", example))
        module  type    features      coefficients  layer
        0       Conv2d  16 × 24 × 24  32            pmdn after
        >>> print(dc.attach.plan(network, design, "0", example, per="feature"))
        module  type    features      coefficients  layer
        0       Conv2d  16 × 24 × 24  18,432        pmdn after
    """
    _check_arguments(network, design, layer, per, where)
    _check_options(layer, options)
    modules = select_modules(network, at)
    points = find_points(network, modules, example, where=where, per=per, channel_axis=channel_axis)
    return Plan(layer, points, design.whitening.shape[1] + 1)


def _check_arguments(network: object, design: object, layer: str, per: str, where: str) -> None:
    faults = []
    if not isinstance(network, nn.Module):
        faults.append(f"network must be a torch module; got a {type(network).__name__}.")
    if not isinstance(design, Design):
        faults.append(f"design must be a fitted Design; got a {type(design).__name__}.")
    if layer not in LAYERS:
        faults.append(f"layer={layer!r} is unknown. {nearest_names(layer, LAYERS)}")
    if per not in ("channel", "feature"):
        faults.append(f"per must be 'channel' or 'feature'; got {per!r}.")
    if where not in ("after", "before"):
        faults.append(f"where must be 'after' or 'before'; got {where!r}.")
    if faults:
        raise OptionError("\n".join(faults))
    assert isinstance(network, nn.Module)
    if has_insertion(network):
        raise StateError(
            "The network has layers already. Call model.remove() first and normalize the network "
            "that it returns."
        )
    inputs = inspect.signature(network.forward).parameters
    reserved = [name for name in ("metadata", "weight") if name in inputs]
    if reserved:
        raise OptionError(
            f"The network has an input {reserved[0]!r}, but the model needs this name for itself. "
            "Rename it in the network's forward."
        )
    lazy = [name for name, parameter in network.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise StateError(
            f"The parameter {lazy[0]!r} is not initialised yet. Run the network once on a batch "
            "before you normalize it."
        )


def _check_options(layer: str, options: dict[str, Any]) -> None:
    # The constructor of the layer is the only list of its options.
    known = [*inspect.signature(LAYERS[layer]).parameters][2:]  # after design and shape
    faults = [
        f"{name}= is no option of layer {layer!r}. "
        + (nearest_names(name, known) if known else "It has no options.")
        for name in options
        if name not in known
    ]
    if faults:
        raise OptionError("\n".join(faults))
