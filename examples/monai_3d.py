"""A 3D network from MONAI on volumes: the layer goes on the features before the last linear layer."""

import numpy as np
import torch
from monai.networks.nets import DenseNet

import deconfound as dc

rng = np.random.default_rng(0)
torch.manual_seed(0)
dx = rng.integers(0, 2, 120)
table = {"dx": dx, "age": rng.normal(60 + 8 * dx, 8), "scanner": rng.choice(["GE", "Siemens", "Philips"], 120)}
volumes = 0.5 * torch.randn(120, 1, 16, 16, 16)
volumes[:, :, :8] += torch.tensor(dx, dtype=torch.float32)[:, None, None, None, None]
volumes[:, :, 8:] += torch.tensor(table["age"] / 8 - 8, dtype=torch.float32)[:, None, None, None, None]
target = torch.tensor(dx)

design = dc.Design(confounds=["age", "scanner"], keep=["dx"]).fit(table)
metadata = torch.from_numpy(design.encode(table))

network = DenseNet(spatial_dims=3, in_channels=1, out_channels=2, init_features=8, growth_rate=4, block_config=(2, 2))
model = dc.normalize(network, design, at="class_layers.out", where="before", example=volumes[:2])
print(model.plan)

optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _epoch in range(2):
    for rows in torch.randperm(120).split(20):
        loss = torch.nn.functional.cross_entropy(model(volumes[rows], metadata=metadata[rows]), target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model.eval()
one_scan = {"age": [71.0], "scanner": ["GE"]}
print("one new scan", model(volumes[:1], metadata=design.encode(one_scan)).softmax(1))
