import psutil
import pytest

from image_trees import image_tree
from programs import alive


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Images in folders: 24 of three classes for training, 12 for testing."""
    return image_tree(tmp_path_factory.mktemp("images"))


@pytest.fixture
def workers_alive():
    """Returns the processes that were started below this one since the beginning of the test and still run."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def started():
        children = psutil.Process().children(recursive=True)
        return [child for child in children if child.pid not in before and alive(child.pid)]

    return started
