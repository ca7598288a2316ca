"""The folder of a run: what lies where, and digests that tie every file to its run, fold and seed.

A digest finds what was changed by accident: an edited digit, a file of another fold or run, half a copy. It is no
signature: whoever can write the folder can also write matching digests.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deconfound.data.files import write_bytes, write_json
from deconfound.errors import OptionError, RunError, need
from deconfound.training.config import Config
from deconfound.training.config_file import read_config

FORMAT, VERSION = "deconfound-run", 2
ABOUT, RESULT, RESULTS, CONFIG = "run.json", "result.json", "results.json", "config.yaml"
# In run.json: ids and people of the rows that every fold is trained on, by column.
NEVER_TESTED = "never_tested"
# What the column `row` of predictions counts: rows of the table as given, or, where run.json does not say so, of the
# source, as earlier versions did. All folds of a run must count alike.
ROW = "row"
ROW_OF_TABLE = "table"
CHECKPOINT, LAST, PREDICTIONS, FEATURES = "checkpoint.pt", "last.ckpt", "predictions.csv", "features.npz"


@dataclass(frozen=True)
class FoldFolder:
    """The files of one fold; `run` is the digest of the run's identity, data and division."""

    path: Path
    number: int
    run: str

    def finished(self) -> bool:
        """Whether the fold has a result: it is the last file that is written."""
        return (self.path / RESULT).exists()

    def begun(self) -> bool:
        """Whether the fold has a result, or a checkpoint to go on from."""
        return self.finished() or any(self.path.glob(f"*{LAST}"))

    def result(self) -> dict[str, Any]:
        """The result, after a check that it is this fold's of this run."""
        found = _read_signed(self.path / RESULT, self._advice)
        for key, expected in (("run", self.run), ("fold", self.number)):
            if found.get(key) != expected:
                raise RunError(
                    f"{self.path / RESULT} must belong to fold {self.number} of this run; got one of another "
                    f"{key}. {self._advice}"
                )
        return found

    def read(self, name: str) -> bytes:
        """A file of a finished fold, after a check against the digest that its result holds."""
        expected = self.result()["files"].get(name)
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise RunError(f"{self.path / name} must be readable; got {error.strerror}. {self._advice}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise RunError(
                f"{self.path / name} must be as the run wrote it; got content that does not match its digest. "
                f"{self._advice}"
            )
        return content

    def lines(self, name: str) -> list[dict[str, str]]:
        """The lines of a CSV file of a finished fold, checked as by `read`."""
        return list(csv.DictReader(io.StringIO(self.read(name).decode())))

    def has(self, name: str) -> bool:
        """Whether the finished fold wrote such a file."""
        return name in self.result()["files"]

    def checked(self) -> dict[str, Any]:
        """The result, after a check of every file that it names."""
        found = self.result()
        for name in found["files"]:
            self.read(name)
        return found

    def write(self, files: Mapping[str, bytes], result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the files and then the result with their digests."""
        for name, content in files.items():
            write_bytes(self.path / name, content)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        whole = signed({**result, "run": self.run, "fold": self.number, "files": digests})
        write_json(self.path / RESULT, whole)
        return whole

    @property
    def _advice(self) -> str:
        return f"Delete {self.path} and give the command that started the run again: this fold is then trained anew."


@dataclass(frozen=True)
class RunFolder:
    """A run on disk: its folder, the content of `run.json`, and its config with defaults resolved."""

    path: Path
    about: Mapping[str, Any]
    config: Config

    @property
    def folds(self) -> list[FoldFolder]:
        """The folds, finished or not."""
        run = _digest([self.about["identity"], self.about["folds"], self.about["provenance"]["data"]])
        return [FoldFolder(self.path / f"fold-{number}", number, run) for number in range(len(self.about["folds"]))]

    def finished_folds(self) -> list[FoldFolder]:
        """The folds; all of them must be finished."""
        missing = [fold.path.name for fold in self.folds if not fold.finished()]
        if missing:
            raise RunError(
                f"{self.path} must have every fold finished; got none of {', '.join(missing)}. Run it again."
            )
        return self.folds

    def check_data(self, fingerprint: str) -> None:
        """Refuse data that are not those that the run was started with."""
        if self.about["provenance"]["data"] != fingerprint:
            raise RunError(
                f"the data of {self.path} must be those it was started with; got files with other content. Set "
                "run.folder to another folder, or bring the old files back."
            )


def open_run(folder: str | Path) -> RunFolder:
    """The run that lies in a folder; nothing but its files is read, and no code that they name."""
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        runs = sorted(item.parent for item in folder.glob(f"*/{ABOUT}"))
        hint = f"those of {len(runs)} runs. Give one of them, such as {runs[0]}" if runs else f"no {ABOUT} there"
        close = "." if runs else ". Give the folder that `fit` wrote."
        raise RunError(f"{folder} must be the folder of a run; got {hint}{close}")
    advice = "Bring the old file back, or set run.folder to another folder and train anew."
    about = _read_signed(folder / ABOUT, advice, FORMAT)
    try:
        config = read_config(about["config"])
    except OptionError as error:
        raise RunError(f"{folder / ABOUT} must hold a config of this version; got {error}") from error
    written = folder / CONFIG
    if written.exists() and written.read_bytes() != config_text(about["config"]).encode():
        raise RunError(
            f"{written} must be as the run wrote it; got other content. It is a copy that nothing reads: delete it to "
            "have it made again by fit, and change your own config instead."
        )
    return RunFolder(folder, about, config)


def gather(run: RunFolder, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write `results.json` from the finished folds of a run; all of them must be."""
    results = [fold.checked() for fold in run.finished_folds()]
    _check_test_rows(run.path, results)
    kept = ("run", "files", "sha256", "seconds")
    folds = [{key: value for key, value in result.items() if key not in kept} for result in results]
    seconds = {str(result["fold"]): result["seconds"] for result in results}
    about = {key: value for key, value in run.about.items() if key not in ("sha256", "config", NEVER_TESTED, ROW)}
    content = {**about, "folds": folds, "metrics": summary(folds), "seconds": seconds, **(more or {})}
    write_json(run.path / RESULTS, content)
    return content


def load_tensors(path: Path, content: bytes) -> Any:
    """The content of a checkpoint: plain tensors and numbers, on the CPU; nothing else is unpickled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on protocols
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # an archive that was tampered with fails in many ways
        raise RunError(
            f"{path} must hold plain tensors, as `fit` writes them; got something else, which is not loaded because "
            "it could execute code. Do not use this folder unless you know who changed it."
        ) from error


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over folds of each measure, folds where it does not exist left out."""
    out = {}
    for name in results[0]["metrics"]:
        values = [result["metrics"][name] for result in results if result["metrics"][name] is not None]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        out[name] = {"mean": float(np.mean(values)) if values else None, "sd": spread, "folds": len(values)}
    return out


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a digest of itself."""
    return {**content, "sha256": _digest(content)}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_signed(path: Path, advice: str, format: str | None = None) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} must be JSON that can be read; got {error}. {advice}") from error
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    if format is not None and (found.get("format"), found.get("version")) != (format, VERSION):
        seen = f"{found.get('format')} {found.get('version')}"
        raise RunError(f"{path} must have format {format} {VERSION}; got {seen}. {advice}")
    if found.get("sha256") != _digest({key: value for key, value in found.items() if key != "sha256"}):
        raise RunError(f"{path} must be as the run wrote it; got content that does not match its digest. {advice}")
    return found


def _check_test_rows(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """No two folds may have been tested on the same rows."""
    seen: dict[Any, int] = {}
    for result in results:
        other = seen.setdefault(result["test_rows"], result["fold"])
        if other != result["fold"]:
            raise RunError(
                f"the folds of {folder} must have their own test rows; got the same in {other} and {result['fold']}."
            )


def config_text(config: Mapping[str, Any]) -> str:
    """The config of a run as YAML."""
    text: str = need("yaml", "train").safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return text
