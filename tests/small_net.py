"""Small models with everything that rows and Gossip must handle."""

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


class Tied(nn.Module):
    """Two layers with one weight, a frozen layer, a buffer that stays, and dropout if asked for."""

    def __init__(self, width=8, outputs=4, dropout=0.0):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(width, outputs).requires_grad_(False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.frozen(self.dropout(torch.relu(self.second(torch.relu(self.first(x))))))
