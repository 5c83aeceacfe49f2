"""A small model with everything that Gossip must handle."""

import torch
from torch import nn


class Net(nn.Module):
    """Frozen and shared parameters, one that is a single number, and buffers of several kinds."""

    def __init__(self, width=6, outputs=3):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.first = nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.again.weight = self.first.weight
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, outputs)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        return self.scale * self.head(torch.tanh(self.again(self.norm(torch.tanh(self.first(self.frozen(x)))))))
