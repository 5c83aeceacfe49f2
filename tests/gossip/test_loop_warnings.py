"""Mistakes in a loop that would train something else without a word: errors, or warnings that name the line."""

import gc
import re
import warnings

import pytest
import torch

import mixwise as mw
from builders import refused
from mixwise.errors import TrainingError
from mixwise.gossip.loop_warnings import LoopWarnings
from mixwise.gossip.steps import Tally
from programs import run_program

ALONE = mw.Graph(1, [])


def gossip_of(**options):
    model = torch.nn.Linear(2, 1)
    return mw.Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), ALONE, **options)


def backward(gossip):
    gossip.model(torch.ones(4, 2)).sum().backward()


@pytest.fixture
def told():
    """The warnings of a test."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


# --- optimizer.step() left in the loop ---
def test_a_step_by_hand_before_that_of_gossip_is_an_error():
    gossip = gossip_of()
    backward(gossip)
    gossip.optimizer.step()
    message = r"optimizer.step\(\) \(test_loop_warnings.py:\d+\) was called before gossip.step\(\).*remove"
    refused(TrainingError, message, gossip.step)
    gossip.mix()  # as the error says
    gossip.step()
    assert (gossip.t, gossip.steps.tally.taken) == (2, 2)


def test_a_step_that_a_scaler_took_by_hand_is_one_too():
    gossip, scaler = gossip_of(), torch.amp.GradScaler("cpu")
    scaler.scale(gossip.model(torch.ones(4, 2)).sum()).backward()
    scaler.step(gossip.optimizer)
    refused(TrainingError, "was called before gossip.step", gossip.step, scaler=scaler)
    gossip.mix()


@pytest.mark.parametrize("call", ["average", "metrics"])
def test_steps_that_are_never_mixed_are_noticed(call, told):
    gossip = gossip_of()
    for _ in range(3):
        backward(gossip)
        gossip.optimizer.step()
    for _ in range(2):  # one warning is enough
        getattr(gossip, call)()
    (warning,) = told
    assert warning.filename == __file__
    assert re.fullmatch(
        r"nothing was mixed in 3 calls of optimizer.step\(\) \(test_loop_warnings.py:\d+\); call gossip.step\(\) in "
        r"its place, or gossip.mix\(\) after it",
        str(warning.message),
    )
    del gossip
    gc.collect()
    assert len(told) == 1


@pytest.mark.parametrize("call", [None, "average", "metrics"])
def test_steps_by_hand_that_are_mixed_are_none_of_the_mistakes(call, told):
    gossip = gossip_of()
    for _ in range(3):
        for _ in range(2):
            backward(gossip)
            gossip.optimizer.step()
        gossip.mix()
        if call is not None:
            getattr(gossip, call)()
    del gossip
    gc.collect()
    assert not told


def test_the_last_steps_by_hand_are_noticed(told):
    gossip = gossip_of()
    for _ in range(3):
        gossip.step()
    gossip.optimizer.step()
    gossip.metrics()
    (warning,) = told
    expected = r"metrics\(\): 1 call of optimizer.step\(\) \(test_loop_warnings.py:\d+\) not mixed; call gossip.step"
    assert re.match(expected, str(warning.message))


def test_a_gossip_that_has_never_mixed_is_noticed_when_it_is_gone(told):
    gossip = gossip_of()
    gossip.optimizer.step()
    del gossip
    gc.collect()
    assert "nothing was mixed in 1 call of optimizer.step()" in str(told[0].message)


UNMIXED = """
import sys, torch, mixwise as mw
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gossip = mw.Gossip(model, optimizer, mw.Graph(1, []), local_steps=int(sys.argv[1]))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    {step}.step()
if len(sys.argv) > 2:
    raise ZeroDivisionError
"""


@pytest.mark.parametrize(
    ("step", "arguments", "expected"),
    [
        ("optimizer", [1], r"nothing was mixed in 3 calls of optimizer.step\(\) \(loop.py:9\); call gossip.step"),
        ("gossip", [4], "nothing was mixed: the loop ended after 3 of 4 local steps"),
        ("gossip", [2], None),
        ("optimizer", [1, "fails"], None),
    ],
)
def test_a_program_that_ends_without_a_mixing_says_so(step, arguments, expected, tmp_path):
    (tmp_path / "loop.py").write_text(UNMIXED.format(step=step))
    done = run_program(tmp_path / "loop.py", *arguments, cwd=tmp_path)
    assert (done.returncode == 0) == (len(arguments) == 1), done.stderr
    assert bool(expected) == ("nothing was mixed" in done.stderr), done.stderr
    assert re.search(expected or "", done.stderr), done.stderr


# --- local steps ---
@pytest.mark.parametrize("call", ["average", "metrics"])
def test_a_loop_that_ends_between_two_mixings_is_noticed(call, told):
    gossip = gossip_of(local_steps=4)
    for _ in range(6):
        backward(gossip)
        gossip.step()
    getattr(gossip, call)()
    assert str(told[0].message).startswith(f"{call}() between two mixings: 2 of 4 local steps are not mixed")
    assert "with gossip.join()" in str(told[0].message)


@pytest.mark.parametrize("steps", [6, 8])
def test_a_loop_that_ends_with_a_mixing_is_not(steps, told):
    gossip = gossip_of(local_steps=4)
    with gossip.join():
        for _ in range(steps):
            backward(gossip)
            gossip.step()
    gossip.metrics()
    gossip.average()
    assert not told
    assert gossip.t == 2


# --- learning rates ---
def test_learning_rates_that_differ_are_noticed_once(told):
    loop = LoopWarnings(gossip_of(), 0, Tally(1))
    loop.compare_rates({0: 0.1, 1: 0.1 * (1 + 1e-7), 3: 0.1})  # rounding
    loop.compare_rates({})
    assert not told
    loop.compare_rates({0: 0.1, 1: 0.1, 2: 0.007, 3: 0.1})
    loop.compare_rates({0: 0.1, 1: 0.2})
    (warning,) = told
    assert str(warning.message).startswith("the learning rates differ: 0.1 on ranks 0-1, 3, 0.007 on rank 2; if they")
    assert "mixwise.Gossip(…, scheduler=scheduler)" in str(warning.message)


# --- closures ---
def test_an_optimizer_that_needs_a_closure_is_explained():
    model = torch.nn.Linear(2, 1)
    gossip = mw.Gossip(model, torch.optim.LBFGS(model.parameters()), ALONE)
    refused(TrainingError, r"LBFGS computes gradients several times .*gossip.step\(closure\)", gossip.step)
    scaler = torch.amp.GradScaler("cpu")
    refused(TrainingError, "LBFGS .* which no scaler supports; omit it", gossip.step, scaler=scaler)
