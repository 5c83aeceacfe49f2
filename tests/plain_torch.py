"""The oracle of training on rows: ordinary modules with optimizers of their own, in plain PyTorch."""

import copy
import math

import torch
from torch import nn

from mixwise.data import NodeBatches


def backward(module, task, node, step):
    """The loss of a node's batch; the parameters get its gradients."""
    index = NodeBatches(task.partition, task.batch, task.seed)(node, step)
    x = task.data.x[index]
    if x.dtype != torch.int64:
        x = x.to(task.dtype) / (255 if x.dtype == torch.uint8 else 1)
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(x), task.data.y[index])
    loss.backward()
    return loss.detach()


def trained(task, W, make, steps, clip=math.inf, buffers=False):
    """The modules of all nodes after steps of the optimizers that `make` makes, each followed by a mixing with W.

    The gradients of a node are clipped, and `buffers` mixed as the parameters are.
    """
    modules = [copy.deepcopy(task.template) for _ in range(task.nodes)]
    optimizers, weights = [make(module) for module in modules], torch.from_numpy(W.to_dense())
    for t in range(steps):
        for node, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            backward(module, task, node, t)
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            shorter = (clip / nn.utils.get_total_norm(gradients)).clamp(max=1)
            for gradient in gradients:
                gradient *= shorter
            optimizer.step()
        values = [[*m.parameters(), *(b for b in m.buffers() if buffers and b.is_floating_point())] for m in modules]
        for same in zip(*values, strict=True):
            mixed = torch.einsum("ij,i...->j...", weights, torch.stack([value.data for value in same]))
            for value, new in zip(same, mixed, strict=True):
                value.data.copy_(new)
    return modules
