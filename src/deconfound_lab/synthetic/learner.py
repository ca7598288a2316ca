"""One training of the experiment: a method, its optimiser, and the best state by validation loss.

Every step and every validation is a fixed sequence of operations on fixed memory, with no decision in Python: on a GPU
they are captured as graphs and replayed, so that a network this small is not held up by its own launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from deconfound.methods import Method, method
from deconfound.methods.base import Setting, TrainingBatch
from deconfound.networks import SyntheticCNN
from deconfound_lab.synthetic.grid import Cell
from deconfound_lab.synthetic.problems import Part, Problem

PLACES = ("conv1", "conv2", "fc1")
State = list[Tensor]


class Learner:
    """A network under a method that trains on one seed's images.

    Attributes:
        method: The method.
        best: The state with the lowest validation loss so far, refitted as it was when it was judged.
        last: The state at the last validation, refitted.
        best_loss: Its loss.
        best_step: The step at which it was reached.
    """

    def __init__(self, cell: Cell, seed: int, problem: Problem, steps: int) -> None:
        self.cell, self.problem = cell, problem
        self.device = problem.train.x.device
        torch.manual_seed(seed)
        batches = [TrainingBatch(problem.train.x.cpu(), problem.train.metadata.cpu(), problem.train.target.cpu())]
        setting = Setting(problem.design, PLACES, lambda: batches, lr=cell.lr)
        self.method: Method = method(cell.method).prepare(SyntheticCNN(), setting, **cell.options).to(self.device)
        graphs = self.device.type == "cuda"
        self._lr = torch.tensor(cell.lr, device=self.device)
        self._optimizer = torch.optim.Adam(self.method.network_parameters(), lr=self._lr, capturable=graphs)
        for own in self.method.own_optimizers():
            for group in own.param_groups:
                if "capturable" in group:
                    group["capturable"] = graphs
        self._order = _order(len(problem.train), cell.batch, steps, seed).to(self.device)
        self._step = torch.zeros((), dtype=torch.long, device=self.device)
        self.best_loss = torch.full((), torch.inf, device=self.device)
        self.best_step = torch.zeros((), dtype=torch.long, device=self.device)
        self._replay: _Replay | None = None
        self.best, self.last = self.copied(), self.copied()
        if graphs:
            self._replay = self._capture()

    def step(self) -> None:
        """One training step."""
        if self._replay is not None:
            self._replay.step()
        else:
            self._train_once()

    def validate(self) -> None:
        """Judge the present state on the validation images, and keep it if it is the best."""
        if self._replay is not None:
            self._replay.validate()
        else:
            self._validate_once()

    def load(self, state: State) -> None:
        """Put parameters and buffers back."""
        with torch.no_grad(), self._in_turn():
            for now, then in zip(self._state(), state, strict=True):
                now.copy_(then)

    def _train_once(self) -> None:
        rows = self._order.index_select(0, self._step.view(1)).view(-1)
        if self.cell.warm_up:
            self._lr.copy_(self.cell.lr * ((self._step + 1) / self.cell.warm_up).clamp(max=1))
        batch = _batch(self.problem.train, rows)
        self.method.before_step(batch)
        loss = self.method.loss(batch, binary_cross_entropy_with_logits).total
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._step.add_(1)

    @torch.no_grad()
    def _validate_once(self) -> None:
        held_out = self.problem.validation
        batch = TrainingBatch(held_out.x, held_out.metadata, held_out.target)
        self.method.eval()
        with self.method.refitted(lambda: [batch]):
            loss = binary_cross_entropy_with_logits(self.method(batch.x, batch.metadata), batch.target)
            better = loss < self.best_loss
            for best, last, now in zip(self.best, self.last, self._state(), strict=True):
                best.copy_(torch.where(better, now, best))
                last.copy_(now)
        self.best_loss.copy_(torch.where(better, loss, self.best_loss))
        self.best_step.copy_(torch.where(better, self._step, self.best_step))
        self.method.train()

    def _state(self) -> State:
        return [value.detach() for value in (*self.method.parameters(), *self.method.buffers())]

    def copied(self) -> State:
        """Parameters and buffers as they are after all steps so far."""
        with self._in_turn():
            return [value.clone() for value in self._state()]

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """After the steps that were asked for and before those to come: replays run on a stream of their own."""
        if self._replay is None:
            yield
            return
        here, there = torch.cuda.current_stream(), self._replay.stream
        here.wait_stream(there)
        try:
            yield
        finally:
            there.wait_stream(here)

    def _capture(self) -> _Replay:
        start = self.copied()
        replay = _Replay(self._train_once, self._validate_once, self._forget)
        self.load(start)
        for kept in (self.best, self.last):
            for value, then in zip(kept, start, strict=True):
                value.copy_(then)
        torch.cuda.synchronize()
        return replay

    def _forget(self) -> None:
        """Undo what the rehearsal before a capture has left in optimisers and counters."""
        for optimizer in (self._optimizer, *self.method.own_optimizers()):
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
        for counter in (self._step, self.best_step):
            counter.zero_()
        self.best_loss.fill_(torch.inf)


class _Replay:
    """Training steps and validations as CUDA graphs, on a stream of their own, which nobody waits for unasked."""

    def __init__(self, step: Callable[[], None], validate: Callable[[], None], forget: Callable[[], None]) -> None:
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                step()
            validate()
        torch.cuda.synchronize()
        self._step, self._validate = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._step, stream=self.stream):
            step()
        with torch.cuda.graph(self._validate, stream=self.stream):
            validate()
        forget()

    def step(self) -> None:
        with torch.cuda.stream(self.stream):
            self._step.replay()

    def validate(self) -> None:
        with torch.cuda.stream(self.stream):
            self._validate.replay()


def _batch(part: Part, rows: Tensor) -> TrainingBatch:
    return TrainingBatch(part.x[rows], part.metadata[rows], part.target[rows])


def _order(images: int, batch: int, steps: int, seed: int) -> Tensor:
    """Which images each step trains on, `(steps, batch)`; each epoch has its own order and leaves out a short batch."""
    generator = torch.Generator().manual_seed(seed)
    epochs = -(-steps * batch // (images // batch * batch))
    drawn = [torch.randperm(images, generator=generator)[: images // batch * batch] for _ in range(epochs)]
    return torch.cat(drawn)[: steps * batch].view(steps, batch)
