import os
import signal
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported: no test asks the hub for anything

# Virtual machines may announce AMX without executing it: bfloat16 products would kill the tests and what they start.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A shared machine is sometimes slow, and a test that passes must pass again: no deadline, the same few examples.
settings.register_profile("mixwise", max_examples=20, deadline=None, derandomize=True, print_blob=False)
settings.load_profile("mixwise")

# Started in the background, a shell lets its processes ignore Ctrl-C, and those that tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items):
    """Keep the tests of a file in one worker (--dist loadgroup), so that what they share is made once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    long = ["processes", "browser"]  # these begin (with --no-loadscope-reorder), so that no worker waits in the end
    groups = [item.get_closest_marker("xdist_group").args[0] for item in items]
    first = {group: long.index(group) if group in long else len(long) for group in groups}
    items[:] = [item for _, item in sorted(zip(groups, items, strict=True), key=lambda pair: first[pair[0]])]


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks():
    """Nothing is synced to a disk, except in tests of that."""
    with patch("mixwise.storage._fsync"):
        yield


@pytest.fixture(scope="module")
def no_pictures():
    """Experiments leave no figures and no report."""
    import run_folders  # here: after the environment is set

    with run_folders.no_pictures():
        yield


@pytest.fixture
def one_thread():
    """The last bits of some gradients depend on the number of threads."""
    import torch  # here: after the environment is set

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of its own for tokens and features."""
    monkeypatch.setenv("MIXWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mixwise(capfd, tmp_path, monkeypatch):
    """Runs the command line in this process, in a folder of its own; the result is named as subprocess.run does."""
    from mixwise import cli  # here: most tests do without it

    monkeypatch.chdir(tmp_path)

    def run(*words):
        with patch.object(sys, "argv", ["mixwise", *map(str, words)]), pytest.raises(SystemExit) as end:
            cli.main()
        printed = capfd.readouterr()
        return SimpleNamespace(returncode=end.value.code, stdout=printed.out, stderr=printed.err)

    return run
