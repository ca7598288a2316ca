"""The 18-layer residual network for images, with the module names by which pretrained weights are published."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ResNet18(nn.Module):
    """A 7×7 convolution, four stages of two residual blocks (`layer1` … `layer4`), the mean over places, and `fc`.

    Names and shapes are those of torchvision and timm, so that their ImageNet weights can be loaded.

    Args:
        channels: Of an image.
        outputs: Number of logits.
        width: Channels of the first stage; each further stage has twice as many.

    Example:
        >>> import torch
        >>> ResNet18(outputs=2, width=8)(torch.randn(1, 3, 90, 70)).shape
        torch.Size([1, 2])
    """

    def __init__(self, channels: int = 3, outputs: int = 1, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(8 * width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n, outputs)` of images `(n, channels, height, width)`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x))
        return logits


class ResidualBlock2D(nn.Module):
    """`relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))`: the shortcut is a 1×1 convolution where the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != filters:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, x: Tensor) -> Tensor:
        """`(n, channels, h, w)` to `(n, filters, h / stride, w / stride)`."""
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(inner + self.downsample(x))


def _stage(channels: int, filters: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock2D(channels, filters, stride), ResidualBlock2D(filters, filters, 1))
