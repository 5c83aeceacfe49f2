"""What all processes do together before the first mixing: tell each other who they are, and begin at one point."""

from __future__ import annotations

from hashlib import blake2b

import torch
import torch.distributed as dist

from mixwise.network.transfer import Message, Round
from mixwise.network.transport import Transport


def place() -> tuple[int, int] | None:
    """The rank of this process and how many there are; None without a process group."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def texts_of_all(text: str, transport: Transport) -> list[str]:
    """What each process has to say, by rank; long texts travel only if they differ."""
    data = text.encode()
    digest = torch.frombuffer(bytearray(blake2b(data, digest_size=24).digest()), dtype=torch.int64)
    heads = _all_rows(torch.cat([digest, torch.tensor([len(data)])]), transport)
    if bool((heads == heads[0]).all()):
        return [text] * transport.world
    lengths = heads[:, -1].tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = _all_rows(padded, transport)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]


def spread(tensor: torch.Tensor, transport: Transport) -> None:
    """Give every process the values of rank 0, in place; in each of log₂ n rounds, all who have them pass them on."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)  # as bytes: not every type can be sent
    reach = 1
    while reach < transport.world and data.numel() > 0:
        sends, receives = [], []
        if transport.rank < reach and transport.rank + reach < transport.world:
            sends.append(Message(transport.rank + reach, data))
        elif reach <= transport.rank < 2 * reach:
            receives.append(Message(transport.rank - reach, data))
        transport.post([Round(sends, receives)], "first values", None).wait()
        reach *= 2
    with torch.no_grad():
        tensor.copy_(data.view(tensor.dtype).view(tensor.shape))


def _all_rows(row: torch.Tensor, transport: Transport) -> torch.Tensor:
    """The rows of all processes, (world, k), on the processor."""
    rows = row.to(transport.default_device).repeat(transport.world, 1)
    own = rows[transport.rank].clone()
    peers = [rank for rank in range(transport.world) if rank != transport.rank]
    sends, receives = [Message(peer, own) for peer in peers], [Message(peer, rows[peer]) for peer in peers]
    transport.post([Round(sends, receives)], "comparing the processes", None).wait()
    return rows.cpu()
