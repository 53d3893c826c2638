"""The times of a start are read from what `callboard up` prints."""

from __future__ import annotations

from bench.startup import medians, read_steps

PRINTED = """\
[  0.3 s] starting Ray
[  5.1 s] deploying the API
[  5.9 s] [  0.2 s] starting the actors and the API
admin key: /somewhere/admin.key
[ 11.0 s] [  5.3 s] the API answers at http://127.0.0.1:8000
callboard is ready at http://127.0.0.1:8000
"""


def test_a_step_has_the_time_since_the_start_and_no_address() -> None:
    assert read_steps(PRINTED) == {
        "starting Ray": 0.3,
        "deploying the API": 5.1,
        "starting the actors and the API": 5.9,
        "the API answers": 11.0,
    }


def test_a_median_is_of_the_runs_that_have_the_step() -> None:
    runs = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0, "b": 7.0}]
    assert medians(runs) == {"a": 2.0, "b": 6.0}
