import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipodes import schedules
from antipodes.schedules import constant, cosine, interpolate, learning_rate, linear, step


def test_constant_stays():
    assert [constant(0.3)(progress) for progress in (0, 0.5, 1)] == [0.3, 0.3, 0.3]


def test_linear_arrives_and_stays():
    ring = linear(1.0, 0.1, until=0.25)
    assert [ring(progress) for progress in (0.0, 0.125, 0.25, 0.7, 1.0)] == pytest.approx([1.0, 0.55, 0.1, 0.1, 0.1])


def test_cosine_is_sanes_formula():
    # mu_t = m2 - (m2 - m1)(cos(pi t / T) + 1) / 2
    low, high = 0.5, 10.0
    for progress in (0.0, 0.2, 0.5, 0.9, 1.0):
        expected = high - (high - low) * (math.cos(math.pi * progress) + 1) / 2
        assert cosine(low, high)(progress) == pytest.approx(expected)
    assert cosine(1.0, 0.2, until=0.5)(0.5) == 0.2
    assert cosine(1.0, 0.2, until=0.5)(0.25) == pytest.approx(0.6)


def test_step_jumps_at_its_points_and_keeps_the_first_value_before_them():
    schedule = step((0.2, 1.0), (0.6, 0.1))
    assert [schedule(progress) for progress in (0.0, 0.2, 0.599, 0.6, 1.0)] == [1.0, 1.0, 1.0, 0.1, 0.1]


def test_interpolate_passes_through_its_points():
    schedule = interpolate((0.2, 0.0), (0.4, 1.0), (0.8, -1.0))
    places = (0.0, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    assert [schedule(progress) for progress in places] == pytest.approx([0, 0, 0.5, 1, 0, -1, -1])


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(0.01, 1), st.floats(0, 1))
def test_values_stay_between_the_ends(start, end, until, progress):
    for schedule in (linear(start, end, until), cosine(start, end, until)):
        assert min(start, end) - 1e-9 <= schedule(progress) <= max(start, end) + 1e-9
        assert schedule(0) == start
        assert schedule(1) == pytest.approx(end)


def test_schedules_are_plain_values():
    schedule = cosine(1.0, 0.1)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(schedule) == hash(cosine(1.0, 0.1))


def test_progress_outside_training_is_refused():
    for progress in [-0.1, 1.1, math.nan]:
        with pytest.raises(ValueError, match=r"progress must be in \[0, 1\]"):
            constant(1.0)(progress)


def test_points_out_of_order_are_refused():
    for build in [
        lambda: linear(0, 1, until=0),
        lambda: cosine(0, 1, until=1.5),
        lambda: step(),
        lambda: step((0.5, 1), (0.5, 2)),
        lambda: interpolate((0.5, 1), (0.2, 2)),
        lambda: step((-0.1, 1)),
        lambda: step((math.nan, 1)),
    ]:
        with pytest.raises(ValueError, match=r"increasing progress within \[0, 1\]"):
            build()


def test_values_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="values must be finite"):
        linear(0.0, math.inf)


def test_warm_up_rises_evenly_to_the_base():
    rates = [learning_rate(number, 100, 4, 1.0) for number in range(6)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert 0.99 < rates[5] < 1.0


def test_cosine_falls_to_zero():
    rates = [learning_rate(number, 110, 10, 2.0) for number in range(10, 111)]
    assert rates[0] == 2.0
    assert rates[50] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert rates == sorted(rates, reverse=True)


def test_steps_fall_exactly_at_their_milestones():
    # 0.07 * 100 is above 7 in floating point: the seventh step must not miss it.
    rates = [learning_rate(number, 100, 2, 1.0, "step", milestones=(0.07, 0.6), gamma=0.5) for number in range(100)]
    assert rates[6:8] == [1.0, 0.5]
    assert rates[59:61] == [0.5, 0.25]
    assert rates[99] == 0.25


def test_constant_stays_after_the_warm_up():
    assert [learning_rate(number, 5, 1, 0.3, "constant") for number in range(6)] == [0.15] + [0.3] * 5


def test_training_of_one_step_works():
    assert learning_rate(0, 1, 0, 0.1) == 0.1


def test_impossible_schedules_are_refused():
    for arguments, message in [
        ((0, 10, 10, 0.1), "warm-up must be shorter than training, got 10 warm-up steps of 10"),
        ((0, 0, 0, 0.1), "warm-up must be shorter than training"),
        ((0, 10, -1, 0.1), "warm-up must be shorter than training"),
        ((11, 10, 2, 0.1), r"step must be in \[0, 10\], got 11"),
        ((-1, 10, 2, 0.1), r"step must be in \[0, 10\], got -1"),
        ((0, 10, 2, -0.1), "learning rate must be a finite number"),
        ((0, 10, 2, math.nan), "learning rate must be a finite number"),
        ((0, 10, 2, 0.1, "exponential"), "unknown learning rate schedule 'exponential': choose one of"),
        ((0, 10, 2, 0.1, "step", (0.1,)), "milestones must lie after the warm-up"),
        ((0, 10, 2, 0.1, "step", (120, 160)), "they are shares of the training"),
    ]:
        with pytest.raises(ValueError, match=message):
            learning_rate(*arguments)


def test_schedules_do_not_import_torch():
    code = f"import runpy, sys; runpy.run_path({schedules.__file__!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
