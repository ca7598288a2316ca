"""Where a result comes from: versions, commit, machine, data."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from deconfound import __version__

PACKAGES = ("torch", "lightning", "numpy", "pandas", "scikit-learn", "joblib", "submitit", "combatlearn", "nibabel")


def provenance(seed: int, fingerprint: str) -> dict[str, Any]:
    """What one needs to know to make a result again."""
    return {
        "deconfound": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": seed,
        "data": fingerprint,
    }


def commit() -> str | None:
    """The commit of the library's own checkout, with a mark where files have changed since; None if it is installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src").strip()
        return git("rev-parse", "HEAD").strip() + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
