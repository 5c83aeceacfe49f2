"""Algorithms from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixwise.algorithms import (
    D2,
    DSGD,
    EXTRA,
    Algorithm,
    AllReduceSGD,
    Choco,
    CombineThenAdapt,
    CombineWhileAdapt,
    DAdam,
    DecentLaM,
    DecoupledDSGD,
    GradientTracking,
    LocalSGD,
    PushSum,
    Quantize,
    QuasiGlobalAdam,
    QuasiGlobalMomentum,
    RelaySGD,
    TopK,
)
from mixwise.experiments.algorithm_config import (
    AlgorithmConfig,
    ChocoConfig,
    DecentLaMConfig,
    PlainAlgorithm,
    QuasiGlobalAdamConfig,
    QuasiGlobalConfig,
)

_PLAIN: Mapping[str, Callable[[], Algorithm]] = {
    "dsgd": DSGD,
    "combine-then-adapt": CombineThenAdapt,
    "combine-while-adapt": CombineWhileAdapt,
    "decoupled": DecoupledDSGD,
    "d2": D2,
    "extra": EXTRA,
    "gradient-tracking": GradientTracking,
    "dadam": DAdam,
    "relay": RelaySGD,
    "push-sum": PushSum,
    "all-reduce": AllReduceSGD,
    "local-sgd": LocalSGD,
}


def build_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that a part of a recipe describes."""
    match config:
        case PlainAlgorithm():
            return _PLAIN[config.kind]()
        case QuasiGlobalConfig():
            return QuasiGlobalMomentum(
                config.beta, mu=config.mu, nesterov=config.nesterov, inner=_PLAIN[config.inner]()
            )
        case QuasiGlobalAdamConfig():
            return QuasiGlobalAdam(config.betas, config.eps, inner=_PLAIN[config.inner]())
        case DecentLaMConfig():
            return DecentLaM(config.beta)
        case ChocoConfig():
            return Choco(TopK(config.top_k) if config.bits is None else Quantize(config.bits), config.gamma)
