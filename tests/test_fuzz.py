"""A few hundred damaged inputs of every kind, and some kills; long campaigns: see docs/reliability.md."""

import pytest

from fuzz import KINDS, campaign
from kill_recipes import campaign as kill_campaign


def failures(kinds, seed, count):
    found = campaign(kinds, seed, count)
    return [f"{kind} --seed {seed} --only {i}\n{how}" for kind, i, how in found if how not in ("valid", "refused")]


def test_damaged_inputs_end_in_a_valid_object_or_one_line():
    assert failures(KINDS, seed=100, count=40) == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_inputs(kind):
    assert failures([kind], seed=101, count=400) == []


@pytest.mark.soak
def test_kill_9_at_any_moment_resumes_to_the_same_records():
    assert kill_campaign(kills=40)["kills"] >= 40
