"""What fills an input: a value of the description, or an output of an earlier step. Pure.

Outputs are chosen by kind, by name, by what a phrase says, by what came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.planning.offers import ANY, Member, Offer, fits
from core.planning.phrases import Phrase, Value
from core.planning.synonyms import related
from core.planning.words import name_stems, stem, words

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
GENERIC: Final = frozenset(
    stem(word)
    for word in (
        "body", "content", "data", "description", "document", "input", "message", "prompt",
        "query", "result", "text", "value",
    )
)  # fmt: skip
# By the kind of a value: the formats of the inputs that take it, and words of their names.
_FORMATS: Final = {
    "uri": ("uri", "url", "uri-reference", "iri"),
    "email": ("email", "idn-email"),
    "date": ("date", "date-time"),
}
_NAMED: Final = {
    "uri": frozenset(
        ("url", "uri", "href", "link", "website", "webpage", "homepage", "page", "site", "feed",
         "repository", "repo")
    ),
    "email": frozenset(("email", "mail", "to", "cc", "recipient", "recipients", "receiver")),
    "date": frozenset(("date", "day")),
}  # fmt: skip
# Inputs that say how many results there are to be, and a number that is more than that.
_COUNTS: Final = frozenset(
    stem(word) for word in ("count", "limit", "max", "top", "size", "number")
)
_COUNT_MAX: Final = 1_000


@dataclass(slots=True)
class Step:
    """One node of a draft.

    `said`: stems of what the description says of it. `given`: of what the caller has already.
    `sources`: by input, the step and its output that fill it. `payload`: by input, what the
    description itself gives. `limit_micro`: what it may cost, None without a limit.
    `is_implied`: no phrase asks for it by itself.
    """

    name: str
    offer: Offer
    phrases: list[Phrase] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    sources: dict[str, tuple[Step, str]] = field(default_factory=dict)
    payload: dict[str, str | int | float] = field(default_factory=dict)
    limit_micro: int | None = None
    is_implied: bool = False

    def add(self, phrase: Phrase) -> None:
        """Note a phrase that asks for this step."""
        self.phrases.append(phrase)
        self.said.update(phrase.stems)
        self.given.update(phrase.given)

    def has_number(self) -> bool:
        """Say whether the description gives a number here."""
        return any(one.kind == "number" for phrase in self.phrases for one in phrase.values)

    def open_inputs(self) -> list[Member]:
        """Return the needed inputs that nothing fills."""
        return [
            one
            for one in self.offer.inputs
            if one.is_required and one.name not in self.sources and one.name not in self.payload
        ]


def give(step: Step, before: Sequence[Step], addresses: Sequence[Value]) -> None:
    """Fill a step's inputs with the values that its phrases give, each once.

    Args:
        before: what they make by its name is not replaced by just any number.
        addresses: all web and e-mail addresses of the description; each fills also needed inputs
            of steps whose phrases do not have it.
    """
    own = [one for phrase in step.phrases for one in phrase.values]
    made = {output.name for other in before for output in other.offer.outputs}
    found = [
        (_suits(step, wanted, value, is_made=wanted.name in made), -order, -place, wanted, value)
        for order, wanted in enumerate(step.offer.inputs)
        for place, value in enumerate(own)
    ]
    taken: list[Value] = []
    step.payload = {}
    for score, *_, wanted, value in sorted(found, key=lambda one: one[:3], reverse=True):
        if score > 0 and wanted.name not in step.payload and value not in taken:
            step.payload[wanted.name] = value.value
            taken.append(value)
    for wanted in step.open_inputs():
        fitting = [one for one in addresses if takes(wanted, one.kind)]
        if len({one.value for one in fitting}) == 1:
            step.payload[wanted.name] = fitting[0].value


def takes(member: Member, kind: str) -> bool:
    """Say whether an input is one for values of a kind: `uri`, `email` or `date`."""
    type_, _, mark = member.kind.partition(":")
    if type_ not in ("string", ANY) or kind not in _NAMED:
        return False
    return mark in _FORMATS[kind] if mark else not _NAMED[kind].isdisjoint(words(member.name))


def _is_near(value: Value, name: frozenset[str]) -> bool:
    return any(value.near & {one, *related(one)} for one in name)


def _suits(step: Step, wanted: Member, value: Value, *, is_made: bool) -> float:
    """Return how well a value suits an input, 0 when it does not."""
    type_, _, mark = wanted.kind.partition(":")
    name = name_stems(wanted.name)
    is_near = _is_near(value, name)
    if value.kind == "number":
        if type_ != "number" and not (type_ == "integer" and isinstance(value.value, int)):
            return 0
        if is_near:
            return _SAME_NAME
        # `3 sentences` is no number of words where sentences are an input of their own.
        if any(value.near & name_stems(one.name) for one in step.offer.inputs):
            return 0
        if name & _COUNTS and 0 < float(value.value) <= _COUNT_MAX:
            made = (name_stems(one.name) for one in step.offer.outputs)
            return _SAME_FORMAT * (not step.is_implied or any(value.near & one for one in made))
        return _LIKE_NAME * (wanted.is_required and not is_made and not step.is_implied)
    if value.kind != "quoted":
        return _SAID * takes(wanted, value.kind)
    if type_ not in ("string", ANY) or mark or any(takes(wanted, kind) for kind in _NAMED):
        return 0
    is_asked = wanted.is_required and not step.is_implied
    return _SAID * is_near or (_SAME_NAME if is_generic(wanted) else _LIKE_NAME) * is_asked


def connect(step: Step, before: Sequence[Step]) -> None:
    """Fill a step's inputs from the steps before it; each output once, for the input that it fits
    best, of several alike the one that takes whatever there is. Needed inputs come first."""
    found = [
        (wanted.is_required, best.score, is_generic(wanted), -order, wanted.name, best)
        for order, wanted in enumerate(step.offer.inputs)
        if wanted.name not in step.payload
        and (best := best_source(step, wanted, before)) is not None
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


class Source(NamedTuple):
    """A step and its output, and how well that fills an input."""

    score: float
    place: tuple[Step, str]

    @property
    def is_weak(self) -> bool:
        """Whether nothing but its kind speaks for it."""
        return self.score < _LIKE_NAME


def best_source(step: Step, wanted: Member, before: Sequence[Step]) -> Source | None:
    """Return the output that fills an input best, None when none does."""
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
    return Source(score, (other, name))


def is_generic(member: Member) -> bool:
    """Say whether an input takes whatever there is of its kind, as `text` does and `city` not."""
    kind, _, mark = member.kind.partition(":")
    if kind in ("object", "array") or mark:
        return True
    name = name_stems(member.name)
    return bool(name) and name <= GENERIC


def _score(step: Step, wanted: Member, other: Step, output: Member) -> float:
    score = 0.0
    name, wanted_name = name_stems(output.name), name_stems(wanted.name)
    is_same = output.name == wanted.name
    is_own = not is_same and output.name in step.offer.input_names
    if name and name <= step.said and (is_same or name - wanted_name) and not is_own:
        score += _SAID
    if is_same:
        score += _SAME_NAME
    elif name & wanted_name or any(related(one) & wanted_name for one in name):
        score += _LIKE_NAME
    if ":" in output.kind and output.kind == wanted.kind:
        score += _SAME_FORMAT
    if wanted.kind != ANY and name and name <= GENERIC:
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
