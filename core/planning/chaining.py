"""Which output fills an input: by kind, by name, by what a phrase says, by what came last. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.planning.offers import ANY, Member, Offer, fits
from core.planning.phrases import Phrase
from core.planning.words import name_stems, stem

_SAID: Final = 4.0
_SAME_NAME: Final = 3.0
_LIKE_NAME: Final = 1.5
_SAME_FORMAT: Final = 1.0
# What a step has made of its input, as `cleaned` of `rows`, stands for it from there on.
_CHANGED: Final = 3.5
_LAST: Final = 0.8
# An output that is called `text` or `result` is what the step is there for.
_WHATEVER: Final = 0.5
# Names of inputs that say no more than that something is to be worked on.
_GENERIC: Final = frozenset(
    stem(word)
    for word in (
        "body", "content", "data", "description", "document", "input", "message", "prompt",
        "query", "result", "text", "value",
    )
)  # fmt: skip


@dataclass(slots=True)
class Step:
    """One node of a draft.

    `said`: stems of what the description says of it. `given`: of what the caller has already.
    `sources`: by input, the step and its output that fill it. `payload`: by input, what the
    description itself gives. `limit_micro`: what it may cost, None without a limit.
    """

    name: str
    offer: Offer
    phrases: list[Phrase] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    sources: dict[str, tuple[Step, str]] = field(default_factory=dict)
    payload: dict[str, str] = field(default_factory=dict)
    limit_micro: int | None = None

    def add(self, phrase: Phrase) -> None:
        """Note a phrase that asks for this step."""
        self.phrases.append(phrase)
        self.said.update(phrase.stems)
        self.given.update(phrase.given)

    def has_number(self) -> bool:
        """Say whether the description gives a number here."""
        return any(one.isdigit() for one in self.said)


def connect(step: Step, before: Sequence[Step]) -> None:
    """Fill a step's inputs from the steps before it; each output once, for the input that it fits
    best, of several alike the one that takes whatever there is. Needed inputs come first."""
    found = [
        (wanted.is_required, best.score, is_generic(wanted), -order, wanted.name, best)
        for order, wanted in enumerate(step.offer.inputs)
        if wanted.name not in step.payload
        and (best := _find_source(step, wanted, before)) is not None
    ]
    for *_, name, best in sorted(found, key=lambda one: one[:4], reverse=True):
        if best.place not in step.sources.values():
            step.sources[name] = best.place


def connect_later(step: Step, after: Sequence[Step]) -> None:
    """Fill inputs that are left from outputs of their names of steps that are spoken of later."""
    for wanted in step.offer.inputs:
        if wanted.name in step.sources or wanted.name in step.payload:
            continue
        for other in after:
            names = {one.name for one in other.offer.outputs if fits(one.kind, wanted.kind)}
            if wanted.name in names and not depends(other, step):
                step.sources[wanted.name] = (other, wanted.name)
                break


def depends(step: Step, on: Step) -> bool:
    """Say whether a step needs another, itself or through others."""
    seen: set[str] = set()
    waiting = [step]
    while waiting:
        for source, _ in waiting.pop().sources.values():
            if source is on:
                return True
            if source.name not in seen:
                seen.add(source.name)
                waiting.append(source)
    return False


def best_source(step: Step, wanted: Member, before: Sequence[Step]) -> tuple[Step, str] | None:
    """Return the step and its output that fill an input best, None when none does."""
    found = _find_source(step, wanted, before)
    return None if found is None else found.place


class _Source(NamedTuple):
    """A step and its output, and how well that fills an input."""

    score: float
    place: tuple[Step, str]


def _find_source(step: Step, wanted: Member, before: Sequence[Step]) -> _Source | None:
    found: list[tuple[float, int, int, Step, str]] = []
    for place, other in enumerate(before):
        for order, output in enumerate(other.offer.outputs):
            if not fits(output.kind, wanted.kind) or _is_echo(other, output, wanted):
                continue
            score = _score(step, wanted, other, output)
            # What may be left open, or is something of its own, is filled by what is meant for it.
            least = _SAME_NAME
            if wanted.is_required:
                least = 0.0 if is_generic(wanted) else _LIKE_NAME
            if score < least:
                continue
            score += _LAST * (place + 1) / len(before)
            found.append((score, place, -order, other, output.name))
    if not found:
        return None
    score, *_, other, name = max(found, key=lambda one: one[:3])
    return _Source(score, (other, name))


def is_generic(member: Member) -> bool:
    """Say whether an input takes whatever there is of its kind, as `text` does and `city` not."""
    kind, _, mark = member.kind.partition(":")
    if kind in ("object", "array") or mark:
        return True
    name = name_stems(member.name)
    return bool(name) and name <= _GENERIC


def _score(step: Step, wanted: Member, other: Step, output: Member) -> float:
    score = 0.0
    name, wanted_name = name_stems(output.name), name_stems(wanted.name)
    if name and name <= step.said and name - wanted_name:
        score += _SAID
    if output.name == wanted.name:
        score += _SAME_NAME
    elif name & wanted_name:
        score += _LIKE_NAME
    if ":" in output.kind and output.kind == wanted.kind:
        score += _SAME_FORMAT
    if wanted.kind != ANY and name and name <= _GENERIC:
        score += _WHATEVER
    if not wanted.is_required and score == _SAID:
        score = 0.0  # spoken of, but for another input
    if _is_changed(other, output) and wanted.name in other.offer.input_names:
        score += _CHANGED
    if output.kind == ANY:
        score -= _LIKE_NAME
    return score


def _is_echo(step: Step, output: Member, wanted: Member) -> bool:
    """Say whether an output is what the step was given, as the address of a fetched page."""
    return output.name != wanted.name and output.name in step.offer.input_names


def _is_changed(step: Step, output: Member) -> bool:
    """Say whether an output is what the step has made of its input: a participle, `cleaned`."""
    return output.name.endswith("ed") and any(
        one.kind == output.kind for one in step.offer.inputs if one.is_required
    )
