"""Derives a handler's input and output schemas from its signature, and binds inputs to parameters.

Type hints give the schemas on the agent's card. Inputs are converted to the hinted types, such as
dataclasses, pydantic models and dates. Hints that pydantic cannot describe are ignored, and so are
`dict` and `Any`. Parameters named `inputs`, `parents` or `later`, and parameters with the type
`Context`, do not receive a single input. Reference: features.md (Schemas).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema

from callboard.kit.context import Context, Later
from core.records.model_problems import problem_of

_WHOLE = frozenset({"inputs", "parents", "later"})
_SAYS_NOTHING: tuple[Any, ...] = (
    Any,
    dict,
    dict[str, Any],
    Mapping,
    Mapping[str, Any],
    None,
    Later,
)

Schema = dict[str, Any]

# The most result types whose adapter is cached. The cache is bounded because a handler may create a
# new type at each call.
TYPES_REMEMBERED_MAX = 256


class BadInput(Exception):
    """An input is missing, or does not have the type that the handler declares.

    Args:
        name: the name of the input.
        defect: what was got and what was expected; None if the input is missing.
    """

    def __init__(self, name: str, defect: str | None) -> None:
        super().__init__(name, defect)
        self.name = name
        self.defect = defect

    def __str__(self) -> str:
        if self.defect is None:
            return f"missing input '{self.name}'"
        return f"input '{self.name}': {self.defect}"


def defect_of(error: ValidationError) -> str:
    """Return a sentence on the first defect: its place, what was got and what was expected."""
    found = error.errors(include_url=False)[0]
    return problem_of(".".join(str(part) for part in found["loc"]), found).sentence


class _Plain(GenerateJsonSchema):
    """Generates JSON Schemas without the titles that pydantic derives from names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: a title that repeats the name has no use on a card."""
        return False


class Signature:
    """A handler's parameters, with the schemas that its type hints give.

    Args:
        call: the handler.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._parameters = tuple(inspect.signature(call).parameters.values())
        self._hints = _hints(call)
        self.wants_later = any(p.name == "later" for p in self._parameters)
        self._adapters = {
            parameter.name: adapter
            for parameter in self._inputs
            if (adapter := _adapter(self._hints.get(parameter.name, Any))) is not None
        }

    @property
    def _inputs(self) -> list[inspect.Parameter]:
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [
            parameter
            for parameter in self._parameters
            if parameter.name not in _WHOLE
            and parameter.kind not in variable
            and self._hints.get(parameter.name) is not Context
        ]

    @property
    def input_schema(self) -> Schema | None:
        """The JSON Schema of the inputs; None if no type hint describes an input."""
        inputs = self._inputs
        whole = _adapter(self._hints.get("inputs", Any))
        if whole is not None and not inputs:
            return _schema(whole)
        if not self._adapters:
            return None
        properties: dict[str, Any] = {
            f"field_{place}": (
                self._hints[parameter.name] if parameter.name in self._adapters else Any,
                Field(
                    ... if parameter.default is inspect.Parameter.empty else parameter.default,
                    alias=parameter.name,
                ),
            )
            for place, parameter in enumerate(inputs)
        }
        # `**others` and `inputs` receive every input, so the schema allows additional inputs.
        takes_all = any(
            one.kind is inspect.Parameter.VAR_KEYWORD or one.name == "inputs"
            for one in self._parameters
        )
        config = ConfigDict(extra="allow" if takes_all else "ignore")
        model: type[BaseModel] = create_model("Inputs", __config__=config, **properties)
        return _schema(TypeAdapter(model))

    @property
    def output_schema(self) -> Schema | None:
        """The JSON Schema of the result; None if the type hint does not describe an object."""
        adapter = _adapter(self._hints.get("return", Any))
        schema = None if adapter is None else _schema(adapter)
        # A result must be an object; a hint for another type, such as an AsyncIterator, is ignored.
        is_object = schema is not None and (schema.get("type") == "object" or "$ref" in schema)
        return schema if is_object else None

    def arguments(
        self, inputs: Mapping[str, Any], whole: Mapping[str, Any], context: Context
    ) -> dict[str, Any]:
        """Return the handler's arguments for a dispatch, by parameter name.

        Args:
            inputs: the node's inputs, by name.
            whole: the values for the parameters `inputs`, `parents` and `later`.
            context: the value for the parameter with the type `Context`.

        Raises:
            BadInput: an input is missing, or has another type than the handler declares.
        """
        bound: dict[str, Any] = {}
        for parameter in self._parameters:
            name = parameter.name
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound = {**inputs, **bound}
            elif self._hints.get(name) is Context:
                bound[name] = context
            elif name in _WHOLE:
                bound[name] = whole[name]
            elif name in inputs:
                bound[name] = self._value(name, inputs[name])
            elif parameter.default is inspect.Parameter.empty:
                raise BadInput(name, None)
        return bound

    def _value(self, name: str, value: Any) -> Any:
        adapter = self._adapters.get(name)
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise BadInput(name, defect_of(error)) from None


# Creating the adapter of a type takes a thousand times as long as using it.
_adapter_of_type: Callable[[Any], TypeAdapter[Any]] = functools.lru_cache(
    maxsize=TYPES_REMEMBERED_MAX
)(TypeAdapter)


def as_json(result: Any) -> Any:
    """Return a handler's result as a JSON value; models and dataclasses become objects.

    A dict and a `Later` are returned unchanged.
    """
    if isinstance(result, dict | Later):
        return result
    kind = type(result)
    try:
        adapter = _adapter_of_type(kind)
    except TypeError:  # the type is not hashable, because of its metaclass
        adapter = TypeAdapter(kind)
    return adapter.dump_python(result, mode="json", by_alias=True)


def _hints(call: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(call, include_extras=True)
    except (NameError, TypeError):
        # A hint uses a name that exists only for type checkers. Ignore that hint, and read the
        # others one by one.
        found: dict[str, Any] = {}
        for name, hint in inspect.get_annotations(call).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            with contextlib.suppress(NameError, TypeError):
                known = getattr(call, "__globals__", {})
                found |= typing.get_type_hints(alone, known, include_extras=True)
        return found


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    if hint in _SAYS_NOTHING or hint is type(None):
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        _schema(adapter)
    except PydanticUserError:
        return None
    return adapter


def _schema(adapter: TypeAdapter[Any]) -> Schema:
    schema = adapter.json_schema(by_alias=True, schema_generator=_Plain)
    schema.pop("title", None)
    return schema
