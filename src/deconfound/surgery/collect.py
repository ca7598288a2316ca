"""The one collector of features: what named modules return, or are given, while a network runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor, nn

from deconfound.errors import DeconfoundError, OptionError
from deconfound.surgery.outputs import features_of, is_sequence, sequence_axis
from deconfound.surgery.select import Selector, select


@contextmanager
def watching(
    modules: Mapping[str, nn.Module], where: str, look: Callable[[str, nn.Module, object], None]
) -> Iterator[None]:
    """Show `look` each module's output, or with where="before" its inputs; the hooks never outlive the block."""
    handles = []
    try:
        for path, module in modules.items():
            if where == "after":
                hook = lambda module, inputs, output, path=path: look(path, module, output)  # noqa: E731
                handles.append(module.register_forward_hook(hook))
            else:
                before = lambda module, inputs, path=path: look(path, module, inputs)  # noqa: E731
                handles.append(module.register_forward_pre_hook(before))
        yield
    finally:
        for handle in handles:
            handle.remove()


def last_linear(network: nn.Module) -> str | None:
    """The name of the last linear layer, whose input is what the network has made of a sample; None without one."""
    found = [path for path, module in network.named_modules() if path and isinstance(module, nn.Linear)]
    return found[-1] if found else None


class Collector:
    """Features collected by `collect`, by module name; batches are concatenated."""

    def __init__(
        self,
        network: nn.Module,
        modules: dict[str, nn.Module],
        where: Literal["after", "before"],
        *,
        detach: bool,
        device: torch.device | str | None,
        flat: bool,
    ) -> None:
        self.paths = tuple(modules)
        self._axes = {path: sequence_axis(network, path) for path in modules}
        self._where = where
        self._detach = detach
        self._device = device
        self._flat = flat
        self._seen: dict[str, list[Tensor]] = {path: [] for path in modules}
        self._hooks = watching(modules, where, self._look)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def features(self, path: str | None = None) -> Tensor:
        """The features of all forwards since the last `take`, `(n, …)`.

        Args:
            path: The module; may be left out where one module is collected.
        """
        if path is None and len(self.paths) == 1:
            path = self.paths[0]
        if path not in self._seen:
            raise OptionError(f"path must be one of {', '.join(self.paths)}; got {path!r}.")
        if not self._seen[path]:
            raise DeconfoundError(
                f"features of {path!r} must be collected by a forward inside the block; got none. Call the network."
            )
        parts = self._seen[path]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def take(self, path: str | None = None) -> Tensor:
        """`features`, and begin anew: for use batch by batch."""
        taken = self.features(path)
        self._seen[path or self.paths[0]] = []
        return taken

    def _look(self, path: str, module: nn.Module, value: object) -> None:
        features = features_of(value, path, self._where)
        if self._axes[path] and is_sequence(module, features):
            features = features.movedim(self._axes[path], 0)
        if self._detach:
            features = features.detach()
        if self._flat:
            features = features.flatten(1)
        self._seen[path].append(features if self._device is None else features.to(self._device))


def collect(
    network: nn.Module,
    at: Selector | Iterable[Selector] | None = None,
    *,
    where: Literal["after", "before"] = "after",
    detach: bool = True,
    device: torch.device | str | None = None,
    flat: bool = False,
) -> Collector:
    """Collect the features of some modules from the forwards inside a `with` block.

    A module that holds the network as `network`, such as a `NormalizedModel`, may be given instead: names are the
    network's own. What is collected after a normalised module is its normalised output.

    Args:
        network: Any module; the hooks are gone when the block ends, however it ends.
        at: As in `normalize`. None collects the *input* of the last linear layer, whatever `where` says.
        where: "after" collects what a module returns, "before" what it is given.
        detach: Whether features leave their graph.
        device: Where they are put, "cpu" say; None leaves them.
        flat: Whether each sample becomes one row, `(n, d)`.

    Example:
        >>> import torch
        >>> from deconfound.surgery import collect
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> with collect(network, "0") as collected:
        ...     for batch in torch.randn(10, 3).split(4):
        ...         _ = network(batch)
        >>> collected.features().shape
        torch.Size([10, 8])
    """
    if where not in ("after", "before"):
        raise OptionError(f"where must be 'after' or 'before'; got {where!r}.")
    inner = getattr(network, "network", None)
    plain = inner if isinstance(inner, nn.Module) else network
    if at is None:
        at, where = last_linear(plain), "before"
        if at is None:
            raise OptionError("at=None must find a linear layer; got a network without one. Name modules.")
    return Collector(plain, select(plain, at), where, detach=detach, device=device, flat=flat)
