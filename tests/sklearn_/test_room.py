"""The room by its words: lazy, documented, run as written, and clear where scikit-learn is absent."""

import inspect

import pytest

import deconfound as dc
from tests.test_words import ROOT, blocks, run


def test_the_package_knows_the_room_and_loads_it_late():
    loaded = run("import sys, deconfound; print('sklearn' in sys.modules); deconfound.sklearn.ConfoundResidualizer")
    assert loaded.strip() == "False"


@pytest.mark.parametrize("name", ["ConfoundResidualizer", "DeconfoundedClassifier", "DeconfoundedRegressor"])
def test_every_name_and_option_is_documented(name):
    kind = getattr(dc.sklearn, name)
    described = kind if name != "DeconfoundedRegressor" else dc.sklearn.DeconfoundedClassifier
    for option in inspect.signature(kind).parameters:
        assert f"    {option}: " in inspect.getdoc(described)
    assert all(inspect.getdoc(member) for key, member in inspect.getmembers(kind, callable) if not key.startswith("_"))
    for page in ("reference.md", "guides/sklearn.md"):
        assert f"`{name}" in (ROOT / "docs" / page).read_text()


def test_the_page_s_blocks_run_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    found = blocks(ROOT / "docs" / "guides" / "sklearn.md")
    assert found
    for block in found:
        exec(compile(block, "docs/guides/sklearn.md", "exec"), namespace)


@pytest.mark.parametrize("kind", ["deconfound.errors.DeconfoundError", "ImportError"])
def test_without_scikit_learn_the_room_says_what_to_install(kind):
    said = run(f"""
        import sys
        import deconfound.errors
        sys.modules["sklearn"] = None
        try:
            import deconfound.sklearn
        except {kind} as fault:
            print(fault)
    """)
    assert said.strip().endswith("must find scikit-learn; got none. Install it: pip install 'deconfound[train]'.")
