"""The paper's networks, plain: layers are attached by `deconfound.normalize`."""

from deconfound.models.synthetic import SyntheticCNN

__all__ = ["SyntheticCNN"]
