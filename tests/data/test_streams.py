"""Every node draws from its own labels, the same samples whichever nodes are asked for beside it."""

import numpy as np
import torch

from builders import refused
from mixwise.data import LabelStreams
from mixwise.data.streams import streams
from mixwise.errors import DataError

LABELS = np.array([3, 0, 3, 1, 1, 7, 0, 3])  # label 7 occurs once; 2, 4, 5 and 6 do not occur
STREAMS = streams(LABELS, 500, labels_per_node=2, seed=1)


def test_a_node_draws_samples_of_its_own_labels_only():
    own = STREAMS.labels_of(np.arange(500))
    assert (own[:, 0] < own[:, 1]).all()
    assert set(own.ravel().tolist()) == {0, 1, 3, 7}
    drawn = LABELS[STREAMS.batches(40, seed=2).all(range(500), step=3).numpy()]
    assert (drawn[:, :, None] == own[:, None]).any(axis=2).all()
    counts = STREAMS.label_counts(LABELS, classes=8)
    assert (counts[np.arange(500)[:, None], own] == np.bincount(LABELS)[own]).all()
    assert (np.count_nonzero(counts, axis=1) == 2).all()


def test_draws_depend_on_the_seed_the_node_and_the_step_alone():
    batches = STREAMS.batches(16, seed=2)
    whole = batches.all(range(500), step=3)
    assert torch.equal(batches.all(range(100, 200), 3), whole[100:200])
    assert torch.equal(batches(77, 3), whole[77])
    more = streams(LABELS, 10**9, labels_per_node=2, seed=1).batches(16, seed=2)  # nothing is stored per node
    assert torch.equal(more.all(range(500), 3), whole)
    for other in (batches.all(range(500), 4), STREAMS.batches(16, seed=5).all(range(500), 3), whole.roll(1, 0)):
        assert (other == whole).double().mean() < 0.5


def test_draws_are_uniform():
    """Each label of a node, and each sample of a label, is equally likely: within 5 standard deviations."""
    every = LabelStreams(LABELS, 4000, labels_per_node=4)
    frequency = np.bincount(every.batches(50, seed=0).all(range(4000), 0).ravel().numpy(), minlength=8) / 200_000
    expected = 1 / 4 / np.bincount(LABELS)[LABELS]
    assert (abs(frequency - expected) < 5 * np.sqrt(expected / 200_000)).all()
    chosen = np.bincount(STREAMS.labels_of(np.arange(500)).ravel())[[0, 1, 3, 7]] / 500
    assert (abs(chosen - 1 / 2) < 5 * np.sqrt(1 / 4 / 500)).all()


def test_more_labels_than_occur_are_refused():
    refused(DataError, "labels_per_node = 5 on 3 nodes; use 1 or more nodes, and 1 to 4 labels", streams, LABELS, 3, 5)
    refused(DataError, "on 0 nodes; use 1 or more", streams, LABELS, 0, 2)
