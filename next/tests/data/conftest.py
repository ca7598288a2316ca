"""Each test has a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache of this test"
    monkeypatch.setenv("DECONFOUND_CACHE", str(folder))
    return folder
