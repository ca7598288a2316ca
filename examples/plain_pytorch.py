"""Remove age and site from a network on a table, with a plain PyTorch loop."""

import numpy as np
import torch
from torch import nn

import deconfound as dc

# 1,000 people; patients are older, and more of them come from site B.
rng = np.random.default_rng(0)
torch.manual_seed(0)
dx = rng.integers(0, 2, 1000)
table = {"dx": dx, "age": rng.normal(60 + 8 * dx, 8), "site": np.where(rng.random(1000) < 0.3 + 0.4 * dx, "B", "A")}
signals = np.column_stack(
    [dx + rng.normal(size=1000), table["age"] / 8, table["site"] == "B", rng.normal(size=(1000, 5))]
)
inputs = torch.tensor((signals - signals.mean(0)) / signals.std(0), dtype=torch.float32)
target = torch.tensor(dx, dtype=torch.float32)
train, test = np.arange(800), np.arange(800, 1000)

# The design is fitted on the training rows alone.
design = dc.Design(confounds=["age", "site"], keep=["dx"]).fit({name: column[train] for name, column in table.items()})
metadata = torch.from_numpy(design.encode(table))

network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model = dc.normalize(network, design, at=["0", "2"], example=inputs[:2])
print(model.plan)

optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _epoch in range(20):
    for rows in torch.randperm(800).split(50):
        logits = model(inputs[rows], metadata=metadata[rows]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# New people: no labels are needed.
model.eval()
people = {"age": table["age"][test], "site": table["site"][test]}
with torch.no_grad():
    logits = model(inputs[test], metadata=design.encode(people)).squeeze(1)
print("accuracy", ((logits > 0) == (target[test] > 0)).float().mean().item())
print("effect of one year of age on the logit before removal", model.coefficients()["2"]["age"].item())

# A checkpoint carries the design, and loads without running code.
torch.save(model.state_dict(), "model.pt")
again = dc.normalize(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), design, at=["0", "2"])
again.load_state_dict(torch.load("model.pt", weights_only=True))
assert torch.equal(again.eval()(inputs[test], metadata=again.design.encode(people)).squeeze(1), logits)
