"""Words are executed: what the documentation says is run, and every public name has documentation."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

import deconfound as dc
from tests.rooms import LAB, ROOMS, ROOT, SOURCE, imported_rooms, public_homes, python_files, room_of


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    if room == "__init__":
        return  # the public face may name every room
    assert room in ROOMS, f"{room} is not in the list of rooms"
    later = [
        other for other in imported_rooms(path.read_text(), public_homes()) if ROOMS.index(other) > ROOMS.index(room)
    ]
    assert not later, f"{path.name} in {room} imports from {later}"


@pytest.mark.parametrize(
    ("code", "rooms"),
    [
        ("from deconfound.training.run import fit", {"training"}),
        ("import deconfound.cli", {"cli"}),
        ("from deconfound import normalize, metrics", {"surgery", "metrics"}),
        ("import deconfound as dc\ndc.audit(1, 2)", {"auditing"}),
        ("import deconfound\nprint(deconfound.Design)", {"design"}),
        ("from deconfound import __version__", set()),
        ("def late():\n    from deconfound.sklearn import base", {"sklearn"}),
    ],
)
def test_the_guard_sees_every_way_to_write_an_import(code, rooms):
    assert imported_rooms(code, public_homes()) == rooms


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_library_does_not_know_its_experiments(path):
    assert not re.search(r"^\s*(from|import) deconfound_lab", path.read_text(), flags=re.MULTILINE)


def test_files_are_small():
    files = [*python_files(), *python_files(LAB)]
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in long.items() if lines > 300} == {}


@pytest.mark.parametrize("name", dc.__all__)
def test_every_public_name_is_documented(name):
    value = getattr(dc, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        undocumented = [
            method
            for method, member in vars(value).items()
            if not method.startswith("_")
            and callable(getattr(member, "__func__", member))
            and not inspect.getdoc(member)
        ]
        assert not undocumented
    assert f"`{name}" in (ROOT / "docs" / "reference.md").read_text()


def test_public_names_are_those_of_the_lazy_face():
    assert set(dc.__all__) <= set(dir(dc))
    with pytest.raises(AttributeError, match="module 'deconfound' has no attribute 'Nonsense'"):
        _ = dc.Nonsense


def test_modules_say_what_they_are():
    for module in pkgutil.walk_packages([str(SOURCE)], "deconfound."):
        assert importlib.import_module(module.name).__doc__, module.name


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_loads_nothing_heavy():
    loaded = run("""
        import sys
        import deconfound
        roots = {name.split(".")[0] for name in sys.modules}
        print(sorted(roots & {"torch", "pandas", "numpy", "scipy", "rich", "typer"}))
    """)
    assert loaded.strip() == "[]"


def test_layers_and_surgery_need_only_torch_and_numpy():
    loaded = run("""
        import sys
        import deconfound as dc
        dc.PMDN, dc.normalize
        roots = {name.split(".")[0] for name in sys.modules}
        print(sorted(roots & {"pandas", "rich", "typer", "sklearn", "monai"}))
    """)
    assert loaded.strip() == "[]"


def test_functions_named_in_the_theory_exist():
    pages = "".join((ROOT / "docs" / "concepts" / name).read_text() for name in ("theory.md", "theory-others.md"))
    named = re.findall(r"`(deconfound\.[a-z_.A-Z]+)`", pages)
    assert len(named) > 8
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_command_is_there_and_helps():
    done = subprocess.run([str(Path(sys.executable).parent / "deconfound"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_version_is_the_one_in_the_changelog():
    assert f"## [{dc.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_paper_and_the_citation_name_the_same_authors_and_subjects():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = yaml.safe_load((ROOT / "paper.md").read_text().split("---")[1])
    assert [each["name"] for each in cited["authors"]] == [each["name"] for each in paper["authors"]]
    assert cited["keywords"] == paper["tags"]
    assert cited["version"] == dc.__version__
