"""The line that shows the progress of a run."""

from mixwise.experiments.runner import Progress
from mixwise.terminal import Watch


def watched(*records):
    """The lines shown for records (time, variant, step, values)."""
    now = [0.0]
    watch = Watch(clock=lambda: now[0])
    shown = []
    for now[0], variant, step, values in records:
        shown.append(watch(Progress(variant, 0, step, 1000, {"loss": 1.0, **values})))
    return shown


def test_the_rate_is_that_of_the_last_seconds():
    records = [(t, "a", 100 * t, {}) for t in range(6)] + [(5 + t, "a", 500 + t, {}) for t in range(1, 9)]
    shown = watched(*records)
    assert shown[0] == "step 1/1000, loss 1"
    assert shown[4].endswith("100 steps/s")
    assert shown[-1].endswith("1.0 steps/s")  # slower since; what was before is forgotten


def test_records_of_a_resumed_run_that_come_at_once_have_no_rate():
    shown = watched((0.0, "a", 10, {}), (1e-4, "a", 20, {}), (0.01, "a", 30, {}))
    assert not any("/s" in line for line in shown)
    assert watched((0.0, "a", 1, {}), (9.0, "a", 1, {}))[-1] == "step 2/1000, loss 1"  # nor the same step twice
    assert watched((0.0, "a", 1, {}), (4.0, "a", 2, {}))[-1].endswith("4.0 s/step")  # slow ones


def test_an_accuracy_stays_until_the_next_one_and_not_beyond_its_run():
    shown = watched((0.0, "a", 1, {"accuracy": 0.5}), (0.0, "a", 2, {}), (0.0, "b", 1, {}))
    assert ["accuracy 50.0%" in line for line in shown] == [True, True, False]
