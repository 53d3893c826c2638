"""Chooses what fills an input: a value of the description, or an output of another step. Pure.

An output is chosen by its kind, its name, the words of the phrases, and the position of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.planning.offers import ANY, Member, Offer, fits
from core.planning.phrases import Phrase, Value
from core.planning.synonyms import related
from core.planning.words import name_stems, stem, words

# Points for an output, or for a value of the description, that may fill an input:
# - the phrases mention the output or the value;
_SAID: Final = 4.0
# - the output or the value has the name of the input, or a similar name;
_SAME_NAME: Final = 3.0
_LIKE_NAME: Final = 1.5
# - the output has the format of the input;
_SAME_FORMAT: Final = 1.0
# - the output is a changed form of its step's input, such as `cleaned` of `rows`, and later steps
#   should use the changed form;
_CHANGED: Final = 3.5
# - the output is from the step directly before; outputs of earlier steps get less;
_LAST: Final = 0.8
# - the output has a generic name such as `text` or `result`: it is the main result of its step.
_WHATEVER: Final = 0.5
# Words of generic input names: they do not say what kind of data the input is.
GENERIC: Final = frozenset(
    stem(word)
    for word in (
        "body", "content", "data", "description", "document", "input", "message", "prompt",
        "query", "result", "text", "value",
    )
)  # fmt: skip
# By kind of value: the formats of inputs that accept the kind (`_FORMATS`). An input without a
# format accepts the kind if its name contains one of the words in `_NAMED`.
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
# Words in the names of inputs that limit the number of results, and the largest value of such an
# input.
_COUNTS: Final = frozenset(
    stem(word) for word in ("count", "limit", "max", "top", "size", "number")
)
_COUNT_MAX: Final = 1_000


@dataclass(slots=True)
class Step:
    """One node of a draft.

    `said`: the stems of all its phrases. `given`: the stems of the words for data that the caller
    already has. `sources`: by input, the step and the name of the output that fill it. `payload`:
    by input, the value of the description that fills it. `limit_micro`: the cost limit,
    micro-credits; None without one. `is_implied`: no phrase asks for the step; it fills an input of
    another step.
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
        """Add a phrase that asks for this step."""
        self.phrases.append(phrase)
        self.said.update(phrase.stems)
        self.given.update(phrase.given)

    def has_number(self) -> bool:
        """Return whether a phrase of the step has a number."""
        return any(one.kind == "number" for phrase in self.phrases for one in phrase.values)

    def open_inputs(self) -> list[Member]:
        """Return the required inputs that nothing fills."""
        return [
            one
            for one in self.offer.inputs
            if one.is_required and one.name not in self.sources and one.name not in self.payload
        ]


def give(step: Step, before: Sequence[Step], addresses: Sequence[Value]) -> None:
    """Fill the inputs of a step with the values in its phrases; each value fills one input.

    Args:
        step: the step.
        before: the steps before it. If one of these steps has an output with the name of an input,
            a number fills this input only if the words near the number fit the name.
        addresses: all web and e-mail addresses of the description. If only one address fits a
            required input that is still open, it fills the input, even if the step's phrases do not
            contain it.
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
    """Return whether an input is for values of a kind (`uri`, `email` or `date`)."""
    type_, _, mark = member.kind.partition(":")
    if type_ not in ("string", ANY) or kind not in _NAMED:
        return False
    return mark in _FORMATS[kind] if mark else not _NAMED[kind].isdisjoint(words(member.name))


def _is_near(value: Value, name: frozenset[str]) -> bool:
    return any(value.near & {one, *related(one)} for one in name)


def _suits(step: Step, wanted: Member, value: Value, *, is_made: bool) -> float:
    """Return the points of a value for an input, 0 if it does not fit.

    Args:
        is_made: whether an earlier step has an output with the name of the input.
    """
    type_, _, mark = wanted.kind.partition(":")
    name = name_stems(wanted.name)
    is_near = _is_near(value, name)
    if value.kind == "number":
        if type_ != "number" and not (type_ == "integer" and isinstance(value.value, int)):
            return 0
        if is_near:
            return _SAME_NAME
        # If a step has the inputs `sentences` and `words`, `3 sentences` must not fill `words`.
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
    """Fill the inputs of a step from the outputs of the steps before it.

    Each output fills at most one input. Required inputs come first, then inputs for which an output
    has more points, then generic inputs.
    """
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
    """Fill the remaining inputs of a step from later steps.

    Only an output with the same name as the input is used, and only if this makes no cycle.
    """
    for wanted in step.offer.inputs:
        if wanted.name in step.sources or wanted.name in step.payload:
            continue
        for other in after:
            names = {one.name for one in other.offer.outputs if fits(one.kind, wanted.kind)}
            if wanted.name in names and not depends(other, step):
                step.sources[wanted.name] = (other, wanted.name)
                break


def depends(step: Step, on: Step) -> bool:
    """Return whether a step depends on another step, directly or through other steps."""
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
    """An output that can fill an input.

    `score`: the points of the output for the input. `place`: the step and the name of its output.
    """

    score: float
    place: tuple[Step, str]

    @property
    def is_weak(self) -> bool:
        """Whether the output fits only by its kind, and not by its name or a phrase."""
        return self.score < _LIKE_NAME


def best_source(step: Step, wanted: Member, before: Sequence[Step]) -> Source | None:
    """Return the output that fills an input best, None if no output fits."""
    found: list[tuple[float, int, int, Step, str]] = []
    for place, other in enumerate(before):
        for order, output in enumerate(other.offer.outputs):
            if not fits(output.kind, wanted.kind) or _is_echo(other, output, wanted):
                continue
            score = _score(step, wanted, other, output)
            # An optional input, or an input with a specific name, needs an output that is meant for
            # it.
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
    """Return whether an input accepts any data of its kind, as `text` does and `city` does not."""
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
        score = 0.0  # the phrase mentions the output for another input
    if _is_changed(other, output) and wanted.name in other.offer.input_names:
        score += _CHANGED
    if output.kind == ANY:
        score -= _LIKE_NAME
    return score


def _is_echo(step: Step, output: Member, wanted: Member) -> bool:
    """Return whether an output only repeats an input of its step, such as the address of a page."""
    return output.name != wanted.name and output.name in step.offer.input_names


def _is_changed(step: Step, output: Member) -> bool:
    """Return whether an output is a changed form of an input: a participle such as `cleaned`."""
    return output.name.endswith("ed") and any(
        one.kind == output.kind for one in step.offer.inputs if one.is_required
    )
