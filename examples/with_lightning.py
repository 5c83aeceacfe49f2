"""A Lightning module: two processes hold one class of points each, and both learn to tell the two apart.

    mixwise launch --nproc-per-node 2 -- examples/with_lightning.py

The lines marked + are what gossip adds.
"""

import lightning
import torch
from torch import nn

import mixwise as mw  # +

rank, world = mw.gossip.start_node()  # +


class Classifier(lightning.LightningModule):
    """A small network for points of two classes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        points, labels = batch
        loss = nn.functional.cross_entropy(self.net(points), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


torch.manual_seed(rank)  # every process has its own data: points around its own center
x, y = torch.randn(160, 2) + 3 * torch.eye(2)[rank % 2], torch.full((160,), rank % 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)
model = Classifier()
callback = mw.gossip.lightning_callback(mw.graphs.ring(world))  # +
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=5,
    accumulate_grad_batches=2,
    default_root_dir=f"with-lightning/rank-{rank}",  # every process saves its own checkpoints
    callbacks=[callback],  # +
)
trainer.fit(model, loader)

test = torch.cat([torch.randn(200, 2) + 3 * center for center in torch.eye(2)])
right = float((model.net(test).argmax(1) == torch.arange(400) // 200).float().mean())
figures = callback.gossip.metrics()  # a collective call
if rank == 0:
    print(f"accuracy on both classes {right:.3f}   consensus distance {figures['consensus_distance']:.2e}")
    print(f"{callback.gossip.t} mixings; a process has sent {figures['bytes_parameters'] / 1e3:.1f} kB")
