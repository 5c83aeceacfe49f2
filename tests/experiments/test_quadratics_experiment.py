"""The paper's first experiment, as its recipe runs it: on every seed, optimized weights end below fixed ones."""

import numpy as np
import pytest

from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare

EXPERIMENT = plan_experiment(load_recipe("quadratics"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
def test_heterogeneity_aware_mixing_ends_below_fixed_weights_in_all_three_metrics(seed):
    recipe, ends = EXPERIMENT.recipe, {}
    for variant, config in EXPERIMENT.runs.items():
        assert config.steps == 200
        last = list(prepare(config, seed)())[-recipe.window :]
        ends[variant] = np.array([np.mean([record.values[metric] for record in last]) for metric in recipe.metrics])
    assert (ends["gme-every-step"] < ends["dsgd-metropolis"]).all()
    assert (ends["gme-every-step"] < ends["dsgd-optimal-gap"]).all()
    assert (ends["ha-dsgd"] < ends["dsgd-metropolis"]).all()


def test_heterogeneous_pairs_on_the_ring_beat_the_largest_gap_on_a_random_placement():
    experiment = plan_experiment(load_recipe("permutations-ring"), ["steps=300", "seeds=0-2"])
    for seed in experiment.recipe.seeds:
        pairing, gap = (list(prepare(config, seed)())[-1].values for config in experiment.runs.values())
        assert all(pairing[metric] < gap[metric] for metric in experiment.recipe.metrics)
