"""The public interface: names, signatures, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import deconfound as dc

HERE = pathlib.Path(__file__).parent
SNAPSHOT = HERE / "public_api.txt"
PACKAGES = (
    *("adjust", "attach", "auditing", "cli", "data", "design", "errors", "layers", "methods"),
    *("metrics", "networks", "runs", "sklearn", "table", "training"),
)


def describe(name: str, value: object) -> list[str]:
    """Return one line for a function or class, and one for each public method of a class."""
    if not callable(value) or not hasattr(value, "__module__"):
        return [name]
    try:
        lines = [f"{name}{inspect.signature(value)}"]
    except (TypeError, ValueError):
        return [name]
    if isinstance(value, type) and value.__module__.startswith("deconfound"):
        for key, member in sorted(vars(value).items()):
            method = getattr(member, "__func__", member)
            if key.startswith("_") or not (
                inspect.isfunction(method) or isinstance(member, property)
            ):
                continue
            signature = "" if isinstance(member, property) else str(inspect.signature(method))
            lines.append(f"{name}.{key}{signature}")
    return lines


def public_interface() -> str:
    lines = []
    for name in sorted(dc.__all__):
        lines += describe(f"deconfound.{name}", getattr(dc, name))
    for package in PACKAGES:
        module = importlib.import_module(f"deconfound.{package}")
        for name in sorted(module.__all__):
            if name not in dc.__all__:
                lines += describe(f"deconfound.{package}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def test_public_names_and_signatures_are_those_of_the_snapshot():
    """A change of an interface is a line in the changelog and a new snapshot.

    Write it with `DECONFOUND_WRITE_SNAPSHOT=1 pytest tests/test_public_api.py`.
    """
    if os.environ.get("DECONFOUND_WRITE_SNAPSHOT"):
        SNAPSHOT.write_text(public_interface())
    assert public_interface() == SNAPSHOT.read_text()


def test_import_loads_neither_torch_nor_pandas():
    """Kills an import of torch at the top of `deconfound/__init__.py`."""
    code = "import sys, deconfound; print([m for m in ('torch', 'pandas') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_design_and_table_load_no_torch():
    """People who only describe a table do not wait for torch."""
    names = "deconfound.Design, deconfound.balance, deconfound.read_table"
    code = f"import sys, deconfound; {names}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        dc.no_such_name  # noqa: B018


def test_names_can_be_listed():
    assert {"Design", "normalize", "layers"} <= set(dir(dc))


def test_every_public_name_has_a_docstring_and_callables_of_the_top_an_example():
    """An example is a doctest, which the suite runs."""
    without = [name for name in dc.__all__ if not inspect.getdoc(getattr(dc, name))]
    lacking = [
        name for name in dc.__all__ if ">>>" not in (inspect.getdoc(getattr(dc, name)) or "")
    ]
    assert without == []
    # A NormalizedModel is made by `normalize`, a Balance by `balance`: their examples are there.
    assert set(lacking) <= {"NormalizedModel", "Balance"}


def imported_names(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return (module, name) of each import from deconfound in a file."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        module = getattr(node, "module", None) or ""
        if isinstance(node, ast.ImportFrom) and module.split(".")[0] == "deconfound":
            names += [(node.module or "", alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            names += [
                (alias.name, "") for alias in node.names if alias.name.startswith("deconfound.")
            ]
    return names


def test_tests_benchmarks_and_lab_use_public_names_only():
    """Tests that know inner files would hold them in place."""
    lab = HERE.parent / "src" / "deconfound_lab"
    folders = [HERE, HERE.parent / "benchmarks", lab]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    faces = {"deconfound", *(f"deconfound.{package}" for package in PACKAGES)}
    faults = []
    for path in paths:
        for module, name in imported_names(path):
            if module not in faces or name.startswith("_"):
                faults.append(f"{path.name}: from {module} import {name}")
    assert faults == []


def test_oracles_do_not_import_deconfound():
    """A formula that is checked against itself would always be right."""
    oracles = list(HERE.rglob("*oracles.py"))
    assert len(oracles) >= 3
    for path in oracles:
        assert imported_names(path) == []
        assert "deconfound" not in path.read_text().split('"""', 2)[2]
