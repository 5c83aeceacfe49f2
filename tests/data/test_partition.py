"""Every sample has one owner, skew follows alpha, and nodes pass through their data or draw from their labels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import cases, refused
from mixwise.data import LabelStreams, NodeBatches, Partition, partition
from mixwise.data.partition import _skewed_counts, by_group, by_label, dirichlet, iid
from mixwise.data.streams import streams
from mixwise.errors import DataError


def balanced_labels(samples: int, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(samples) % classes)


def assert_exact_cover(parts: Partition, samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(list(parts))), np.arange(samples))
    assert sum(parts.sizes) == samples
    assert min(parts.sizes) >= 1


def labels_held(parts: Partition, labels: np.ndarray, at_least: int = 1) -> np.ndarray:
    return (parts.label_counts(labels) >= at_least).sum(axis=1)


# --- exact covers ---


@given(
    nodes=st.integers(1, 25),
    extra=st.integers(0, 200),
    classes=st.integers(1, 12),
    alpha=st.sampled_from([None, 0.5, 1.0, 10.0, 1e12]),
    seed=st.integers(0, 5),
)
def test_iid_and_dirichlet_cover_exactly_with_sizes_equal_within_one(nodes, extra, classes, alpha, seed):
    samples = nodes + extra
    labels = balanced_labels(samples, classes)
    parts = iid(samples, nodes, seed) if alpha is None else dirichlet(labels, nodes, alpha, seed)
    assert_exact_cover(parts, samples)
    assert max(parts.sizes) - min(parts.sizes) <= 1


@given(data=st.data(), nodes=st.integers(1, 12), labels_per_node=st.integers(1, 4), seed=st.integers(0, 5))
def test_by_label_covers_exactly_with_few_labels_per_node(data, nodes, labels_per_node, seed):
    shards = nodes * labels_per_node
    classes = data.draw(st.integers(1, min(shards, 8)))
    rest = data.draw(st.lists(st.integers(0, classes - 1), min_size=shards, max_size=shards + 100))
    labels = np.array([*range(classes), *rest])
    if labels_per_node > classes:
        rule = f"labels_per_node = {labels_per_node}, but {classes} labels occur; use {classes} or fewer"
        refused(DataError, rule, by_label, labels, nodes, labels_per_node, seed)
        return
    parts = by_label(labels, nodes, labels_per_node, seed)
    assert_exact_cover(parts, len(labels))
    assert labels_held(parts, labels).max() <= labels_per_node


@given(groups=st.lists(st.sampled_from(["eve", "bob", "al", "flo"]), min_size=1, max_size=40))
def test_by_group_gives_every_owner_its_samples_in_sorted_order(groups):
    parts = by_group(groups)
    assert_exact_cover(parts, len(groups))
    for owner, part in zip(sorted(set(groups)), parts, strict=True):
        assert [groups[i] for i in part] == [owner] * groups.count(owner)
        assert list(part) == sorted(part)
    assert [list(part) for part in by_group(torch.tensor([10, 2, 10]))] == [[1], [0, 2]]  # sorted as numbers


# --- values ---


@cases(
    "draw",
    lambda seed: iid(500, 16, seed),
    lambda seed: dirichlet(balanced_labels(500), 16, 0.3, seed),
    lambda seed: by_label(balanced_labels(500), 16, 2, seed),
)
def test_the_seed_decides(draw):
    assert (draw(3), hash(draw(3))) == (draw(3), hash(draw(3)))
    assert draw(3) != draw(4)


def test_a_partition_is_a_value_with_its_own_copy_of_the_indices():
    mine = np.array([1, 0])
    parts = Partition((mine, [2]))
    mine[0] = 7
    assert parts == Partition(([1, 0], [2]))
    with pytest.raises(ValueError, match="read-only"):
        parts[0][0] = 5
    assert parts != "something else"
    labels = balanced_labels(300)
    assert dirichlet(torch.from_numpy(labels), 7, 1.0, 0) == dirichlet(labels.tolist(), 7, 1.0, 0)


# --- skew ---


def test_small_alpha_leaves_few_labels_per_node():
    labels, seeds = balanced_labels(5000), range(5)
    held = [np.mean([labels_held(dirichlet(labels, 16, a, s), labels, 4) for s in seeds]) for a in (0.01, 0.1, 1, 100)]
    assert held == sorted(held)
    assert held[1] < 5
    assert held[3] == 10
    counts = dirichlet(balanced_labels(10_000), 10, 1e12, 0).label_counts(balanced_labels(10_000))
    assert np.abs(counts - 100).max() <= 10  # almost iid: one sample of rounding per label


def test_a_group_of_ten_shares_a_random_slice():
    """Whatever alpha, the first ten nodes together hold a uniform sample of the data: hypergeometric counts."""
    labels, N = balanced_labels(8000), 8000
    counts = dirichlet(labels, 16, 0.05, 2).label_counts(labels)
    for group in (counts[:10], counts[10:]):
        share = group.sum() / N
        deviation = math.sqrt(share * (1 - share) * 800 * 0.9)
        assert np.abs(group.sum(axis=0) - 800 * share).max() < 5 * deviation


def reference_counts(sizes: list[int], nodes: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Quasi-global momentum's rule as published: draw over all nodes, zero the full ones, rescale."""
    share = sum(sizes) / nodes
    while True:
        counts = np.zeros((len(sizes), nodes))
        for k, size in enumerate(sizes):
            p = rng.dirichlet([alpha] * nodes) * (counts.sum(axis=0) < share)
            counts[k] = np.diff(np.floor(np.cumsum(p / p.sum()) * size), prepend=0)
        if counts.sum(axis=0).min() >= share // 2:
            return counts


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_the_skew_is_that_of_the_published_scheme(alpha):
    """Mean Σ_k c_ki² over many draws, ours and the reference's, within 4 standard errors of their difference."""
    sizes, draws = [100] * 10, 400
    counts = [_skewed_counts(sizes, range(6), alpha, np.random.default_rng(seed)) for seed in range(draws)]
    assert all(list(each.sum(axis=1)) == sizes for each in counts)
    assert min(each.sum(axis=0).min() for each in counts) >= sum(sizes) // 12  # half of a share
    ours = [(each**2).sum() for each in counts]
    theirs = [(reference_counts(sizes, 6, alpha, np.random.default_rng(10**6 + s)) ** 2).sum() for s in range(draws)]
    error = math.sqrt((np.var(ours) + np.var(theirs)) / draws)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error


