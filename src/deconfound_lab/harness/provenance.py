"""Where results come from, and whether the code that they depend on has changed since."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import deconfound
import deconfound_lab
from deconfound.training import provenance

OLDER = "made with older code"
"""What a page says where the digest of the code differs from the present one."""

# Rooms of the library that cannot change what a training gives, nor how it is measured.
_WITHOUT = ("cli", "sklearn", "auditing")


def origin(seed: int, data: str, modules: Iterable[str]) -> dict[str, Any]:
    """What one needs to know to make a result again, with the digest of the code it depends on."""
    return {**provenance(seed, data), "code": code_digest(tuple(modules))}


@cache
def code_digest(modules: tuple[str, ...]) -> str:
    """A digest of the library and of some modules of the lab (folders or files), without comments and docstrings."""
    library, lab = (Path(str(package.__file__)).parent for package in (deconfound, deconfound_lab))
    files = [path for path in sorted(library.rglob("*.py")) if path.relative_to(library).parts[0] not in _WITHOUT]
    for module in modules:
        place = lab / module
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.parent.name}/{path.name}\0{_without_words(path.read_text(encoding='utf-8'))}".encode())
    return digest.hexdigest()[:16]


def made_by(sources: Sequence[Mapping[str, Any]], counts: Sequence[str], modules: Iterable[str]) -> list[str]:
    """One line for each source, as `origin` gave it: what it made, version, commit, machine, packages, command.

    A source whose digest of the modules is not the present one is marked.
    """
    now = code_digest(tuple(modules))
    lines = []
    for source, count in zip(sources, counts, strict=True):
        packages = ", ".join(f"{name} {version}" for name, version in source["packages"].items())
        mark = "" if source.get("code") == now else f" ({OLDER})"
        lines.append(
            f"{count}: deconfound {source['deconfound']} (commit {source['commit']}) on {source['device']}, Python "
            f"{source['python']}, {packages}. Command: {source['command']}{mark}"
        )
    return lines


def distinct(sources: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each source once, in the order in which they come."""
    found: list[Mapping[str, Any]] = []
    for source in sources:
        if source not in found:
            found.append(source)
    return found


def _without_words(source: str) -> str:
    """The lines that do something, as they are written: a tree that is written out differs from Python to Python."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for text in filter(_is_text, node.body):
                for row in range(text.lineno - 1, text.end_lineno or text.lineno):
                    lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
