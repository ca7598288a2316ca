"""The figure's coordinates, and the documentation's example run as it stands."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from deconfound.auditing.embedding import embed

ROWS = np.arange(200)


def blobs():
    rng = np.random.default_rng(0)
    group = ROWS % 2
    return rng.normal(size=(200, 10)) + 12 * group[:, None], group


def separated(points, group):
    x = np.column_stack([points.x, points.y])
    gap = x[group == 0].mean(0) - x[group == 1].mean(0)
    side = (x - x.mean(0)) @ gap > 0
    return max(np.mean(side == (group == 0)), np.mean(side != (group == 0)))


def test_tsne_keeps_apart_what_lies_apart_and_is_the_same_each_time():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    features, group = blobs()
    points = embed("model", features, ROWS)
    assert points.method == "t-SNE"
    assert separated(points, group) == 1
    assert embed("model", features, ROWS) == points


def test_without_scikit_learn_it_shows_principal_components_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    features, group = blobs()
    points = embed("model", features, ROWS)
    assert points.method.startswith("principal components (t-SNE needs scikit-learn")
    assert separated(points, group) == 1


def test_one_or_two_outputs_are_shown_as_they_are():
    features, _ = blobs()
    one, two = embed("model", features[:, :1], ROWS), embed("model", features[:, :2], ROWS)
    np.testing.assert_allclose(one.x, features[:, 0], rtol=1e-4)
    np.testing.assert_allclose(two.y, features[:, 1], rtol=1e-4)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/guides/audit.md", "exec"), {})
    assert "site is still there" in capsys.readouterr().out
    assert (tmp_path / "audit.html").exists()