def test_by_label_gives_equal_nodes_when_labels_are_equally_frequent():
    labels = balanced_labels(6000, 10)
    parts = by_label(labels, 20, 3, 0)  # 60 shards, 6 per label
    assert set(parts.sizes) == {300}


# --- errors ---


@cases(
    "split, message",
    (lambda: iid(torch.arange(5), 2), r"samples is an object of type Tensor; pass their number, .*len\(data\)"),
    (lambda: iid(5, 7, 0), "nodes = 7 for 5 samples; every node needs a sample: use 1 to 5"),
    (lambda: dirichlet([0, 1], 2, 0.0, 0), r"alpha = 0\.0; it must be above 0"),
    (lambda: dirichlet([0, 1], 2, math.nan, 0), "alpha = nan"),
    (lambda: dirichlet([0, 1], 2, math.inf, 0), "without skew, use `iid`"),
    (lambda: dirichlet([0.5, 1.0], 2, 1.0, 0), "labels of shape"),
    (lambda: by_label([0, 1, 2], 2, 1, 0), "2 shards; use at least one for each of 3 labels"),
    (lambda: by_label([0, 1, 2], 2, 2, 0), "4 shards.* at most one for 3 samples"),
    (lambda: by_group([[1, 2]]), "expected the id of an owner per sample"),
    (lambda: Partition(()), "over no nodes"),
    (lambda: Partition(([0], [])), "node 1 of 2 has no data"),
    (lambda: Partition(([0.0], [1.0])), "node 0 holds shape"),
    (lambda: Partition(([0, 1], [2, 1])), r"index 1 occurs twice \(nodes 0 and 1\)"),
    (lambda: Partition(([0, 1], [3])), "node 1 holds index 3, but the partition has 3 indices"),
    (lambda: partition.label_counts([0, 5], [[0]], 5), "labels range from 0 to 5, expected 0 to 4"),
    # Two labels in one piece each cannot feed ten nodes.
    (
        lambda: dirichlet(balanced_labels(1000, 2), 10, 1e-6, 0),
        "nodes 0 to 9, 2 labels, .* 50 samples; raise",
    ),
    (lambda: NodeBatches(iid(4, 2, 0), 0, 0), "batch = 0"),
    (lambda: streams(LABELS, 3, 5), "labels_per_node = 5 on 3 nodes; use 1 or more nodes, and 1 to 4 labels"),
    (lambda: streams(LABELS, 0, 2), "on 0 nodes; use 1 or more"),
    (lambda: NodeBatches(iid(4, 2, 0), 1, 0)(2, 0), "node = 2, step = 0; the partition has nodes 0 to 1"),
    (lambda: NodeBatches(iid(4, 2, 0), 1, 0)(0, -1), "step = -1; .* steps count from 0"),
)
def test_impossible_partitions_and_batches_are_rejected_with_the_reason(split, message):
    refused(DataError, message, split)


# --- batches ---
PARTS = Partition(([3, 0, 6, 7, 8], [1], [2, 5, 4], np.arange(9, 21)))


@given(batch=st.integers(1, 30), node=st.integers(0, 3), seed=st.integers(0, 3))
def test_each_pass_covers_the_data_of_a_node_exactly_once(batch, node, seed):
    own = PARTS[node]
    steps = math.lcm(len(own), batch) // batch * 2
    batches = NodeBatches(PARTS, batch, seed)
    drawn = [batches(node, step) for step in range(steps)]
    assert {(each.dtype, each.shape) for each in drawn} == {(torch.int64, (batch,))}
    for one_pass in torch.cat(drawn).reshape(-1, len(own)):
        assert sorted(one_pass.tolist()) == sorted(own)


@given(data=st.data(), batch=st.integers(1, 20))
def test_random_access_equals_running_through(data, batch):
    batches, fresh = NodeBatches(PARTS, batch, seed=5), NodeBatches(PARTS, batch, seed=5)
    in_order = [fresh.all(range(4), step) for step in range(10)]
    for _ in range(10):
        node, step = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
        assert torch.equal(batches(node, step), in_order[step][node])


def test_only_orders_under_way_are_kept():
    batches = NodeBatches(iid(100, 4, 0), 10, seed=0)
    for step in range(20):
        batches(2, step)
    assert sum(len(orders) for orders in batches._orders.values()) <= 2


def test_orders_differ_between_passes_nodes_and_seeds():
    parts = Partition((np.arange(50), np.arange(50, 100)))
    first = NodeBatches(parts, 50, 0)(0, 0)
    others = [
        NodeBatches(parts, 50, seed)(node, step) - 50 * node for seed, node, step in [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    ]
    assert all(not torch.equal(first, other) for other in others)
    assert torch.equal(first, NodeBatches(parts, 50, 0)(0, 0))


# --- streams: every node draws from its own labels, the same samples whichever nodes are asked for beside it ---
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
