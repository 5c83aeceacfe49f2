"""Freed memory is kept and used again."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from mixwise.cli.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()


def work():
    blocks = [np.ones(1 << 18) for _ in range(8)]  # 2 MB each

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way):
    return int(subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator only")
def test_freed_memory_is_used_again_without_new_pages():
    if (usual := faults("usual")) < 1000:
        pytest.skip("this C library keeps freed memory anyway")
    assert faults("kept") < usual / 10
