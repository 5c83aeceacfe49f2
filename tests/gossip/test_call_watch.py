"""Ranks whose calls differ are named; ranks that are only at different calls of the same program are not."""

from hypothesis import given
from hypothesis import strategies as st

from mixwise.gossip.call_watch import difference

CALLS = st.sampled_from(["step()", "metrics()", "average()"])


@st.composite
def programs(draw):
    """The calls of one program, and for some ranks which of them they remember."""
    calls = list(enumerate(draw(st.lists(CALLS, min_size=2, max_size=12)), 1))
    spans = draw(st.lists(st.tuples(st.integers(0, len(calls)), st.integers(0, len(calls))), min_size=2, max_size=4))
    return {
        rank: {"calls": calls[min(span) : max(span)], "place": f"train.py:{rank}", "error": "", "end": ""}
        for rank, span in enumerate(spans)
    }


@given(programs())
def test_ranks_that_are_slow_or_ahead_are_never_accused(told):
    assert difference(told) is None


@given(programs(), st.data())
def test_a_call_that_differs_is_named_if_another_rank_has_made_one_at_that_number(told, data):
    rank = data.draw(st.sampled_from(sorted(told)))
    calls = told[rank]["calls"]
    if not calls:
        return
    index = data.draw(st.integers(0, len(calls) - 1))
    number, made = calls[index]
    told[rank]["calls"] = [*calls[:index], (number, "load_state_dict()"), *calls[index + 1 :]]
    found = difference(told)
    if any(number in dict(status["calls"]) for other, status in told.items() if other != rank):
        assert f"rank {rank} calls gossip.load_state_dict()" in found
        assert f"gossip.{made}" in found
        assert (f"gossip.load_state_dict() (train.py:{rank})" in found) == (index == len(calls) - 1)
        assert ("gossip.join()" in found) == (made == "step()")
    else:
        assert found is None


def test_the_error_with_which_a_rank_has_stopped_is_the_reason():
    """It was reported as one that has finished, with advice about join()."""
    calls = [(1, "step()"), (2, "step()")]
    waiting = {"calls": calls, "place": "train.py:5", "error": "", "end": ""}
    ended = {"calls": calls[:1], "place": "", "error": "lower the learning rate", "end": "finished"}
    assert difference({0: waiting, 1: ended}) == "rank 1 has stopped with an error: lower the learning rate"
    assert "rank 1 has finished after 1 collective calls" in difference({0: waiting, 1: ended | {"error": ""}})
    assert difference({0: waiting, 1: ended | {"end": ""}}) is None  # it may catch the error and go on
