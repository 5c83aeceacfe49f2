"""A loop with accelerate: two processes hold one class of points each, and both learn to tell the two apart.

    mixwise launch --nproc-per-node 2 -- examples/with_accelerate.py

The lines marked + are what gossip adds to the loop, and the line marked - is what it replaces.
"""

import torch
from accelerate import Accelerator
from torch import nn

import mixwise as mw  # +

rank, world = mw.gossip.start_node()  # +
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

torch.manual_seed(rank)  # every process has its own data: points around its own center
x, y = torch.randn(160, 2) + 3 * torch.eye(2)[rank % 2], torch.full((160,), rank % 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
gossip = mw.Gossip(model, optimizer, mw.graphs.ring(world))  # +
accelerator.register_for_checkpointing(gossip)
for _ in range(5):
    for points, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(points), labels))
            gossip.step()  # +  in place of: - optimizer.step()
            optimizer.zero_grad()
accelerator.save_state(f"with-accelerate/rank-{rank}")

test = torch.cat([torch.randn(200, 2) + 3 * center for center in torch.eye(2)])
right = float((model(test).argmax(1) == torch.arange(400) // 200).float().mean())
figures = gossip.metrics()  # a collective call
if rank == 0:
    print(f"accuracy on both classes {right:.3f}   consensus distance {figures['consensus_distance']:.2e}")
    print(f"{gossip.t} mixings; a process has sent {figures['bytes_parameters'] / 1e3:.1f} kB")
accelerator.end_training()
