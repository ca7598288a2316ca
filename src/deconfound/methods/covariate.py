"""`covariate`: the classical adjustment, confounds beside the network in training and averaged out at inference."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from deconfound.errors import OptionError
from deconfound.methods.base import Method, Setting, require
from deconfound.methods.confounds import read_confounds
from deconfound.surgery.plan import observe

Link = Literal["sigmoid", "softmax", "identity"]
LINKS: tuple[Link, ...] = ("sigmoid", "softmax", "identity")


@final
class CovariateMethod(Method):
    """In training `logits = network(x) + C w`; at inference the mean prediction over the training rows' confounds.

    What the confounds explain is explained by `w`, and the network is left with the rest; the prediction for a
    person is then the one averaged over everybody's confounds, `E_C[link(network(x) + C w)]`, given back as logits.

    Args:
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
        logits = observe(network, {"": network}, setting.first_batch().x, "after")[""][0].features
        self.link = link
        columns = len(setting.design.confound_columns)
        self.head = nn.Parameter(logits.new_zeros(columns, logits[0].numel()))
        self.register_buffer("sample", logits.new_zeros(samples, columns))
        self.register_buffer("share", logits.new_zeros(samples))

    def fit(self, setting: Setting) -> None:
        """The sample of confounds, and the link if it was not given."""
        self.link = self.link or infer_link(setting, self.head.shape[1])
        parts = [(batch.metadata[:, : len(self.head)], batch.row_weight) for batch in setting.training()]
        rows = torch.cat([confounds.cpu() for confounds, _ in parts])
        weight = torch.cat([rows.new_ones(len(c)) if w is None else w.to(rows.dtype).cpu() for c, w in parts])
        drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: len(self.share)]
        self.sample[: len(drawn)] = rows[drawn].to(self.sample)
        self.share[: len(drawn)] = (weight[drawn] / weight[drawn].sum()).to(self.share)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x)
        if not self.training:
            assert self.link is not None
            averaged = marginal(logits.reshape(len(x), -1), self.sample @ self.head, self.share, self.link)
            return averaged.reshape(logits.shape)
        confounds = read_confounds(metadata, self.design, len(x), training=True)
        assert confounds is not None
        return logits + (confounds.to(self.head) @ self.head).reshape(logits.shape)

    def get_extra_state(self) -> Tensor:
        """The link, so that a checkpoint does not depend on the targets that it was read off."""
        return torch.tensor(-1 if self.link is None else LINKS.index(self.link))

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the link of the checkpoint."""
        self.link = LINKS[int(state)] if state >= 0 else None


def marginal(logits: Tensor, offsets: Tensor, share: Tensor, link: Link) -> Tensor:
    """The logits `(n, k)` of the prediction averaged over offsets `(samples, k)`, of shares `(samples,)`."""
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
