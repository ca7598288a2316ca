"""The room by its words: lazy, documented, run as written, and clear where scikit-learn is absent."""

import inspect

import pytest

import deconfound as dc
from tests.test_words import ROOT, run


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
