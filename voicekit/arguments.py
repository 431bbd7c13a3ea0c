"""The arguments of a tool: their JSON Schema from a function's signature, and the check of what a model proposes.

Pydantic does both from the same types, so that what the model was shown is what it is held to. (The package jsonschema
would do the check as well, but where Jupyter is installed importing it takes seconds, in every kernel and process.)
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NewType, NoReturn, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from voicekit.ledger import canonical
from voicekit.results import Result, invalid_argument

# A parameter of this type is not shown to the model: the backend fills it in. A system that keeps it beside what it did
# can be asked later whether it was done, and does nothing twice.
IdempotencyKey = NewType("IdempotencyKey", str)


class InvalidArguments(Exception):
    """A proposed call that is not to be run. `str` is one line naming what is wrong, `allowed` what would be right."""

    def __init__(self, reason_code: str, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.allowed = allowed

    def result(self) -> Result:
        """The answer for the model."""
        return invalid_argument(str(self), reason=self.reason_code, valid_options=list(self.allowed))


def model_of(name: str, function: Callable[..., Any]) -> tuple[type[BaseModel], str | None]:
    """Return a pydantic model of a function's parameters, and the name of its `IdempotencyKey` parameter, if any.

    Raises ValueError for a parameter that no JSON object could fill.
    """
    return _model_of(name, getattr(function, "__func__", function), inspect.ismethod(function))


@lru_cache(maxsize=200)  # a run makes its tools anew, of the same functions; pydantic takes a millisecond for each
def _model_of(name: str, function: Callable[..., Any], bound: bool) -> tuple[type[BaseModel], str | None]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(f"tool {name}: {error}; annotate it with a name the function's module knows") from None
    fields: dict[str, Any] = {}
    key_parameter = None
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:  # `self` is no argument
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"tool {name}: parameter {parameter} can not be filled by name; write it out")
        if parameter.name not in hints:
            raise ValueError(f"tool {name}: parameter {parameter.name} needs a type")
        if parameter.name.startswith("_") or hasattr(BaseModel, parameter.name):
            raise ValueError(f"tool {name}: {parameter.name} can not be the name of a parameter; choose another one")
        if hints[parameter.name] is IdempotencyKey:
            key_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields), key_parameter


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of an arguments model: type, properties, required, additionalProperties false."""
    return copy.deepcopy(_schema_of(model))


@lru_cache(maxsize=200)
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    return schema


class _Schema(GenerateJsonSchema):
    """Pydantic's schema without the title it makes of every field's name: tokens that say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def check(name: str, schema: dict[str, Any], model: type[BaseModel], text: str) -> dict[str, Any]:
    """Return the arguments in `text` as a dict, whole numbers as int. Raises InvalidArguments; repairs nothing."""

    def refuse(code: str, message: str, allowed: tuple[str, ...] = ()) -> NoReturn:
        raise InvalidArguments(code, f"{name}: {message}", allowed) from None

    known = tuple(schema["properties"])
    try:
        arguments = {} if not known and text.strip() in ("", "null") else _parse(text)
    except (ValueError, RecursionError) as error:
        refuse("not_json", f"the arguments are not one complete JSON object ({str(error)[:80]})")
    if not isinstance(arguments, dict):
        refuse("not_an_object", f"the arguments are a JSON object, not {_short(arguments)}")
    if strange := [field for field in arguments if field not in known]:
        refuse("unknown_field", f"unknown field {_short(strange[0])}; known: {', '.join(known) or 'none'}", known)
    if missing := [field for field in schema.get("required", ()) if field not in arguments]:
        refuse("missing_field", f"{' and '.join(missing)} missing", known)
    checked: dict[str, Any] = _whole_numbers(arguments)
    try:
        # Strict, and as JSON: "3" and true are no numbers, but a date may come as text, there being no other way.
        model.model_validate_json(canonical(checked), strict=True)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(map(str, first["loc"]))
        allowed = tuple(map(str, schema["properties"][first["loc"][0]].get("enum", ())))
        rule = f"is one of {', '.join(allowed)}" if allowed else first["msg"].replace("Input should", "should")
        refuse("invalid_value", f"{where} {rule}, not {_short(first['input'])}".replace("\n", " "), allowed)
    return checked


def _parse(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=_no_doubles, parse_constant=_not_json)
    canonical(value).encode()  # 1e999 and half a surrogate pair are read without complaint, but are not JSON
    return value


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a field is given twice")
    return value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _whole_numbers(value: Any) -> Any:
    """3.0 and 3 are the same JSON number; one spelling, so that equal arguments have equal keys."""
    if isinstance(value, dict):
        return {name: _whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
