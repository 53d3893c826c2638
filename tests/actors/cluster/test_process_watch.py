"""The watch over processes: which of them are silent and which are only busy or starting."""

from __future__ import annotations

from actors.cluster.process_watch import BUSY_MS_MAX, START_MS_LONGEST, OwnerWatch, Silence


def silent_at(watch: OwnerWatch, at_ms: int, name: str = "a") -> list[str]:
    """Ask an owner three times in vain, the last time then; return who is silent."""
    for ago_ms in (2, 1, 0):
        watch.note_unanswered(name, at_ms - ago_ms)
    return watch.silent_owners()


def test_an_owner_is_silent_only_when_it_was_not_heard_lately() -> None:
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_created("a", 0)
    watch.note_answered("a", 100)
    assert silent_at(watch, 5_100) == []
    assert silent_at(watch, 5_101) == ["a"]
    watch.note_answered("a", 5_102)
    assert watch.silent_owners() == []


def test_an_owner_whose_machine_is_gone_is_not_asked_for() -> None:
    """A silent one of a lost machine was restarted again and again."""
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_answered("a", 0)
    assert silent_at(watch, 6_000) == ["a"]
    watch.remove_owner("a")
    assert silent_at(watch, 12_000) == []


def test_an_owner_may_take_long_to_start_but_not_to_answer_again() -> None:
    watch = OwnerWatch(silence_ms_max=5_000, start_ms_max=60_000)
    watch.note_created("a", 0)
    assert silent_at(watch, 60_000) == []
    assert silent_at(watch, 60_001) == ["a"]
    watch.note_answered("a", 60_001)
    assert silent_at(watch, 65_001) == []
    assert silent_at(watch, 65_002) == ["a"]


def test_a_watch_that_was_frozen_itself_asks_its_owners_again() -> None:
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_answered("a", 0)
    for at_ms in (600_000, 602_000):
        watch.note_unanswered("a", at_ms)
        assert watch.silent_owners() == []
    watch.note_answered("a", 604_000)
    watch.note_unanswered("a", 606_000)
    assert watch.silent_owners() == []


def test_an_owner_that_never_comes_is_started_again() -> None:
    watch = OwnerWatch(silence_ms_max=5_000, start_ms_max=60_000)
    watch.note_created("a", 0)
    for at_ms in range(2_000, 62_000, 2_000):
        watch.note_ended("a", at_ms)
        assert watch.silent_owners() == []
    watch.note_ended("a", 62_000)
    assert watch.silent_owners() == ["a"]


def test_an_owner_too_slow_to_start_has_twice_the_time_each_time() -> None:
    """On a machine that other work kept busy, starts of 60 s were ended and begun for ever."""
    watch = OwnerWatch(silence_ms_max=5_000, start_ms_max=60_000)
    watch.note_created("a", 0)
    began_ms = 0
    for start_ms in (60_000, 120_000, 240_000, 480_000, START_MS_LONGEST):
        assert silent_at(watch, began_ms + start_ms) == []
        began_ms += start_ms + 1
        assert silent_at(watch, began_ms) == ["a"]
        watch.note_replaced("a", began_ms)
    watch.note_answered("a", began_ms)
    assert silent_at(watch, began_ms + 5_001) == ["a"]
    watch.note_replaced("a", began_ms)
    assert silent_at(watch, began_ms + 60_001) == ["a"], "an answer makes the time short again"


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


def test_an_owner_whose_answer_is_late_is_busy_while_its_counter_moves() -> None:
    """It was killed as silent for working: while it restored, or published a large bulk."""
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_answered("a", 0, progress=10)
    for second in range(1, 60):
        assert watch.note_progress("a", 10 + second, 2_000 * second)
        if 2_000 * (second + 1) > BUSY_MS_MAX:
            break
    assert watch.silent_owners() == []


def test_an_owner_whose_loop_turns_and_never_answers_is_silent_in_the_end() -> None:
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_answered("a", 0)
    assert watch.note_progress("a", 1, BUSY_MS_MAX)
    assert not watch.note_progress("a", 2, BUSY_MS_MAX + 1)
    assert silent_at(watch, BUSY_MS_MAX + 5_000) == []
    assert silent_at(watch, BUSY_MS_MAX + 5_001) == ["a"]


def test_an_owner_whose_counter_stands_still_is_silent() -> None:
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_answered("a", 0, progress=10)
    assert watch.note_progress("a", 11, 2_000)
    assert not watch.note_progress("a", 11, 4_000)
    assert silent_at(watch, 7_000) == []
    assert silent_at(watch, 7_001) == ["a"]


def test_an_owner_that_is_starting_is_not_killed_while_its_counter_moves() -> None:
    watch = OwnerWatch(silence_ms_max=5_000)
    watch.note_created("a", 0)
    watch.note_answered("a", 1_000, progress=1)
    assert watch.note_progress("a", 2, 5_500)
    assert silent_at(watch, 10_000) == []


def test_silence_is_none_while_the_counter_moves() -> None:
    silence = Silence(15_000, now_ms=0)
    silence.note_answer(1_000, progress=5)
    for second in range(2, 40, 2):
        assert silence.note_progress(5 + second, 1_000 * second)
    assert not silence.note_progress(43, 60_000), "the last one told"
    assert [silence.note_miss(60_000 + ms) for ms in range(3)] == [False, False, True]


def test_an_owner_whose_process_has_ended_has_the_time_of_a_start() -> None:
    """It was killed again while it was being started, because the one before had answered."""
    watch = OwnerWatch(silence_ms_max=5_000, start_ms_max=60_000)
    watch.note_answered("a", 0)
    for second in range(1, 61):
        watch.note_ended("a", 1_000 * second)
        assert watch.silent_owners() == []
    watch.note_ended("a", 61_001)
    assert watch.silent_owners() == ["a"], "since the first word of its end"


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
