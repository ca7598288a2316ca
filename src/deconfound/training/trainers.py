"""Lightning's trainer for a fold: what the config passes through, and the quiet that a run of many folds needs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deconfound.errors import DeconfoundError, OptionError, need
from deconfound.training.config import Config
from deconfound.training.engine import KeepBestEpoch, WholeFiles


def make_trainer(config: Config, folder: Path, keeper: KeepBestEpoch) -> Any:
    """A trainer that checkpoints, logs and reports progress through `keeper` alone."""
    training = config.training
    devices = list(training.devices) if isinstance(training.devices, tuple) else training.devices
    try:
        return need("lightning.pytorch", "train").Trainer(
            accelerator=training.accelerator,
            devices=devices,
            num_nodes=training.nodes,
            strategy=training.strategy,
            precision=training.precision,
            accumulate_grad_batches=training.accumulate,
            gradient_clip_val=training.clip,
            max_epochs=training.epochs,
            callbacks=[keeper],
            plugins=[WholeFiles()],
            logger=_loggers(config, folder),
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            log_every_n_steps=1,
        )
    except DeconfoundError:
        raise
    except Exception as error:  # Lightning refuses settings with many kinds of errors
        raise OptionError(
            f"training must have settings that Lightning accepts here; got {error} Look at accelerator, devices, "
            "strategy and precision."
        ) from error


def _loggers(config: Config, folder: Path) -> Any:
    made: list[Any] = []
    for name in config.training.loggers:
        loggers = need("lightning.pytorch.loggers", "train")
        try:
            if name == "tensorboard":
                made.append(loggers.TensorBoardLogger(folder, name="tensorboard", version=""))
            else:
                made.append(loggers.MLFlowLogger(config.run.folder, run_name=folder.name))
        except ModuleNotFoundError as error:
            raise OptionError(
                f"training.loggers must be installed; got {name!r} ({error}). Run: pip install {name}"
            ) from error
    return made or False


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back Lightning's advice, which is about loops that people write by hand."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=r".*(litlogger|does not have many workers|isinstance\(treespec).*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
