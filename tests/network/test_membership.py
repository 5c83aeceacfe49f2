"""Membership: what members of a run make of an answer, and that no two parts of a broken network both continue."""

import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch.distributed as dist

from builders import refused
from mixwise.errors import NetworkError
from mixwise.network import board
from mixwise.network.board import bounded
from mixwise.network.lighthouse import Lighthouse
from mixwise.network.membership import JOINING, MEMBER, STARTING, Membership

WORLD = 4


def never(me):
    raise TimeoutError("no answer yet")


class Ranks:
    """Memberships that see the answers that a test gives them."""

    def __init__(self, stack):
        self.stack = stack
        self.all = [self.new(rank) for rank in range(WORLD)]

    def new(self, rank):
        silent = SimpleNamespace(contested=False, ask=never, close=lambda: None)
        made = Membership(rank, WORLD, lambda name: silent, "127.0.0.1", grace=0.01, timeout=60.0)
        self.stack.callback(made.close)
        return made

    def answer(self, *present):
        """One answer, which all of these see."""
        told = [asdict(membership.me) for membership in present]
        for membership in present:
            membership._see(told)

    def agree(self, *present):
        """Two such answers: in the first they count their groups, in the second they see the counts."""
        self.answer(*present)
        self.answer(*present)

    def begun(self):
        """All take part, as after a start."""
        self.agree(*self.all)
        return self.joined(*self.all)

    def joined(self, *members):
        """They have formed the group of their view."""
        for membership in members:
            membership.group = membership._tried = membership.view
            membership._begun = True
        return list(members)


@pytest.fixture
def ranks():
    with ExitStack() as stack:
        yield Ranks(stack)


def test_all_ranks_start_together_and_a_later_one_joins(ranks):
    first, *others = ranks.all
    ranks.answer(*others)
    assert {other.me.phase for other in others} == {STARTING}
    ranks.answer(*ranks.all)
    assert {membership.me.phase for membership in ranks.all} == {MEMBER}
    ranks.answer(*ranks.all)
    assert {membership.view for membership in ranks.all} == {first.view}
    assert first.view.ranks == (0, 1, 2, 3)

    again = ranks.new(0)  # rank 0 was lost and started again
    ranks.answer(again, *others)
    assert again.me.phase == JOINING
    assert [other.view.ranks for other in others] == [(1, 2, 3)] * 3  # they train on while it fetches their state
    assert [member.rank for member in again.others] == [1, 2, 3]
    again.be(MEMBER)
    ranks.answer(again, *others)
    assert {membership.view for membership in (again, *others)} == {again.view}
    assert again.view.ranks == (0, 1, 2, 3)


def test_a_rank_that_starts_is_not_alone_because_the_lighthouse_was_stopped(ranks):
    """Found by the simulation: two runs would have begun, of this rank and of the others."""
    ranks.answer(*ranks.all)
    ranks.answer(ranks.all[0])
    assert {membership.view.ranks for membership in ranks.all} == {(0, 1, 2, 3)}


def test_ranks_that_do_not_come_are_not_waited_for_without_end(ranks):
    """A process that is killed while it starts costs the timeout, and no healthy rank."""
    ranks.answer(*ranks.all[1:])
    for membership in ranks.all:
        membership._started -= 100.0
    ranks.agree(*ranks.all[1:])
    assert {membership.view.ranks for membership in ranks.all[1:]} == {(1, 2, 3)}


def test_no_name_of_a_group_is_used_twice(ranks):
    """A rank that was stopped comes back as it was: the members are those of an earlier group, whose notes remain."""
    members, names = ranks.begun(), []
    for _ in range(3):
        names.append(members[0].view.name)
        ranks.joined(*members)
        ranks.agree(*members[:-1])
        names.append(members[0].view.name)
        ranks.joined(*members[:-1])
        ranks.agree(*members)
        assert {membership.view.name for membership in members} == {members[0].view.name}
    assert len(set(names)) == len(names)


def test_a_group_that_failed_without_a_loss_is_formed_again_under_another_name(ranks):
    members = ranks.begun()
    failed = members[0].view
    with patch.object(Membership, "_form", lambda *_: None):
        members[0].timeout = 0.05
        refused(NetworkError, "has waited", members[0].connect)  # it counts, but no answer comes
        ranks.answer(*members)
        assert all(membership.has_changed for membership in members[1:])  # they are told by its count
        ranks.answer(*members)
        assert members[0].connect().name != failed.name
        assert {membership.connect().name for membership in members[1:]} == {members[0].view.name}


@pytest.mark.parametrize("patient", [True, False])
def test_a_rank_that_joins_waits_for_members_that_are_busy_and_says_so(ranks, patient, caplog):
    """An evaluation may be longer than the timeout; a member whose group cannot be formed gives up."""
    first, *_ = members = ranks.begun()
    first.timeout, attempts = 0.01, []

    def form(view, *_):
        attempts.append(view)
        if len(attempts) < 5:
            time.sleep(0.01)
            raise NetworkError("not all were ready")

    first._form, first._next = form, lambda: first.view
    if patient:
        assert first.connect(patient=True) == members[0].view
        assert "rank 0 waits until ranks 1-3 call gossip.step(), to join them" in caplog.messages
    else:
        refused(NetworkError, "rank 0 cannot connect to ranks", first.connect)


