"""A fold trained by Lightning: what the config passes through, and the quiet that a run of many folds needs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deconfound.errors import OptionError, need
from deconfound.methods import Criterion, Method
from deconfound.training.batches import held_out, loader
from deconfound.training.config import Config
from deconfound.training.engine import Engine, KeepBestEpoch, OnEpoch, WholeFiles, load_checkpoint
from deconfound.training.fold_data import FoldData
from deconfound.training.step import seed_for


def train_with_lightning(
    method: Method, data: FoldData, criterion: Criterion, last: Path, tick: OnEpoch | None
) -> dict[str, Any]:
    """Train to the end, from the checkpoint `last` if it is there; the history and the best epoch with its weights.

    `tick` is called with (epoch, epochs, best validation loss) after each epoch.
    """
    config = data.problem.config
    training = config.training
    kept = load_checkpoint(last)["callbacks"]["keeper"] if last.exists() else None
    if kept is None or not kept["finished"]:
        spawned = any(word in training.strategy for word in ("spawn", "fork", "notebook"))
        seconds = config.run.checkpoint_seconds
        keeper = KeepBestEpoch(last, training.epochs, training.patience, seconds, None if spawned else tick)
        seed = seed_for(config.run.seed, data.fold.name)
        train, validation = loader(data, data.train, seed), loader(data, data.validation)
        to_refit = loader(data, data.validation)
        engine = Engine(method, criterion, training, seed, lambda: held_out(to_refit, engine.device))
        with _quiet():
            trainer = _trainer(config, last.parent, keeper)
            trainer.fit(engine, train, validation, ckpt_path=str(last) if kept is not None else None)
        kept = load_checkpoint(last)["callbacks"]["keeper"]
    weights = {key.removeprefix("method."): value for key, value in kept["best"]["weights"].items()}
    return {**kept, "best": {**kept["best"], "weights": weights}}


def _trainer(config: Config, folder: Path, keeper: KeepBestEpoch) -> Any:
    """A trainer that checkpoints, logs and reports progress through `keeper` alone."""
    training, loggers = config.training, _loggers(config, folder)
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
            logger=loggers or False,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            log_every_n_steps=1,
        )
    except Exception as error:  # Lightning refuses settings with many kinds of errors
        raise OptionError(
            f"training must have settings that Lightning accepts here; got {error} Look at accelerator, devices, "
            "strategy and precision."
        ) from error


def _loggers(config: Config, folder: Path) -> list[Any]:
    made = []
    loggers = need("lightning.pytorch.loggers", "train")
    for name in config.training.loggers:
        try:
            if name == "tensorboard":
                made.append(loggers.TensorBoardLogger(folder, name="tensorboard", version=""))
            else:
                made.append(loggers.MLFlowLogger(config.run.folder, run_name=folder.name))
        except ModuleNotFoundError as error:
            raise OptionError(
                f"training.loggers must be installed; got {name!r} ({error}). Run: pip install {name}"
            ) from error
    return made


@contextmanager
def _quiet() -> Iterator[None]:
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
