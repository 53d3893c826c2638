"""Sealed frames as a connection reads them: altered, cut, repeated, moved, sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport.frames import (
    LENGTH,
    MAC_BYTES,
    SEALED_BODY_BYTES_MAX,
    Frames,
    FrameTooLarge,
    PlainFrames,
    SealedFrames,
)
from actors.transport.sockets import BUFFER_BYTES, Connection

HERE, THERE = bytes(31) + b"h", bytes(31) + b"t"
VALUES = ["first", b"x" * 100, ["third", 3]]


class Wires(asyncio.Transport):
    """Keeps what is written; says whether it was aborted."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.2", 7)})
        self.pieces: list[bytes] = []
        self.is_aborted = False

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.pieces.append(b"".join(pieces))

    def abort(self) -> None:
        self.is_aborted = True


class Receiver:
    """A connection that hears values, and its transport."""

    def __init__(self, frames: Frames) -> None:
        self.heard: list[Any] = []
        self.wires = Wires()
        self.connection = Connection(
            lambda _, value: self.heard.append(value), lambda _: None, frames
        )
        self.connection.connection_made(self.wires)

    def arrive(self, sent: bytes) -> None:
        """Read bytes, until the connection is ended."""
        while sent and not self.wires.is_aborted:
            view = self.connection.get_buffer(-1)
            size = min(len(view), len(sent))
            view[:size] = sent[:size]
            self.connection.buffer_updated(size)
            view.release()  # as by a loop, before it asks for the next
            sent = sent[size:]


def receiver() -> Receiver:
    """Return a receiver of what `sent` returns."""
    return Receiver(SealedFrames(THERE, HERE))


def sent(values: Iterable[object] = VALUES, frames: Frames | None = None) -> list[bytes]:
    """Return values as they are sent, frame by frame."""
    sender = Receiver(frames or SealedFrames(HERE, THERE))
    for value in values:
        sender.connection.send(value)
    return sender.wires.pieces


def test_frames_arrive_however_they_are_cut() -> None:
    stream = b"".join(sent([*VALUES, b"y" * 3 * BUFFER_BYTES, "last"]))
    for size in (1, 3, 17, BUFFER_BYTES, len(stream)):
        reader = receiver()
        for begin in range(0, len(stream), size):
            reader.arrive(stream[begin : begin + size])
        assert reader.heard == [*VALUES, b"y" * 3 * BUFFER_BYTES, "last"]


@given(position=st.integers(0, sum(map(len, sent())) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_heard(position: int, bit: int) -> None:
    frames = sent()
    stream = bytearray(b"".join(frames))
    stream[position] ^= 1 << bit
    reader = receiver()
    reader.arrive(bytes(stream))
    ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    whole = sum(end <= position for end in ends)
    assert reader.heard == VALUES[:whole]
    reader.arrive(bytes(1 << 17))
    assert reader.heard == VALUES[:whole], "whatever comes then"


@given(st.integers(0, sum(map(len, sent())) - 1))
def test_a_cut_stream_gives_its_whole_frames_and_no_more(size: int) -> None:
    frames = sent()
    reader = receiver()
    reader.arrive(b"".join(frames)[:size])
    assert len(reader.heard) < len(VALUES)
    assert reader.heard == VALUES[: len(reader.heard)]
    reader.arrive(frames[-1])
    assert reader.heard == VALUES[: len(reader.heard)], "what follows a cut is not heard"


@pytest.mark.parametrize(
    "order",
    [(0, 0), (1,), (0, 2), (0, 1, 0), (1, 0, 2)],
    ids=["repeated", "the first left out", "one left out", "an old one again", "exchanged"],
)
def test_a_frame_counts_at_its_place_only(order: tuple[int, ...]) -> None:
    frames = sent()
    reader = receiver()
    reader.arrive(b"".join(frames[index] for index in order))
    good = [
        index for place, index in enumerate(order) if order[: place + 1] == (0, 1, 2)[: place + 1]
    ]
    assert reader.heard == [VALUES[index] for index in good]
    assert reader.wires.is_aborted


def test_ones_own_frames_that_come_back_are_refused() -> None:
    sender = Receiver(SealedFrames(HERE, THERE))
    sender.connection.send("to the other side")
    sender.arrive(sender.wires.pieces[0])
    assert (sender.heard, sender.wires.is_aborted) == ([], True)


def test_frames_of_another_connection_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    reader = receiver()
    reader.arrive(sent(["hush"], SealedFrames(bytes(31) + b"o", THERE))[0])
    assert (reader.heard, reader.wires.is_aborted) == ([], True)
    assert "10.0.0.2" in caplog.text and "wrong MAC" in caplog.text
    assert "hush" not in caplog.text


def test_a_frame_of_2_gib_is_refused_when_it_is_announced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = receiver()
    reader.arrive(LENGTH.pack(1 << 31) + b"body")
    assert reader.wires.is_aborted
    assert len(reader.connection.get_buffer(-1)) <= BUFFER_BYTES
    assert f"{1 << 31} bytes, expected at most {SEALED_BODY_BYTES_MAX}" in caplog.text


@pytest.mark.parametrize("frames", [PlainFrames(), SealedFrames(HERE, THERE)])
def test_what_the_other_side_would_refuse_is_not_sent(frames: Frames) -> None:
    class Long(bytes):
        """Has a length without its memory."""

        def __len__(self) -> int:
            return frames.body_bytes_max + 1

    with pytest.raises(FrameTooLarge, match=f"expected at most {frames.body_bytes_max}"):
        frames.written(Long())
    assert len(frames.written(b"x")[0]) == LENGTH.size


def test_a_frame_shows_its_length_and_nothing_else() -> None:
    first, second = sent(["same", "same"])
    size = len(msgspec.msgpack.encode("same"))
    assert first[: LENGTH.size] == second[: LENGTH.size] == LENGTH.pack(size)
    assert len(first) == LENGTH.size + size + MAC_BYTES, "the sequence number does not travel"
    assert b"same" not in first
    assert first[LENGTH.size :] != second[LENGTH.size :]
