"""The paper's networks, plain: layers are attached by `deconfound.normalize`."""

from deconfound.networks.resnet3d import ResNet3D
from deconfound.networks.synthetic import SyntheticCNN

__all__ = ["ResNet3D", "SyntheticCNN"]
