"""Eight processes that hold different digits learn all ten together, each talking to its two neighbors only.

    mixwise launch --nproc-per-node 8 -- examples/torchrun_digits.py
    mixwise launch --nproc-per-node 8 -- examples/torchrun_digits.py --policy metropolis-hastings    # to compare

An ordinary PyTorch loop; the lines with `gossip` are what mixwise adds. No download: the digits come with scikit-learn.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import mixwise as mw
from mixwise.data import digits, partition

POLICIES = ["auto", "heterogeneity-aware", "metropolis-hastings"]
options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--seed", type=int, default=0)
options.add_argument("--policy", choices=POLICIES, default=POLICIES[0])
options.add_argument("--overlap", action="store_true", help="let rows travel while gradients are computed")
options = options.parse_args()

if "RANK" in os.environ:  # started by mixwise launch or torchrun; without, one process learns alone
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

# The data: each process has a few of the ten digits, and a different number of pictures.
data = digits()
train, test = data.train, data.test
share = partition.by_label(train.y, nodes=world, labels_per_node=-(-10 // world), seed=options.seed)[rank].tolist()
x, y = train.x[share], train.y[share]
if rank % 2:
    x, y = x[len(x) // 8 :], y[len(y) // 8 :]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)


def network():
    """Return a small network with layer normalization, which keeps no statistics of the data."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(model):
    """Return the share of correct answers on the common test set."""
    with torch.no_grad():
        return float((model(test.x).argmax(1) == test.y).float().mean())


torch.manual_seed(1000 * options.seed + rank)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
graph = mw.graphs.ring(world)
policy = {
    "auto": "auto",
    "heterogeneity-aware": mw.HeterogeneityAware(period=10),
    "metropolis-hastings": mw.mixing.metropolis_hastings(graph),
}[options.policy]
gossip = mw.Gossip(model, optimizer, graph, policy, overlap=options.overlap)

say = print if rank == 0 else lambda *_: None
say(f"{world} processes on a ring; rank 0 has the digits {sorted(set(y.tolist()))} and {len(y)} pictures")
start = time.perf_counter()
for epoch in range(options.epochs):
    with gossip.join():  # some have more batches than others
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            gossip.step()
    scheduler.step()
    figures, averaged = gossip.metrics(), network()
    averaged.load_state_dict(gossip.average())
    say(
        f"epoch {epoch:2}   rank 0 {accuracy(model):.3f}   averaged model {accuracy(averaged):.3f}   "
        f"consensus distance {figures['consensus_distance']:.2e}   sent {figures['bytes_parameters'] / 1e6:.1f} MB"
    )
say(f"{gossip.t} mixings in {time.perf_counter() - start:.1f} s")
if dist.is_initialized():
    dist.destroy_process_group()
