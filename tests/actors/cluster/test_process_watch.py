"""The watch over processes: which of them are silent and which are only busy or starting."""

from __future__ import annotations

from actors.cluster.process_watch import BUSY_MS_MAX, START_MS_LONGEST, Silence


def is_silent_at(silence: Silence, at_ms: int) -> bool:
    """Ask a process three times in vain, the last time then; return whether to replace it."""
    return [silence.note_miss(at_ms - ago_ms) for ago_ms in (2, 1, 0)][-1]


def test_a_process_that_never_comes_is_started_again() -> None:
    silence = Silence(5_000, now_ms=0)
    assert not any(silence.note_ended(at_ms) for at_ms in range(2_000, 62_000, 2_000))
    assert silence.note_ended(62_000)


def test_a_process_too_slow_to_start_has_twice_the_time_each_time() -> None:
    """On a machine that other work kept busy, starts of 60 s were ended and begun for ever."""
    silence = Silence(5_000, now_ms=0)
    began_ms = 0
    for start_ms in (60_000, 120_000, 240_000, 480_000, START_MS_LONGEST):
        assert not is_silent_at(silence, began_ms + start_ms)
        began_ms += start_ms + 1
        assert is_silent_at(silence, began_ms)
        silence.note_replaced(began_ms)
    silence.note_answer(began_ms)
    assert is_silent_at(silence, began_ms + 5_001)
    silence.note_replaced(began_ms)
    assert is_silent_at(silence, began_ms + 60_001), "an answer makes the time short again"


def test_a_ledger_too_slow_to_start_has_twice_the_time_even_while_it_is_not_there() -> None:
    silence = Silence(15_000, now_ms=0, start_ms_max=60_000)
    silence.note_replaced(0)
    silence.reset(1_000)
    assert not any(silence.note_miss(at_ms) for at_ms in (80_000, 120_000, 121_000))
    assert silence.note_miss(121_001)
    silence.note_answer(122_000)
    silence.reset(123_000)
    assert not any(silence.note_miss(at_ms) for at_ms in (124_000, 125_000, 183_000))
    assert silence.note_miss(183_001)


def test_silence_is_too_long_by_time_and_by_questions() -> None:
    silence = Silence(15_000, now_ms=0)
    silence.note_answer(1_000)
    assert [silence.note_miss(at_ms) for at_ms in (4_000, 15_000, 16_000)] == [False] * 3
    assert silence.note_miss(16_001)


def test_a_watcher_that_was_frozen_itself_asks_again_before_it_judges() -> None:
    silence = Silence(15_000, now_ms=0)
    silence.note_answer(0)
    assert [silence.note_miss(600_000 + second) for second in range(3)] == [False, False, True]
    silence.note_answer(700_000)
    assert not silence.note_miss(800_000), "an answer begins the count anew"


def test_a_process_that_is_being_started_has_longer() -> None:
    silence = Silence(15_000, now_ms=0, start_ms_max=60_000)
    assert not any(silence.note_miss(at_ms) for at_ms in (15_000, 30_000, 60_000))
    assert silence.note_miss(60_001)
    silence.note_answer(61_000)
    silence.reset(62_000)
    assert not any(silence.note_miss(at_ms) for at_ms in (80_000, 90_000, 122_000))


def test_a_process_whose_loop_turns_and_never_answers_is_silent_in_the_end() -> None:
    silence = Silence(5_000, now_ms=0)
    silence.note_answer(0)
    assert silence.note_progress(1, BUSY_MS_MAX)
    assert not silence.note_progress(2, BUSY_MS_MAX + 1)
    assert not is_silent_at(silence, BUSY_MS_MAX + 5_000)
    assert is_silent_at(silence, BUSY_MS_MAX + 5_001)


def test_silence_is_none_while_the_counter_moves() -> None:
    silence = Silence(15_000, now_ms=0)
    silence.note_answer(1_000, progress=5)
    for second in range(2, 40, 2):
        assert silence.note_progress(5 + second, 1_000 * second)
    assert not silence.note_progress(43, 60_000), "the last one told"
    assert [silence.note_miss(60_000 + ms) for ms in range(3)] == [False, False, True]


def test_a_process_that_has_ended_has_the_time_of_a_start() -> None:
    """It was killed again while it was being started, because the one before had answered."""
    silence = Silence(5_000, now_ms=0)
    silence.note_answer(0)
    assert not any(silence.note_ended(1_000 * second) for second in range(1, 61))
    assert silence.note_ended(61_001), "since the first word of its end"


def test_answers_without_work_are_silence() -> None:
    """A process whose task hangs goes on to answer its pings."""
    silence = Silence(15_000, now_ms=0)
    assert not silence.note_work(1, 1_000)
    assert not silence.note_work(2, 2_000)
    assert [silence.note_work(2, at_ms) for at_ms in (8_000, 16_000, 17_000)] == [False] * 3
    assert silence.note_work(2, 17_001)
    silence.note_replaced(17_001)
    assert not silence.note_work(1, 20_000), "the counter of its successor"
    assert not any(silence.note_work(1, at_ms) for at_ms in (21_000, 22_000, 35_000))
    assert silence.note_work(1, 35_001)
