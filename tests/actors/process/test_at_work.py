"""Which workflow was at work when a process ended, and how often."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.process.at_work import COUNTED_MAX, ENDS_MAX, AtWork


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An owner's file."""
    return tmp_path / "work"


def end_in(path: Path, *workflows: str, is_to_blame: bool = True) -> AtWork:
    """Start a process, end it in the innermost of these works, and start the next."""
    process = AtWork(path)
    for workflow_id in workflows:
        process.begin(workflow_id)
    return AtWork(path, is_to_blame=is_to_blame)


def test_a_workflow_is_poison_after_so_many_ends_in_its_work(path: Path) -> None:
    for _ in range(ENDS_MAX - 1):
        assert not end_in(path, "w1").is_poison("w1")
        assert not end_in(path, "w2", is_to_blame=False).is_poison("w2")
    process = end_in(path, "w1")
    assert process.is_poison("w1")
    assert not process.is_poison("w2")


def test_ends_from_outside_count_against_nobody(path: Path) -> None:
    for _ in range(2 * ENDS_MAX):
        assert not end_in(path, "w1", is_to_blame=False).is_poison("w1")


def test_work_that_has_ended_is_not_to_blame(path: Path) -> None:
    for _ in range(ENDS_MAX):
        process = AtWork(path)
        process.end(process.begin("w1"))
        AtWork(path, is_to_blame=True)
    assert not AtWork(path).is_poison("w1")


def test_the_innermost_work_is_to_blame_and_then_the_one_around_it(path: Path) -> None:
    for _ in range(ENDS_MAX):
        process = end_in(path, "outer", "inner")
    assert process.is_poison("inner") and not process.is_poison("outer")
    for _ in range(ENDS_MAX):
        process = AtWork(path)
        process.begin("outer")
        process.end(process.begin("inner"))
        process = AtWork(path, is_to_blame=True)
    assert process.is_poison("outer")


def test_an_end_is_counted_once(path: Path) -> None:
    end_in(path, "w1")
    for _ in range(ENDS_MAX):
        process = AtWork(path, is_to_blame=True)
    assert not process.is_poison("w1")


def test_what_is_forgotten_is_counted_anew(path: Path) -> None:
    for _ in range(ENDS_MAX):
        process = end_in(path, "w1")
    process.forget("w1")
    assert not AtWork(path).is_poison("w1")


def test_the_file_is_bounded_and_the_newest_ends_stay(path: Path) -> None:
    for number in range(COUNTED_MAX + 10):
        end_in(path, f"{number:036}")
    for _ in range(ENDS_MAX):
        process = end_in(path, "w1")
    assert process.is_poison("w1")


@pytest.mark.parametrize("damage", [b"\xff" * 20_000, b"w1" + bytes(62) + b"[1,", b""])
def test_a_damaged_file_is_empty(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    assert not AtWork(path, is_to_blame=True).is_poison("w1")
    for _ in range(ENDS_MAX):
        process = end_in(path, "w1")
    assert process.is_poison("w1")


async def test_a_task_is_its_workflows_work_while_it_runs_and_not_while_it_waits() -> None:
    process, gate, seen = AtWork(), asyncio.Event(), list[str]()

    async def work() -> None:
        try:
            seen.append(process.current)
            await gate.wait()
            seen.append(process.current)
            await asyncio.Event().wait()
        finally:
            seen.append(process.current)

    async def named() -> None:
        await process.run("w1", work())

    task = asyncio.create_task(named())
    for then in (gate.set, task.cancel):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert process.current == ""
        then()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == ["w1"] * 3
    assert process.current == ""


async def test_what_a_task_raises_goes_on_and_ends_its_work() -> None:
    process = AtWork()

    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("w1")

    with pytest.raises(KeyError, match="w1"):
        await process.run("w1", work())
    assert process.current == ""
