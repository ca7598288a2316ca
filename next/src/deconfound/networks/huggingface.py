"""Image classifiers of the Hugging Face hub as networks from images to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError, import_extra
from deconfound.networks.arguments import Shape, check_arguments


class HuggingFaceClassifier(nn.Module):
    """A pretrained image classifier with a head of `outputs` logits.

    Weights are read in the safetensors format, and code from the hub is never run. The head is new
    unless the saved one has the same number of outputs. Grey images are repeated for models that
    read three channels. Images are resized only if the model cannot read their size.

    Args:
        shape: Shape of one image, `(channels, height, width)`.
        outputs: Number of logits.
        model: A folder that `save_pretrained` wrote, or the name of a model on the hub that
            `transformers.AutoModelForImageClassification` can load, such as "microsoft/resnet-18".
            A model on the hub may change; a folder stays as it is.

    Attributes:
        default_at: The linear layers of the head, for `deconfound.normalize`.
        size: Height and width to which images are resized, or None.

    Example:
        >>> import tempfile, torch, transformers
        >>> from deconfound.networks import HuggingFaceClassifier
        >>> sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        >>> saved = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
        >>> folder = tempfile.mkdtemp()
        >>> saved.save_pretrained(folder)
        >>> network = HuggingFaceClassifier((1, 40, 30), 1, model=folder)
        >>> network(torch.randn(2, 1, 40, 30)).shape
        torch.Size([2, 1])
        >>> network.default_at
        ('model.classifier.1',)
    """

    def __init__(self, shape: Shape, outputs: int, *, model: str) -> None:
        check_arguments("A HuggingFaceClassifier", shape, [3], {"outputs": outputs})
        super().__init__()
        self.model = _load(model, outputs)
        self.channels: int = getattr(self.model.config, "num_channels", 3)
        self.size: tuple[int, ...] | None = None
        self._choose_size(model, shape)
        self.train()
        body = f"model.{self.model.base_model_prefix}."
        linears = [name for name, part in self.named_modules() if isinstance(part, nn.Linear)]
        self.default_at = tuple(name for name in linears if not name.startswith(body))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(n, outputs)` of images `(n, channels, height, width)`."""
        if x.shape[1] == 1:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None:
            x = nn.functional.interpolate(x, self.size, mode="bilinear", antialias=True)
        logits: Tensor = self.model(pixel_values=x).logits
        return logits

    @torch.no_grad()
    def _choose_size(self, model: str, shape: Shape) -> None:
        """Choose the model's own size if it cannot read these images, which only a run shows."""
        own = getattr(self.model.config, "image_size", None)
        try:
            self(torch.zeros(1, *shape))
        except Exception as error:
            self.size = (own, own) if isinstance(own, int) else own
            if self.size is None or shape[0] not in (1, self.channels):
                raise OptionError(
                    f"{model} reads images with {self.channels} channels, and cannot read shape "
                    f"{shape}: {error} Choose another size, or a ConvNet."
                ) from error


def _load(model: str, outputs: int) -> Any:
    """Return the model of transformers, with the pretrained weights below its head."""
    transformers = import_extra("transformers", "hf")
    options = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
    head = {"num_labels": outputs, "ignore_mismatched_sizes": True}
    try:
        loader = transformers.AutoModelForImageClassification
        network, report = loader.from_pretrained(model, **options, **head)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"model={model!r} cannot be loaded: {error}\nWrite a folder that save_pretrained "
            "wrote, or the name of an image classifier on the hub."
        ) from error
    fresh = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    body = [name for name in fresh if name.startswith(f"{network.base_model_prefix}.")]
    if body:
        raise OptionError(
            f"model={model!r} lacks {len(body)} weights below its head, such as {min(body)}. "
            "Save the whole model again."
        )
    # A model may be saved in half precision, in which training loses small steps.
    return network.float()
