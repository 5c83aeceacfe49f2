"""All algorithms in one table: for `mixwise recipes` and docs/algorithms.md."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One algorithm; d is the size of a row, deg the number of neighbors with a non-zero weight."""

    name: str  # the recipe's `algorithm`
    step: str
    mixes: str
    rounds: int
    sends: str  # per node and mixing
    condition: str
    reference: str


DOUBLY = "doubly stochastic"

CATALOG = (
    Entry("dsgd", "X⁺ = WᵀX′", "X′", 1, "deg · d", DOUBLY, "Lian et al. 2017; with GME weights: HA-DSGD"),
    Entry("combine-then-adapt", "X⁺ = WᵀX − U(WᵀX)", "X", 1, "deg · d", DOUBLY, "Cattivelli and Sayed 2010"),
    Entry(
        "combine-while-adapt", "X⁺ = W₋ᵀX − U, W₋ made one mixing before", "X, during the gradients", 1, "deg · d",
        DOUBLY, "Nedić and Ozdaglar 2009",
    ),
    Entry("decoupled", "X⁺ = W_pᵀX − W_gᵀU", "X and U", 2, "2 deg · d", DOUBLY + ", both", "the paper, Algorithm 4"),
    Entry(
        "d2", "X⁺ = Wᵀ(X′ + X − X′_prev)", "X′ corrected", 1, "deg · d", "symmetric, eigenvalues above −1/3",
        "Tang et al. 2018; Yuan et al. 2019",
    ),
    Entry(
        "extra", "X⁺ = WᵀX − U + D, D⁺ = D + (WᵀX − X)/2", "X", 1, "deg · d", "symmetric", "Shi et al. 2015",
    ),
    Entry(
        "gradient-tracking", "X⁺ = WᵀX′ along Y, Y⁺ = WᵀY + G⁺ − G", "X′ and Y", 2, "2 deg · d", DOUBLY,
        "Di Lorenzo and Scutari 2016; local steps: Liu et al. 2023",
    ),
    Entry("dadam", "X⁺ = WᵀX′ after Adam", "X′", 1, "deg · d", DOUBLY, "Nazari et al. 2019"),
    Entry(
        "quasi-global", "momentum of (X − X⁺)/η", "as its inner one", 1, "deg · d", "as its inner one",
        "Lin et al. 2021",
    ),
    Entry(
        "quasi-global-adam", "Adam's moments of (X − X⁺)/‖X − X⁺‖", "as its inner one", 1, "deg · d",
        "as its inner one", "Lin et al. 2021",
    ),
    Entry("decentlam", "X⁺ = X − ηm, m⁺ = βm + (X − WᵀX′)/η", "X′", 1, "deg · d", DOUBLY, "Yuan et al. 2021"),
    Entry(
        "relay", "sums of X′ along a tree", "X′", 1, "deg in the tree · d", "no W; a spanning tree",
        "Vogels et al. 2021",
    ),
    Entry(
        "push-sum", "X⁺ = WᵀP / Wᵀw", "P = wX − U, and w", 1, "deg · (d + 1 number)", "rows sum to 1; may be directed",
        "Kempe et al. 2003; Assran et al. 2019",
    ),
    Entry(
        "choco", "X⁺ = X′ + γ(WᵀX̂ − X̂)", "Q(X′ − X̂)", 1, "deg · compressed d", DOUBLY + ", fixed",
        "Koloskova et al. 2019",
    ),
    Entry("all-reduce", "G ← mean of G", "nothing by gossip", 1, "2 (n − 1)/n · d", "no W", "a yardstick"),
    Entry("local-sgd", "X⁺ = mean of X′", "nothing by gossip", 1, "2 (n − 1)/n · d", "no W", "Stich 2019; a yardstick"),
)  # fmt: skip
