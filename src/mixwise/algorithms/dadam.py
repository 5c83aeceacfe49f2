"""DAdam: Adam on every node, gossip on the parameters (Nazari et al. 2019); the baseline of the paper's Table 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mixwise.algorithms.dsgd import DSGD
from mixwise.parts import part
from mixwise.protocols import Needs


@part(
    "dadam", title="D-Adam", cite="Nazari et al. 2019",
    step="X⁺ = WᵀX′ after Adam", mixes="X′", rounds=1, sends="deg · d", condition="doubly stochastic",
)  # fmt: skip
@dataclass(frozen=True)
class DAdam(DSGD):
    """X⁺ = Wᵀ X′ with X′ the step of Adam or AdamW."""

    needs: ClassVar[Needs] = Needs(optimizer="adam")
