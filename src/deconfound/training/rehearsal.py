"""A method around its network without any data: what a checkpoint is loaded into, and what shows a wrong option."""

from __future__ import annotations

import math

import torch

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError
from deconfound.methods import method as method_named
from deconfound.methods.base import Method, Setting, TrainingBatch
from deconfound.networks import NETWORKS, build_network
from deconfound.training.config import Config
from deconfound.training.loading import listed
from deconfound.training.problem import Problem, fit_design
from deconfound.training.step import warmup_never_ends
from deconfound.training.tasks import Task


def blank_setting(config: Config, design: Design, shape: tuple[int, ...], task: Task) -> Setting:
    """A setting whose training rows are two samples of nothing."""

    def shapes_only() -> list[TrainingBatch]:
        outputs = torch.zeros(2, dtype=torch.int64) if task.kind == "multiclass" else torch.zeros(2, task.outputs)
        return [TrainingBatch(torch.zeros(2, *shape), torch.zeros(2, len(design.columns)), outputs)]

    return Setting(design, config.method.at, shapes_only, config.training.lr, config.design.site)


def rehearse(problem: Problem) -> None:
    """Make the method of a run once and throw it away, so that what every fold would say is said once.

    A network of the user's own is left alone: to build it may take long, and its folds tell what is wrong with it.
    """
    config, shape, task = problem.config, problem.source.shape, problem.task
    if config.network.name not in NETWORKS:
        return
    setting = blank_setting(config, fit_design(problem, problem.folds[0]), shape, task)
    options = config.method.options.get(config.method.name, {})
    with torch.random.fork_rng():
        network = build_network(config.network.name, shape, task.outputs, config.network.options)
        try:
            made = method_named(config.method.name).make(network, setting, options)
            _must_warm_up(made, problem)
        except DeconfoundError as fault:
            raise OptionError(listed("the config", [f"method {config.method.name!r}: {fault}"])) from fault


def _must_warm_up(made: Method, problem: Problem) -> None:
    """Otherwise a run would give a network that the method has never done anything to."""
    training = problem.config.training
    batches = training.epochs * math.ceil(min(len(fold.train) for fold in problem.folds) / training.batch_size)
    if fault := warmup_never_ends(made.batches_to_warm_up, batches, training.epochs):
        raise OptionError(fault)
