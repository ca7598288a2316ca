"""A method around its network without any data: what a checkpoint is loaded into, and what shows a wrong option."""

from __future__ import annotations

import torch
from torch import nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError
from deconfound.methods import method as method_named
from deconfound.methods.base import Setting, TrainingBatch
from deconfound.networks.packages import from_package
from deconfound.networks.registry import NETWORKS, build_network, feature_faults, place_faults
from deconfound.training.checks import listed_faults
from deconfound.training.config import Config
from deconfound.training.problem import Problem
from deconfound.training.step import number_of_batches, warmup_never_ends
from deconfound.training.tasks import Task


def blank_setting(config: Config, design: Design, shape: tuple[int, ...], task: Task) -> Setting:
    """A setting whose training rows are two samples of nothing."""

    def shapes_only() -> list[TrainingBatch]:
        outputs = torch.zeros(2, dtype=torch.int64) if task.kind == "multiclass" else torch.zeros(2, task.outputs)
        return [TrainingBatch(torch.zeros(2, *shape), torch.zeros(2, len(design.columns)), outputs)]

    return Setting(design, config.method.at, shapes_only, config.training.lr, config.design.site)


def dry_run(problem: Problem, *, method: bool = True) -> None:
    """Build the network of a run, and its method, once and throw them away: what every fold would say is said once.

    A network of the user's own is built only where the config names modules in it or weights: to build it may take
    long, and its folds say what is wrong with it. A comparison lets a method that cannot be made fail by itself.
    """
    config = problem.config
    asked = config.network
    known = asked.name in NETWORKS or from_package(asked.name)
    if not (known or config.method.at or asked.features or asked.weights or asked.freeze):
        return
    with torch.random.fork_rng():
        network, faults = _built(problem)
        if network is not None:
            shape, design = problem.source.shape, problem.design(0)
            faults += place_faults(network, shape, design, config.method.at)
            faults += feature_faults(network, asked.features)
            if known and method and not faults:
                faults += _method_faults(problem, network, design)
    if faults:
        raise OptionError(listed_faults("the config", faults))


def _built(problem: Problem) -> tuple[nn.Module | None, list[str]]:
    network, shape = problem.config.network, problem.source.shape
    try:
        outputs = problem.task.outputs
        return build_network(network.name, shape, outputs, network.options, network.weights, network.freeze), []
    except DeconfoundError as fault:
        return None, str(fault).split("\n")
    except Exception as error:
        if network.name in NETWORKS:
            return None, [f"network.options must build a {network.name!r}; got {network.options}, and {error}."]
        return None, []  # a network of the user's own: its fold says so, with the traceback


def _method_faults(problem: Problem, network: nn.Module, design: Design) -> list[str]:
    config = problem.config
    training, name = config.training, config.method.name
    setting = blank_setting(config, design, problem.source.shape, problem.task)
    try:
        made = method_named(name).make(network, setting, config.method.own_options)
    except DeconfoundError as fault:
        return [f"method {name!r}: {fault}"]
    rows = min(len(fold.train) for fold in problem.folds)
    batches = training.epochs * number_of_batches(rows, training.batch_size)
    warmup = warmup_never_ends(made.batches_to_warm_up, batches, training.epochs)
    return [] if warmup is None else [f"method {name!r}: {warmup}"]
