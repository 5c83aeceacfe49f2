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


def test_on_the_ring_both_placement_and_weights_matter_and_pairs_of_equal_nodes_are_the_worst():
    """Four cells, with the paper's two in opposite corners: what differs between those has two causes."""
    experiment = plan_experiment(load_recipe("permutations-ring"), ["steps=300", "seeds=0-2"])
    for seed in experiment.recipe.seeds:
        end = {name: list(prepare(run, seed)())[-1].values for name, run in experiment.runs.items()}
        distance = {name: values["distance_to_optimum"] for name, values in end.items()}
        order = ["alternating-pairs", "alternating-optimal-gap", "random-optimal-gap", "random-pairs"]
        assert sorted(distance, key=distance.__getitem__) == order
        # Pairs of equal nodes reach their own optimum: nothing is left to mix, far from the common one.
        assert end["random-pairs"]["gradient_mixing_error"] < 1e-3 * end["random-optimal-gap"]["gradient_mixing_error"]
