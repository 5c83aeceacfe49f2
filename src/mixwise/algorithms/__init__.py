"""Algorithms: what is computed and mixed. The weights are chosen by a policy."""

from mixwise.algorithms.acid import ACiD
from mixwise.algorithms.all_reduce import AllReduceSGD, LocalSGD
from mixwise.algorithms.choco import Choco, Compressed, Compressor, Quantize, TopK
from mixwise.algorithms.dsgd import DSGD, CombineThenAdapt, CombineWhileAdapt, DAdam, DecoupledDSGD
from mixwise.algorithms.exact import D2, EXTRA
from mixwise.algorithms.push_sum import PushSum
from mixwise.algorithms.quasi_global import DecentLaM, QuasiGlobalAdam, QuasiGlobalMomentum
from mixwise.algorithms.relay import RelaySGD
from mixwise.algorithms.tracking import GradientTracking, MomentumTracking
from mixwise.protocols import Algorithm

__all__ = [
    "D2", "DSGD", "EXTRA", "ACiD", "Algorithm", "AllReduceSGD", "Choco", "CombineThenAdapt", "CombineWhileAdapt",
    "Compressed", "Compressor", "DAdam", "DecentLaM", "DecoupledDSGD", "GradientTracking", "LocalSGD",
    "MomentumTracking", "PushSum", "Quantize", "QuasiGlobalAdam", "QuasiGlobalMomentum", "RelaySGD", "TopK",
]  # fmt: skip
