"""Measures what a choice among agents costs: `python -m bench.agent_choice`. Decision 0063."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import repeat

from core.market.ranking import Candidate, Choice, Standing, choose_agent, trial_seed

FIELDS = (1, 2, 10, 100, 1_000)
ROUNDS = 7


def field_of(count: int) -> list[Candidate]:
    """Return candidates that differ in everything; some of them are new."""
    return [
        Candidate(
            f"did:bench:{number}",
            number % 7 + 1,
            number % 5,
            32,
            number,
            0.0,
            Standing(0.5 + number % 10 / 20, 0.5, 0.7, number % 40),
        )
        for number in range(count)
    ]


def choose_with_reasons(choosing: Callable[[], Choice]) -> object:
    """Choose and give the reasons."""
    return choosing().to_json()


def best_us(call: Callable[[], object], calls: int) -> float:
    """Return microseconds per call in the best of some rounds."""
    return min(repeat(call, number=calls, repeat=ROUNDS)) / calls * 1e6


def main() -> None:
    """Print microseconds per choice, without and with its reasons."""
    seed = trial_seed("w", "n", 1)
    for count in FIELDS:
        choosing = partial(choose_agent, field_of(count), price_max_micro=9, seed=seed)
        calls = max(5, 20_000 // count)
        bare_us = best_us(choosing, calls)
        told_us = best_us(partial(choose_with_reasons, choosing), calls)
        print(f"{count:5} candidates: {bare_us:7.1f} µs, with reasons as JSON {told_us:7.1f} µs")


if __name__ == "__main__":
    main()
