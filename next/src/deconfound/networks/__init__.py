"""Networks for tables, signals, images and volumes, and how to build one by its name.

They are plain torch modules: `deconfound.normalize` puts layers into them, at the modules that
their `default_at` names.
"""

from deconfound.networks.build import build, is_builtin, is_estimator
from deconfound.networks.convnet import ConvNet
from deconfound.networks.huggingface import HuggingFaceClassifier
from deconfound.networks.mlp import MLP

__all__ = ["MLP", "ConvNet", "HuggingFaceClassifier", "build", "is_builtin", "is_estimator"]
