"""Runs pytest under the code paths of several processors: `python tests/processors.py -m numerics`.

Torch, OpenBLAS, MKL and NumPy choose their kernels by the processor they find, and environment variables make them
choose others. Paths that this processor cannot execute, and its own, which `make test` takes, are left out with a word.
"""

import os
import subprocess
import sys

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from torch.backends.cpu import get_cpu_capability

DISPATCHED = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
AVX2, AVX512 = __cpu_features__.get("AVX2"), __cpu_features__.get("AVX512F")

# name: whether this processor can do it, then threads, torch, OpenBLAS, MKL, and what NumPy must do without
PROCESSORS = {
    "no vector extensions": (True, 1, "default", "Sandybridge", "COMPATIBLE", DISPATCHED),
    "AVX2, 2 threads": (AVX2, 2, "avx2", "Haswell", "AVX2", ""),  # OpenBLAS has the same kernels for Zen
    "AVX-512, 2 threads": (AVX512, 2, "avx512", "SkylakeX", "AVX512", ""),
}


def environment(threads: int, aten: str, openblas: str, mkl: str, numpy_without: str) -> dict[str, str]:
    """The variables by which the libraries take these paths."""
    instructions = "SSE4_2" if mkl == "COMPATIBLE" else mkl
    return {
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "ATEN_CPU_CAPABILITY": aten,
        "OPENBLAS_CORETYPE": openblas,
        "MKL_CBWR": mkl,
        "MKL_ENABLE_INSTRUCTIONS": instructions,
        "NPY_DISABLE_CPU_FEATURES": numpy_without,
    }


def main(arguments: list[str]) -> int:
    failed = []
    for name, (possible, *paths) in PROCESSORS.items():
        if not possible:
            print(f"--- {name}: left out, this processor ({get_cpu_capability()}) cannot execute it", flush=True)
            continue
        if paths[1].upper() == get_cpu_capability():
            print(f"--- {name}: left out, it is this processor's own path, which make test takes", flush=True)
            continue
        variables = environment(*paths)
        print(f"--- {name}: {' '.join(f'{key}={value}' for key, value in variables.items())}", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        if subprocess.run(command, env={**os.environ, **variables}, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed under: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
