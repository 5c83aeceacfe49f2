"""A schedule that Gossip steps is where the run is; one that the loop steps too, or that cannot follow, is refused."""

import copy
import io

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

import mixwise as mw
from builders import cases, refused
from mixwise.errors import TrainingError

ALONE = mw.Graph(1, [])
SCHEDULES = {
    "cosine": lambda o: CosineAnnealingLR(o, 12),
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "steps": lambda o: MultiStepLR(o, [2, 5]),
    "one cycle": lambda o: OneCycleLR(o, 0.3, total_steps=12),  # changes the momentum as well
    "chain": lambda o: ChainedScheduler([ConstantLR(o, total_iters=3), ExponentialLR(o, 0.9)]),
    "warm-up": lambda o: SequentialLR(o, [ConstantLR(o, total_iters=9), CosineAnnealingLR(o, 9)], [3]),
}


def parts(schedule="cosine"):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, SCHEDULES[schedule](optimizer)


def steps_of(model, optimizer, step, count):
    """Take steps; return the learning rate and the momentum of each, and those that come next."""
    seen = []
    for number in range(count):
        seen.append([optimizer.param_groups[0][name] for name in ("lr", "momentum")])
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + number)).square().sum().backward()
        step()
    return [*seen, [optimizer.param_groups[0][name] for name in ("lr", "momentum")]]


def gossip_of(schedule="cosine", **options):
    model, optimizer, scheduler = parts(schedule)
    return mw.Gossip(model, optimizer, ALONE, scheduler=scheduler, **options), scheduler


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rates_are_those_of_a_loop_that_steps_the_scheduler(schedule, local_steps):
    model, optimizer, scheduler = parts(schedule)
    expected = steps_of(model, optimizer, lambda: (optimizer.step(), scheduler.step()), 9)
    gossip, _ = gossip_of(schedule, local_steps=local_steps)
    assert steps_of(gossip.model, gossip.optimizer, gossip.step, 9) == expected


def test_a_mixing_by_hand_is_a_step_of_the_schedule():
    gossip, scheduler = gossip_of()
    steps_of(gossip.model, gossip.optimizer, lambda: (gossip.optimizer.step(), gossip.mix()), 4)
    assert scheduler.last_epoch == 4


def test_a_step_that_a_scaler_skips_is_a_step_of_the_schedule():
    """So all ranks agree on the step of the run, though a scaler may skip on one of them only."""
    gossip, scheduler = gossip_of()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(gossip.model(torch.full((1, 3), torch.inf)).sum()).backward()
    gossip.step(scaler=scaler)
    assert (scheduler.last_epoch, gossip.steps.tally.taken) == (1, 0)


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_state_of_gossip_has_the_schedule(schedule, local_steps):
    whole, _ = gossip_of(schedule, local_steps=local_steps)
    rates = steps_of(whole.model, whole.optimizer, whole.step, 10)
    first, _ = gossip_of(schedule, local_steps=local_steps)
    steps_of(first.model, first.optimizer, first.step, 4)
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in (first.model, first.optimizer, first)], saved)
    saved.seek(0)
    second, _ = gossip_of(schedule, local_steps=local_steps)
    for part, state in zip((second.model, second.optimizer, second), torch.load(saved, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert steps_of(second.model, second.optimizer, second.step, 6) == rates[4:]
    for gossip in (first, whole, second):
        gossip.mix()  # what is left of local steps


def test_a_schedule_may_begin_later_than_the_run():
    """For instance in a new `Gossip` on a model that was trained before."""
    model, optimizer, scheduler = parts()
    before = steps_of(model, optimizer, lambda: (optimizer.step(), scheduler.step()), 9)
    model, optimizer, scheduler = parts()
    steps_of(model, optimizer, lambda: (optimizer.step(), scheduler.step()), 4)
    gossip = mw.Gossip(model, optimizer, ALONE, scheduler=scheduler)
    assert steps_of(model, optimizer, gossip.step, 5) == before[4:]


# --- mistakes ---
def test_a_scheduler_that_the_loop_steps_as_well_is_refused():
    gossip, scheduler = gossip_of()
    step = gossip.step
    message = "the scheduler is at step 2, but Gossip has left it at 1: .* remove scheduler.step"
    refused(TrainingError, message, steps_of, gossip.model, gossip.optimizer, lambda: (step(), scheduler.step()), 3)


@cases(
    "make, message",
    (lambda o: 5, "scheduler is 5; pass the one of your loop, such as"),
    (lambda o: CosineAnnealingLR, "scheduler is the class CosineAnnealingLR; pass"),
    (ReduceLROnPlateau, r"ReduceLROnPlateau changes the rate by a loss.*gossip.metrics\(\)\[\"loss\"\]"),
    (lambda o: parts()[2], "was made for another optimizer than that of Gossip"),
)
def test_a_scheduler_that_cannot_follow_is_refused(make, message):
    model, optimizer, _ = parts()
    refused(TrainingError, message, mw.Gossip, model, optimizer, ALONE, scheduler=make(optimizer))


def test_a_schedule_that_ends_before_the_run_is_refused():
    gossip, _ = gossip_of("one cycle")
    refused(TrainingError, "the scheduler ends before the run does: Tried to step 13", steps_of,
            gossip.model, gossip.optimizer, gossip.step, 13)  # fmt: skip


def test_a_state_with_a_scheduler_needs_one():
    (gossip, _), plain = gossip_of(), mw.Gossip(*parts()[:2], ALONE)
    with_one, without = copy.deepcopy(gossip.state_dict()), copy.deepcopy(plain.state_dict())
    refused(TrainingError, "saved with a scheduler; pass one", plain.load_state_dict, with_one)
    refused(TrainingError, "saved without a scheduler; leave it out", gossip.load_state_dict, without)
