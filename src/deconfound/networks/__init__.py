"""Built-in networks, plain: layers are attached by `deconfound.normalize`. `build_network` makes one by its name."""

from deconfound.networks.mlp import MLP
from deconfound.networks.registry import NETWORKS, build_network, hidden_features, network_faults
from deconfound.networks.resnet3d import Halving, ResNet3D
from deconfound.networks.synthetic import SyntheticCNN

__all__ = [
    "MLP",
    "NETWORKS",
    "Halving",
    "ResNet3D",
    "SyntheticCNN",
    "build_network",
    "hidden_features",
    "network_faults",
]
