"""Built-in networks, plain: layers are attached by `deconfound.normalize`. `build_network` makes one by its name."""

from deconfound.networks.convolutional import ConvNet, SyntheticCNN
from deconfound.networks.mlp import MLP
from deconfound.networks.pretrained import freeze, load_weights
from deconfound.networks.registry import NETWORKS, build_network, hidden_features, network_faults
from deconfound.networks.resnet3d import Halving, ResNet3D
from deconfound.networks.resnet18 import ResNet18

__all__ = [
    "MLP",
    "NETWORKS",
    "ConvNet",
    "Halving",
    "ResNet3D",
    "ResNet18",
    "SyntheticCNN",
    "build_network",
    "freeze",
    "hidden_features",
    "load_weights",
    "network_faults",
]
