"""Steps and validations as CUDA graphs do what they do one by one; runs as a script too, where there is no pytest."""

import sys
from dataclasses import replace

import torch

import deconfound as dc
from deconfound.methods import Setting, method
from deconfound.training import InMemoryTrainer, Samples, Schedule, bce, train_in_memory

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
except ModuleNotFoundError:
    assert __name__ == "__main__"


def problem():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(200) % 2
    age = 60 + 10 * torch.randn(200, generator=generator) + 5 * label
    table = {"age": age.numpy(), "dx": label.numpy()}
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)
    x = torch.randn(200, 6, generator=generator) + label[:, None] + 0.1 * age[:, None]
    tensors = (x, torch.from_numpy(design.encode(table)), label.float()[:, None])
    return design, Samples(*(each.cuda() for each in tensors))


def trained(name, capture, **changes):
    design, samples = problem()
    train, held = samples.part(torch.arange(160).cuda()), samples.part(torch.arange(160, 200).cuda())
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    made = method(name).prepare(network, Setting(design, None, lambda: train.batches(80))).cuda()
    schedule = replace(Schedule(steps=60, batch_size=16, optimizer="adam", lr=1e-2, capture=capture), **changes)
    result = train_in_memory(made, train, held, bce, schedule, seed=3)
    return made, result


def check(name):
    warm = {"rate": lambda share: min(1.0, 4 * share), "validate_every": 7}
    (one, eager), (two, graph) = (trained(name, capture, **warm) for capture in (False, True))
    assert [epoch.step for epoch in eager.history] == [epoch.step for epoch in graph.history]
    for a, b in zip(eager.history, graph.history, strict=True):
        assert abs(a.training - b.training) < 1e-3, (name, a, b)
        if name == "batchnorm":  # Adam makes whole steps of the rounding of a bias' gradient, which BatchNorm makes 0
            return
        assert abs(a.validation - b.validation) < 1e-3, (name, a, b)
    assert eager.best == graph.best
    for a, b in zip((*one.parameters(), *one.buffers()), (*two.parameters(), *two.buffers()), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)


def test_graphs_train_as_single_steps_do():
    for name in ("none", "batchnorm", "mdn", "pmdn", "pmdn-alternating", "rmdn", "erase"):
        check(name)
        print(name, "agrees")


def side_by_side(seeds):
    design, samples = problem()
    trainers = []
    for seed in seeds:
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(6, 1))
        made = method("pmdn").prepare(network.cuda(), Setting(design, None, lambda: samples.batches(80)))
        schedule = Schedule(steps=200, batch_size=20, capture=True)
        trainers.append(InMemoryTrainer(made.cuda(), samples, samples, bce, schedule, seed=seed))
    for _ in range(200):
        for trainer in trainers:
            trainer.step()
    return [trainer.state()[0] for trainer in trainers]


def test_trainings_side_by_side_are_those_alone():
    together = side_by_side((0, 1))
    for seed in (0, 1):
        torch.testing.assert_close(side_by_side((seed,))[0], together[seed], atol=1e-5, rtol=1e-5)
    assert not torch.equal(*together)


if __name__ == "__main__":
    test_graphs_train_as_single_steps_do()
    test_trainings_side_by_side_are_those_alone()
    sys.exit(0)
