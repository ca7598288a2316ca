"""A benchmark's results on disk: one JSON per device, whole after every row, gone on with by the same code."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import deconfound
from deconfound.training.origin import commit
from deconfound_lab.benchmarks.job import Job, Row

Result = dict[str, Any]


def new(device: str, quick: bool, keeps_memory: bool = False) -> Result:
    """A result with nothing in it yet."""
    return {"device": device, "quick": quick, "origin": origin(device, keeps_memory), "jobs": {}}


def origin(device: str, keeps_memory: bool) -> dict[str, Any]:
    """Where the figures come from; whether the process kept the memory that it freed is a part of it."""
    packages = {"deconfound": deconfound.__version__}
    for name in ("torch", "triton", "numpy", "dcor", "statsmodels"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "keeps_memory": keeps_memory,
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit(),
        "code": code(),
    }


def code() -> str:
    """A fingerprint of the library's source files, also where there is no commit to name."""
    digest = hashlib.sha256()
    root = Path(deconfound.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def load(folder: Path, like: Result) -> Result | None:
    """The result of an earlier run of the same code on the same machine; None where there is none."""
    path = path_of(folder, like)
    if not path.exists():
        return None
    try:
        found: Result = json.loads(path.read_text())
    except ValueError:
        return None
    return found if _sameness(found) == _sameness(like) and "jobs" in found else None


def _sameness(result: Result) -> Result:
    """What must be equal for two runs to be one; the fingerprint says more about the code than the commit does."""
    origin = {key: value for key, value in result.get("origin", {}).items() if key != "commit"}
    return {"device": result.get("device"), "quick": result.get("quick"), "origin": origin}


def save(result: Result, folder: Path) -> Path:
    """Write `<device>.json` in one move, so that a run that is killed leaves a whole file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, result)
    beside = path.with_suffix(".json.new")
    beside.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def path_of(folder: Path, result: Result) -> Path:
    """Where a result is kept."""
    return folder / f"{result['device']}.json"


def begin(result: Result, job: Job) -> dict[str, Any]:
    """An empty place for a job's rows, after those of the jobs begun before."""
    result["jobs"].pop(job.key, None)
    place: dict[str, Any] = {"section": job.section, "name": job.name, "rows": [], "whole": False}
    result["jobs"][job.key] = place
    return place


def whole(result: Result, job: Job) -> bool:
    """Whether a job has been measured to its end."""
    return bool(result["jobs"].get(job.key, {}).get("whole"))


def rows(result: Result, section: str) -> list[Row]:
    """All rows of a section."""
    return [row for job in result["jobs"].values() if job["section"] == section for row in job["rows"]]
