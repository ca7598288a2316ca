"""Triton's language, or nothing in its place where Triton is not installed."""
# mypy: ignore-errors

from types import SimpleNamespace

try:
    import triton
    import triton.language as tl

    jit = triton.jit
    VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
except ImportError:  # modules still import; `deconfound.layers.pmdn.kernels.usable` keeps them from being called
    tl = SimpleNamespace(constexpr=lambda value: value)
    VERSION = (0, 0)

    def jit(function):
        """Leave the function as it is."""
        return function
