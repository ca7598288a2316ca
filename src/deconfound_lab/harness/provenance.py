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

from deconfound.data import read_json
from deconfound.training import provenance
from deconfound_lab.harness.reach import files_behind

OLDER = "made with older code"
"""What a page says where the digest of the code differs from the present one."""
PROVEN = Path(__file__).with_name("same_results.json")
"""What `python -m tests.same_results` found: the digests of two versions of the code that give the same numbers."""


def origin(seed: int, data: str, modules: Iterable[str]) -> dict[str, Any]:
    """What one needs to know to make a result again, with the digest of the code it depends on."""
    return {**provenance(seed, data), "code": code_digest(tuple(modules))}


@cache
def code_digest(modules: tuple[str, ...]) -> str:
    """A digest of some modules of the lab and of all code that they import, without comments and docstrings.

    What shows results and keeps them is left out, and so is the rest of the library: it cannot change a result.
    """
    digest = hashlib.sha256()
    for path in files_behind(modules):
        digest.update(f"{path.parent.name}/{path.name}\0{_without_words(path.read_text(encoding='utf-8'))}".encode())
    return digest.hexdigest()[:16]


def made_by(sources: Sequence[Mapping[str, Any]], counts: Sequence[str], modules: Iterable[str]) -> list[str]:
    """One line for each source, as `origin` gave it: what it made, version, commit, machine, packages, command.

    A source whose digest of the modules is not the present one is marked; it reads otherwise where both are shown to
    give the same numbers.
    """
    modules = tuple(modules)
    lines = []
    for source, count in zip(sources, counts, strict=True):
        packages = ", ".join(f"{name} {version}" for name, version in source["packages"].items())
        mark = _mark(source, modules)
        lines.append(
            f"{count}: deconfound {source['deconfound']} (commit {source['commit']}) on {source['device']}, Python "
            f"{source['python']}, {packages}. Command: {source['command']}{mark}"
        )
    return lines


def _mark(source: Mapping[str, Any], modules: tuple[str, ...]) -> str:
    """What is said of results by the digest of the code that made them, and by the device that it ran on."""
    made, now = source.get("code"), code_digest(modules)
    if made == now:
        return ""
    proven = read_json(PROVEN)
    name = "+".join(modules)
    on_cpu = source["device"] in source["platform"]
    ways = [counts for way, counts in proven["ways"].items() if (way == "cpu") is on_cpu]
    equal = all(counts["equal"] == counts["trainings"] for counts in ways)
    if not equal or (proven["before"].get(name), proven["after"].get(name)) != (made, now):
        return f" ({OLDER})"
    count = sum(counts["trainings"] for counts in ways)
    return f" (code changed since; {count} small trainings with both are equal in every bit)"


def trainings(sources: Sequence[Mapping[str, Any]], made: Sequence[tuple[int, float]]) -> list[str]:
    """For `made_by`: how many trainings each source made, from the number of its source and the seconds of each."""
    seconds = [[took for source, took in made if source == index] for index in range(len(sources))]
    return [f"{len(each)} trainings in {sum(each):.0f} s" for each in seconds]


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
