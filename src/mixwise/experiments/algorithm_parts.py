"""The declarations of the algorithms, until the classes in `mixwise.algorithms` are declared themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixwise import algorithms
from mixwise.algorithms.compressors import Compressor, Quantize, TopK
from mixwise.errors import ConfigError
from mixwise.parts import Positive, Share, Unit, family, part
from mixwise.seeding import stream

DOUBLY = "doubly stochastic"
INNER = "as its inner one"


@family("algorithm")
@dataclass(frozen=True)
class AlgorithmPart:
    """An algorithm of a recipe."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        raise NotImplementedError


@part(
    "dsgd", title="D-SGD", cite="Lian et al. 2017; with GME weights: HA-DSGD",
    step="X⁺ = WᵀX′", mixes="X′", rounds=1, sends="deg · d", condition=DOUBLY,
)  # fmt: skip
class DSGD(AlgorithmPart):
    """Decentralized SGD."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.DSGD()


@part(
    "combine-then-adapt", title="combine-then-adapt", cite="Cattivelli and Sayed 2010",
    step="X⁺ = WᵀX − U(WᵀX)", mixes="X", rounds=1, sends="deg · d", condition=DOUBLY,
)  # fmt: skip
class CombineThenAdapt(AlgorithmPart):
    """Gradients at the mixed rows."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.CombineThenAdapt()


@part(
    "combine-while-adapt", title="combine-while-adapt", cite="Nedić and Ozdaglar 2009",
    step="X⁺ = W₋ᵀX − U, W₋ made one mixing before", mixes="X, during the gradients", rounds=1, sends="deg · d",
    condition=DOUBLY,
)  # fmt: skip
class CombineWhileAdapt(AlgorithmPart):
    """Mixing while the gradients are computed."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.CombineWhileAdapt()


@part(
    "decoupled", title="decoupled D-SGD", cite="the paper, Algorithm 4",
    step="X⁺ = W_pᵀX − W_gᵀU", mixes="X and U", rounds=2, sends="2 deg · d", condition=f"{DOUBLY}, both",
)  # fmt: skip
class Decoupled(AlgorithmPart):
    """One matrix for the parameters, one for the updates."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.DecoupledDSGD()


@part(
    "d2", title="D²", cite="Tang et al. 2018; Yuan et al. 2019",
    step="X⁺ = Wᵀ(X′ + X − X′_prev)", mixes="X′ corrected", rounds=1, sends="deg · d",
    condition="symmetric, eigenvalues above −1/3",
)  # fmt: skip
class D2(AlgorithmPart):
    """D²."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.D2()


@part(
    "extra", title="EXTRA", cite="Shi et al. 2015",
    step="X⁺ = WᵀX − U + D, D⁺ = D + (WᵀX − X)/2", mixes="X", rounds=1, sends="deg · d", condition="symmetric",
)  # fmt: skip
class EXTRA(AlgorithmPart):
    """EXTRA."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.EXTRA()


@part(
    "gradient-tracking", title="gradient tracking",
    cite="Di Lorenzo and Scutari 2016; local steps: Liu et al. 2023",
    step="X⁺ = WᵀX′ along Y, Y⁺ = WᵀY + G⁺ − G", mixes="X′ and Y", rounds=2, sends="2 deg · d", condition=DOUBLY,
)  # fmt: skip
class GradientTracking(AlgorithmPart):
    """Gradient tracking."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.GradientTracking()


@part(
    "dadam", title="D-Adam", cite="Nazari et al. 2019",
    step="X⁺ = WᵀX′ after Adam", mixes="X′", rounds=1, sends="deg · d", condition=DOUBLY,
)  # fmt: skip
class DAdam(AlgorithmPart):
    """D-SGD whose optimizer is Adam."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.DAdam()


@part(
    "relay", title="RelaySGD", cite="Vogels et al. 2021",
    step="sums of X′ along a tree", mixes="X′", rounds=1, sends="deg in the tree · d",
    condition="no W; a spanning tree",
)  # fmt: skip
class Relay(AlgorithmPart):
    """Sums that are relayed along a tree."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.RelaySGD()


@part(
    "push-sum", title="push-sum", cite="Kempe et al. 2003; Assran et al. 2019",
    step="X⁺ = WᵀP / Wᵀw", mixes="P = wX − U, and w", rounds=1, sends="deg · (d + 1 number)",
    condition="rows sum to 1; may be directed",
)  # fmt: skip
class PushSum(AlgorithmPart):
    """Stochastic gradient push."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.PushSum()