@pytest.mark.parametrize("told", [True, False], ids=["there is another view", "there is none"])
def test_a_group_that_is_being_formed_is_given_up_although_gloo_still_waits(ranks, told):
    """Gloo waits five times its timeout for a connection, and cannot be told to stop: the run stood still for 26 s."""
    first, *others = ranks.begun()
    view, connected = first.view, threading.Event()
    notes = board.Board(dist.PrefixStore(view.name, first._store))
    for place in range(1, WORLD):
        notes.write(f"ready/{place}", True)

    def connects(*args):
        if told:
            ranks.answer(first, *others[:-1])
        connected.wait()

    with patch.object(dist, "ProcessGroupGloo", connects), pytest.raises(TimeoutError):
        first._form(view, "gloo", 60.0 if told else 0.02)
    connected.set()
    assert (first.view == view) is not told
    assert not dist.is_initialized()


def test_a_call_that_might_wait_forever_is_bounded():
    ended = threading.Event()
    assert bounded(lambda: 7, 60.0) == 7
    with pytest.raises(RuntimeError, match="gone"):
        bounded(lambda: (_ for _ in ()).throw(RuntimeError("it is gone")).__next__(), 60.0)
    with pytest.raises(TimeoutError):
        bounded(ended.wait, 0.02)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        bounded(ended.wait, 60.0, lambda: True)
    assert time.monotonic() - start < 30.0
    ended.set()


def test_half_of_the_members_are_not_lost_in_one_answer(ranks):
    """A lighthouse that was stopped has forgotten those whose signs of life it has not read yet."""
    members = ranks.begun()
    ranks.answer(members[0])
    assert members[0].view.ranks == (0, 1, 2, 3)
    members[0]._halved -= 1.0  # as after the grace period
    ranks.answer(members[0])
    assert members[0].view.ranks == (0,)


@pytest.mark.parametrize("phase", [STARTING, JOINING, MEMBER])
def test_a_second_process_with_a_rank_that_is_held_changes_nothing_and_ends(ranks, phase):
    members = ranks.begun()
    group = members[0].group
    second = ranks.new(2)
    second.me = replace(second.me, phase=phase, born=members[2].me.born + 1)
    ranks.answer(second, *members)
    assert {membership.view for membership in members} == {group}
    assert [member.name for member in second.others] == [m.me.name for m in members if m is not members[2]]
    second._taken -= 100.0
    refused(NetworkError, "another process holds rank 2, so this one ends; every rank is started once", second._next)
    assert members[2]._next() == group


def test_a_rank_that_is_started_again_waits_until_its_predecessor_is_left_out(ranks):
    members = ranks.begun()
    again = ranks.new(2)
    again.me = replace(again.me, born=members[2].me.born + 1)
    ranks.answer(again, *members)
    assert (again.me.phase, again._taken is None) == (STARTING, False)
    ranks.answer(again, *members[:2], members[3])
    assert (again.me.phase, again._taken) == (JOINING, None)


@pytest.mark.parametrize("rank", [-1, WORLD, 99])
def test_a_rank_that_the_run_does_not_have_changes_nothing(ranks, rank):
    """A process that announces itself as rank 99 of 4 held up all of them until it left."""
    members = ranks.begun()
    stranger = asdict(replace(members[0].me, rank=rank, name="stranger"))
    told = [asdict(membership.me) for membership in members]
    for membership in members:
        membership._see([*told, stranger])
    assert not any(membership.has_changed for membership in members)
    assert {member.rank for member in members[0].others} == {1, 2, 3}


@pytest.mark.parametrize("words", [{}, {"rank": 0}, {"rank": "0", "phase": MEMBER}, {"rank": [], "more": 1}])
def test_the_words_of_a_stranger_change_nothing(ranks, words):
    first, *_ = members = ranks.begun()
    told = [asdict(membership.me) for membership in members]
    first._see([*told, words, told[0] | words | {"more": 1}])
    assert first.view.ranks == (0, 1, 2, 3)


def test_with_several_lighthouses_only_a_majority_continues(ranks):
    members = ranks.begun()
    for membership in members:
        membership._presence.contested = True
    ranks.answer(*members[:2])  # these two reach one lighthouse,
    ranks.answer(*members[2:])  # those another
    assert {membership.view.ranks for membership in members} == {(0, 1, 2, 3)}
    ranks.answer(*members[1:])
    assert [membership.view.ranks for membership in members] == [(0, 1, 2, 3)] + [(1, 2, 3)] * 3


def test_a_new_lighthouse_that_has_not_heard_of_all_members_leaves_none_out(ranks):
    members = ranks.begun()
    for membership in members:
        membership._unsure = float("inf")  # as after a question without an answer
    ranks.answer(*members[:3])
    assert {membership.view.ranks for membership in members} == {(0, 1, 2, 3)}


def test_a_lighthouse_that_is_not_there_is_told_with_its_address():
    pytest.importorskip("torchft")
    lighthouse = Lighthouse(["127.0.0.1:1"], "a", 1.0)
    try:
        refused(NetworkError, "no lighthouse answers at 127.0.0.1:1", lighthouse.ask, {})
    finally:
        lighthouse.close()
