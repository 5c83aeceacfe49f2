"""Rounding at random: up or down with the probabilities that keep the mean, so that small steps are not lost.

A bfloat16 has 8 binary digits, so that rounding to the nearest one forgets every step below 1/500 of the number.
Rounded at random, one such step in ten is taken ten times as large, and the rows still learn.
"""

from __future__ import annotations

import torch


def round_at_random(values: torch.Tensor, out: torch.Tensor, stream: torch.Generator) -> None:
    """`values`, float32, into `out`, bfloat16; the draws of a CPU's generator decide. `values` is changed.

    The lower half of the bits of a float32 is what a bfloat16 lacks: a draw is added to it, and it is cut off.

    >>> x, y = torch.full((10_000,), 1 + 2**-9), torch.empty(10_000, dtype=torch.bfloat16)
    >>> round_at_random(x, y, torch.Generator().manual_seed(0))
    >>> sorted(set(y.tolist())), round(float(y.double().mean()), 3)
    ([1.0, 1.0078125], 1.002)
    """
    draws = torch.randint(1 << 16, values.shape, generator=stream, dtype=torch.int32, device="cpu").to(values.device)
    bits = values.view(torch.int32)
    bits.add_(draws).bitwise_and_(-(1 << 16))
    out.copy_(values)
