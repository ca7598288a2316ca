"""Which files of the library and the lab some modules depend on, by the imports that are written in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import deconfound
import deconfound_lab

_OURS = {package.__name__: Path(str(package.__file__)).parent for package in (deconfound, deconfound_lab)}
# The harness runs and shows what is computed; a method of the lab's own is named in its cells and changes no others.
_LEFT_OUT = (f"{deconfound_lab.__name__}.harness.", f"{deconfound_lab.__name__}.authors")


def files_behind(modules: Iterable[str]) -> list[Path]:
    """The files of some modules and of all that they import, directly or through others, in order.

    A name that a package only passes on leads to the file that defines it, so a package whose names are imported when
    they are first used does not drag in its other files.

    Args:
        modules: Of the lab, such as "mri.training"; a package stands for all of its files.
    """
    found: set[str] = set()
    new = {each for module in modules for each in _whole(f"{deconfound_lab.__name__}.{module}")}
    while new:
        found |= new
        needed = {each for module in new for each in _imported(module)} - found
        new = {each for each in needed if not each.startswith(_LEFT_OUT)}
    return sorted(_file(module) for module in found)


def _file(module: str) -> Path:
    """Where a module of ours is, or would be."""
    package, *rest = module.split(".")
    place = _OURS[package].joinpath(*rest)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _whole(module: str) -> Iterator[str]:
    """A module, or all modules of a package."""
    file = _file(module)
    if file.name != "__init__.py":
        yield module
        return
    for path in file.parent.rglob("*.py"):
        inside = path.relative_to(file.parent).with_suffix("").parts
        yield ".".join((module, *(part for part in inside if part != "__init__")))


@cache
def _imported(module: str) -> frozenset[str]:
    """The modules of ours that a module imports when it runs, wherever in it."""
    tree = _tree(module)
    only_for_types = {id(inner) for node in ast.walk(tree) if _checks_types(node) for inner in ast.walk(node)}
    found: set[str] = set()
    ours: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in only_for_types:
            continue
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            found |= {_home(str(node.module), name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            ours |= {name.asname or name.name for name in node.names if name.name == deconfound.__name__}
        elif isinstance(node, ast.Name) and node.id == "import_module" and _file(module).name == "__init__.py":
            found |= set(_whole(module))  # files that are found by name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            found.add(_home(deconfound.__name__, node.attr))
    return frozenset(found)


def _home(package: str, name: str) -> str:
    """The module that is, or that defines, a name of a module or package."""
    if _file(f"{package}.{name}").exists():
        return f"{package}.{name}"
    if _file(package).name == "__init__.py":
        for node in ast.walk(_tree(package)):
            if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return _home(str(node.module), alias.name)
    return package


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in _OURS


def _checks_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
