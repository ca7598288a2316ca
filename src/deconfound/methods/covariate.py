"""`covariate`: the classical adjustment, confounds beside the network in training and averaged out at inference."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from deconfound.errors import OptionError
from deconfound.methods.base import Method, Setting
from deconfound.methods.confounds import read_confounds
from deconfound.methods.problem import first_batch, require
from deconfound.surgery.plan import observe

Link = Literal["sigmoid", "softmax", "identity"]
LINKS: tuple[Link, ...] = ("sigmoid", "softmax", "identity")


@final
class Covariate(Method):
    """In training `logits = network(x) + C w`; at inference the mean prediction over the training rows' confounds.

    What the confounds explain is explained by `w`, and the network is left with the rest; the prediction for a
    person is then the one averaged over everybody's confounds, `E_C[link(network(x) + C w)]`, given back as logits.

    Args:
        network: Any module.
        setting: The problem.
        samples: Over how many training rows at most predictions are averaged.
        link: What makes predictions of logits: "sigmoid" for each by itself, "softmax" over classes, "identity"
            for quantities. None reads it off the training targets: whole numbers with several logits are classes,
            zeros and ones are labels, all else quantities.
    """

    name: ClassVar[str] = "covariate"
    summary: ClassVar[str] = "the confounds as an additive head on the logits, averaged out at inference"
    reads_confounds: ClassVar[bool] = False

    sample: Tensor
    share: Tensor

    def __init__(self, network: nn.Module, setting: Setting, *, samples: int = 256, link: Link | None = None) -> None:
        super().__init__()
        require("samples", samples, 1, whole=True)
        if link is not None and link not in LINKS:
            raise OptionError(f"link must be one of {', '.join(LINKS)}; got {link!r}.")
        self.model = network
        self.design = setting.design
        logits = observe(network, {"": network}, first_batch(setting).x, "after")[""][0].features
        self.link: Link = link or infer_link(setting, logits[0].numel())
        columns = len(setting.design.confound_columns)
        self.head = nn.Parameter(torch.zeros(columns, logits[0].numel(), dtype=logits.dtype))
        sample, share = sample_confounds(setting, samples)
        self.register_buffer("sample", sample.to(logits.dtype))
        self.register_buffer("share", share.to(logits.dtype))

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x)
        if not self.training:
            averaged = marginal(logits.reshape(len(x), -1), self.sample @ self.head, self.share, self.link)
            return averaged.reshape(logits.shape)
        confounds = read_confounds(metadata, self.design, len(x), training=True)
        assert confounds is not None
        return logits + (confounds.to(self.head) @ self.head).reshape(logits.shape)

    def get_extra_state(self) -> Tensor:
        """The link, so that a checkpoint does not depend on the targets that it was read off."""
        return torch.tensor(LINKS.index(self.link))

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the link of the checkpoint."""
        self.link = LINKS[int(state)]


def marginal(logits: Tensor, offsets: Tensor, share: Tensor, link: Link) -> Tensor:
    """The logits of the prediction averaged over offsets.

    Args:
        logits: `(n, k)`.
        offsets: `(samples, k)`.
        share: `(samples,)`, the weight of each, of sum 1.
        link: What makes predictions of logits.
    """
    if link == "identity":
        return logits + share @ offsets
    each = logits[:, None] + offsets
    weight = share.log()[:, None]
    if link == "softmax":
        return torch.logsumexp(each.log_softmax(-1) + weight, dim=1)
    return torch.logsumexp(logsigmoid(each) + weight, dim=1) - torch.logsumexp(logsigmoid(-each) + weight, dim=1)


def infer_link(setting: Setting, logits: int) -> Link:
    """What the training targets say about the logits."""
    labels = True
    for batch in setting.training():
        target = batch.target
        if logits > 1 and target.ndim == 1 and not target.is_floating_point():
            return "softmax"
        labels = labels and bool(((target == 0) | (target == 1)).all())
    return "sigmoid" if labels else "identity"


def sample_confounds(setting: Setting, samples: int) -> tuple[Tensor, Tensor]:
    """C of `samples` training rows drawn without replacement, and the share of each; rows that are not there have 0."""
    columns = len(setting.design.confound_columns)
    rows = torch.cat([batch.metadata[:, :columns].cpu() for batch in setting.training()])
    drawn = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:samples]]
    sample, share = torch.zeros(samples, columns), torch.zeros(samples)
    sample[: len(drawn)], share[: len(drawn)] = drawn, 1 / len(drawn)
    return sample, share
