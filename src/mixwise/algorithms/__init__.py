"""Algorithms: what is computed and mixed. The weights are chosen by a policy."""

from mixwise.algorithms.all_reduce import AllReduceSGD, LocalSGD
from mixwise.algorithms.choco import Choco
from mixwise.algorithms.combine_then_adapt import CombineThenAdapt
from mixwise.algorithms.combine_while_adapt import CombineWhileAdapt
from mixwise.algorithms.compressors import Compressed, Compressor, Quantize, TopK
from mixwise.algorithms.d2 import D2
from mixwise.algorithms.dadam import DAdam
from mixwise.algorithms.decentlam import DecentLaM
from mixwise.algorithms.decoupled import DecoupledDSGD
from mixwise.algorithms.dsgd import DSGD
from mixwise.algorithms.extra import EXTRA
from mixwise.algorithms.gradient_tracking import GradientTracking
from mixwise.algorithms.push_sum import PushSum
from mixwise.algorithms.quasi_global import QuasiGlobalAdam, QuasiGlobalMomentum
from mixwise.algorithms.relay import RelaySGD
from mixwise.protocols import Algorithm

__all__ = [
    "D2",
    "DSGD",
    "EXTRA",
    "Algorithm",
    "AllReduceSGD",
    "Choco",
    "CombineThenAdapt",
    "CombineWhileAdapt",
    "Compressed",
    "Compressor",
    "DAdam",
    "DecentLaM",
    "DecoupledDSGD",
    "GradientTracking",
    "LocalSGD",
    "PushSum",
    "Quantize",
    "QuasiGlobalAdam",
    "QuasiGlobalMomentum",
    "RelaySGD",
    "TopK",
]
