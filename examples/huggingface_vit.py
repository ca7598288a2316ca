"""A Hugging Face ViT, built from a configuration: the layer goes before the classifier, on the class token."""

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

import deconfound as dc

rng = np.random.default_rng(0)
torch.manual_seed(0)
dx = rng.integers(0, 2, 400)
table = {"dx": dx, "age": rng.normal(60 + 8 * dx, 8), "sex": rng.choice(["F", "M"], 400)}
images = 0.5 * torch.randn(400, 1, 16, 16)
images[:, :, :8] += torch.tensor(dx, dtype=torch.float32)[:, None, None, None]
images[:, :, 8:] += torch.tensor(table["age"] / 8 - 8, dtype=torch.float32)[:, None, None, None]
labels = torch.tensor(dx)

design = dc.Design(confounds=["age", "sex"], keep=["dx"]).fit(table)
metadata = torch.from_numpy(design.encode(table))

config = ViTConfig(
    image_size=16,
    patch_size=4,
    num_channels=1,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=2,
)
network = ViTForImageClassification(config)
model = dc.normalize(network, design, at="classifier", where="before", example={"pixel_values": images[:2]})
print(model.plan)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _epoch in range(3):
    for rows in torch.randperm(400).split(40):
        # The model takes the network's own arguments and returns its own output, with the loss.
        output = model(pixel_values=images[rows], labels=labels[rows], metadata=metadata[rows])
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    logits = model(pixel_values=images, metadata=metadata).logits
print("accuracy", (logits.argmax(1) == labels).float().mean().item())

# The plain Hugging Face model again, for its own tools.
plain = model.remove()
assert isinstance(plain, ViTForImageClassification)
