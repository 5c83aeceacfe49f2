"""The passes of a node through torch.compile: one compilation for all nodes, whose modules differ in tensors only.

Sums are ordered differently than in torch's own operations, so that losses and gradients agree to rounding; dropout of
whole images draws in another order. With the same compiler, processor and number of threads the compiled code, and its
results, are the same in every process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

_log = logging.getLogger(__name__)

Pass = Callable[..., torch.Tensor]  # (module, …) -> a tensor

# Random layers draw from torch's generators, as they do without compilation.
_OPTIONS: dict[str, Any] = {"fallback_random": True}


def outputs(module: nn.Module, x: Any) -> torch.Tensor:
    """Return the outputs of a module on a batch."""
    found: torch.Tensor = module(x)
    return found


def loss_of(module: nn.Module, loss: Callable[[Any, torch.Tensor], torch.Tensor], x: Any, y: torch.Tensor) -> Any:
    """Return the loss of a module on a batch."""
    return loss(module(x), y)


class Compiler:
    """Calls `outputs` and `loss_of`, compiled if that was asked for and is possible.

    Where the first call of a compiled function fails, as it does without a C++ compiler, a log message says why, and
    everything is computed by torch's own operations.

    Args:
        wanted: whether to compile.
    """

    def __init__(self, wanted: bool) -> None:
        self.active = wanted
        self._worked: set[Pass] = set()

    def __call__(self, function: Pass, module: nn.Module, *arguments: Any) -> torch.Tensor:
        """Return `function(module, *arguments)`; images are laid out with their channels last."""
        if not self.active:
            return function(module, *arguments)
        laid_out = tuple(map(_channels_last, arguments))
        if function in self._worked:
            return _compiled(function)(module, *laid_out)
        if not self._worked:
            _log.info("compile: true: the first pass is compiled, which takes a minute or two")
        try:
            found = _compiled(function)(module, *laid_out)
        except Exception as error:  # of any part of torch.compile, or of the module
            found = function(module, *arguments)  # an error of the module is raised here, as it is without compiling
            reason = str(error).partition("\n")[0].rstrip(".")
            _log.warning(f"compile: true: torch.compile failed ({reason}); computing without it, which is slower")
            self.active = False
        self._worked.add(function)
        return found


@cache
def _compiled(function: Pass) -> Pass:
    return torch.compile(function, options=_OPTIONS)


def _channels_last(value: Any) -> Any:
    is_images = isinstance(value, torch.Tensor) and value.ndim == 4
    return value.contiguous(memory_format=torch.channels_last) if is_images else value
