"""The paper's networks, plain: layers are attached by `deconfound.normalize`."""

from deconfound.models.resnet3d import ResNet3D
from deconfound.models.synthetic import SyntheticCNN

__all__ = ["ResNet3D", "SyntheticCNN"]
