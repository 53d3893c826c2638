"""What may go wrong in a simulated run, and how often.

Probabilities per occasion; zero everywhere is a world in which all goes well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """The odds of one run.

    Per commit: `commit_lost` (never arrived), `answer_lost` (applied, then repeated), `slow` (it
    takes up to 11 s, all others wait), `guilty` (the ledger cannot apply a step). Per second of
    the first half minute: `crash`, `rival` (an owner is replaced while it goes on), `cut`
    (its renewals are lost for a while),
    `outage` of the ledger, `gone` (an agent deregisters for a while), `dearer` (prices rise),
    `frozen` (an owner stands still), `forgetful` (the timekeeper starts anew), `steps` (a wall
    clock steps). Per workflow: `cancel`, `request_repeated`, `key_repeated`. Per choice of an agent
    and per dispatch: `raising` (a defect raises). Agents: `flaky` is the share of them that
    misbehave, `later` the share that hands results in. `watched`: a timekeeper looks after owners;
    `skewed`: clocks differ; `queue_max`: commands that may wait at an owner, 0 for the default.
    """

    commit_lost: float = 0.0
    answer_lost: float = 0.0
    crash: float = 0.0
    rival: float = 0.0
    cut: float = 0.0
    outage: float = 0.0
    gone: float = 0.0
    dearer: float = 0.0
    cancel: float = 0.0
    request_repeated: float = 0.0
    key_repeated: float = 0.0
    flaky: float = 0.0
    later: float = 0.0
    slow: float = 0.0
    guilty: float = 0.0
    raising: float = 0.0
    frozen: float = 0.0
    forgetful: float = 0.0
    steps: float = 0.0
    watched: bool = False
    skewed: bool = False
    queue_max: int = 0


CALM = Troubles()


def troubles_of(chance: random.Random) -> Troubles:
    """Draw the odds of a run: some are calm, some have bad agents only, most have everything."""
    kind = chance.random()
    if kind < 0.1:
        return CALM
    later = chance.choice((0, 0, 0.4))
    agents_only = Troubles(flaky=chance.uniform(0.1, 0.9), later=later, cancel=0.05)
    if kind < 0.35:
        return agents_only
    return Troubles(
        commit_lost=chance.choice((0, 0.02, 0.1)),
        answer_lost=chance.choice((0, 0.02, 0.1)),
        crash=chance.choice((0, 0.05, 0.2)),
        rival=chance.choice((0, 0.05)),
        cut=chance.choice((0, 0.1)),
        outage=chance.choice((0, 0.02)),
        gone=chance.choice((0, 0.1)),
        dearer=chance.choice((0, 0.05)),
        cancel=chance.choice((0.02, 0.15)),
        request_repeated=0.05,
        key_repeated=0.05,
        flaky=chance.uniform(0, 0.8),
        later=later,
    )


KINDS = ("slow", "guilty", "raising", "clocks", "queue", "watch")


def faults_of(chance: random.Random, kind: str = "") -> Troubles:
    """Draw the odds of a run in which, besides all of `troubles_of`, processes are defective.

    Args:
        kind: the one defect there is; empty: any of them, some together.
    """
    odds = {
        "slow": {"slow": chance.choice((0.01, 0.1)), "answer_lost": 0.1},
        "guilty": {"guilty": chance.choice((0.002, 0.02))},
        "raising": {"raising": chance.choice((0.001, 0.01))},
        "clocks": {"skewed": True, "steps": chance.choice((0, 0.1, 0.4))},
        "queue": {"queue_max": chance.choice((1, 3, 10)), "slow": 0.05},
        "watch": {
            "watched": True,
            "frozen": chance.choice((0, 0.1)),
            "forgetful": chance.choice((0, 0.1)),
            "slow": chance.choice((0, 0.05)),
        },
    }
    chosen = [kind] if kind else [name for name in odds if chance.random() < 0.4]
    basis = troubles_of(chance)
    for name in chosen:
        basis = replace(basis, **odds[name])
    return basis