@part(
    "all-reduce", title="all-reduce SGD", cite="a yardstick",
    step="G ← mean of G", mixes="nothing by gossip", rounds=1, sends="2 (n − 1)/n · d", condition="no W",
)  # fmt: skip
class AllReduce(AlgorithmPart):
    """SGD with averaged gradients."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.AllReduceSGD()


@part(
    "local-sgd", title="local SGD", cite="Stich 2019; a yardstick",
    step="X⁺ = mean of X′", mixes="nothing by gossip", rounds=1, sends="2 (n − 1)/n · d", condition="no W",
)  # fmt: skip
class LocalSGD(AlgorithmPart):
    """SGD whose rows are averaged now and then."""

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.LocalSGD()


def _check_inner(inner: AlgorithmPart) -> None:
    if not isinstance(inner, DSGD | Relay | D2 | PushSum):
        raise ConfigError("inner: the momentum runs on dsgd, relay, d2 or push-sum; take one of them")


@part(
    "quasi-global", title="quasi-global momentum", cite="Lin et al. 2021",
    step="momentum of (X − X⁺)/η", mixes=INNER, rounds=1, sends="deg · d", condition=INNER,
    note="It owns its momentum: the optimizer is SGD without one",
)  # fmt: skip
@dataclass(frozen=True)
class QuasiGlobalMomentum(AlgorithmPart):
    """Momentum of the movement after mixing; `inner` does the mixing."""

    beta: Unit = 0.9
    mu: Unit | None = None
    nesterov: bool = True
    inner: AlgorithmPart = DSGD()

    def __post_init__(self) -> None:
        _check_inner(self.inner)

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        inner = self.inner.build(seed)
        return algorithms.QuasiGlobalMomentum(self.beta, mu=self.mu, nesterov=self.nesterov, inner=inner)


@part(
    "quasi-global-adam", title="quasi-global Adam", cite="Lin et al. 2021",
    step="Adam's moments of (X − X⁺)/‖X − X⁺‖", mixes=INNER, rounds=1, sends="deg · d", condition=INNER,
    note="The optimizer is SGD without momentum",
)  # fmt: skip
@dataclass(frozen=True)
class QuasiGlobalAdam(AlgorithmPart):
    """Adam whose moments are made of the movement after mixing."""

    betas: tuple[Unit, Unit] = (0.9, 0.999)
    eps: Positive = 1e-8
    inner: AlgorithmPart = DSGD()

    def __post_init__(self) -> None:
        _check_inner(self.inner)

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.QuasiGlobalAdam(self.betas, self.eps, inner=self.inner.build(seed))


@part(
    "decentlam", title="DecentLaM", cite="Yuan et al. 2021",
    step="X⁺ = X − ηm, m⁺ = βm + (X − WᵀX′)/η", mixes="X′", rounds=1, sends="deg · d", condition=DOUBLY,
    note="The optimizer is SGD without momentum",
)  # fmt: skip
@dataclass(frozen=True)
class DecentLaM(AlgorithmPart):
    """Momentum of the whole movement of a step, mixing included."""

    beta: Unit = 0.9

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        return algorithms.DecentLaM(self.beta)


@part(
    "choco", title="CHOCO-SGD", cite="Koloskova et al. 2019",
    step="X⁺ = X′ + γ(WᵀX̂ − X̂)", mixes="Q(X′ − X̂)", rounds=1, sends="deg · compressed d",
    condition=f"{DOUBLY}, fixed",
    former={
        "top_k": lambda share: {"compressor": {"kind": "top-k", "share": share}},
        "bits": lambda bits: {} if bits is None else {"compressor": {"kind": "quantize", "bits": bits}},
    },
)  # fmt: skip
@dataclass(frozen=True)
class Choco(AlgorithmPart):
    """Compressed gossip."""

    gamma: Share = 0.1
    compressor: Compressor = TopK()

    def build(self, seed: int) -> algorithms.Algorithm:
        """The algorithm, for one run."""
        compressor = self.compressor
        if isinstance(compressor, Quantize):
            compressor = replace(compressor, seed=stream(seed, "compressor"))
        return algorithms.Choco(compressor, self.gamma)
