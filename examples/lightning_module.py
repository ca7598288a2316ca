"""The layers in a Lightning module: metadata travel in the batch, and nothing else changes."""

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import deconfound as dc

rng = np.random.default_rng(0)
lightning.seed_everything(0)
dx = rng.integers(0, 2, 400)
table = {"dx": dx, "age": rng.normal(60 + 8 * dx, 8)}
images = torch.randn(400, 1, 8, 8) + torch.tensor(table["age"] / 8 - 8, dtype=torch.float32)[:, None, None, None]
images[:, :, :4] += torch.tensor(dx, dtype=torch.float32)[:, None, None, None]

design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        network = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 1)
        )
        self.model = dc.normalize(network, design, at=nn.Linear, example=torch.zeros(2, 1, 8, 8))

    def training_step(self, batch):
        images, metadata, target = batch
        logits = self.model(images, metadata=metadata).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, target)

    def predict_step(self, batch):
        images, metadata, _ = batch
        return self.model(images, metadata=metadata).squeeze(1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


data = TensorDataset(images, torch.from_numpy(design.encode(table)), torch.tensor(dx, dtype=torch.float32))
module = Classifier()
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False)
trainer.fit(module, DataLoader(data, batch_size=50, shuffle=True))

logits = torch.cat(trainer.predict(module, DataLoader(data, batch_size=100)))
print("accuracy", ((logits > 0) == (data.tensors[2] > 0)).float().mean().item())

# Lightning's checkpoint holds β and the design like every other tensor of the module.
again = Classifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=True)
assert torch.equal(again.model.layers["3"].beta, module.model.layers["3"].beta.cpu())
