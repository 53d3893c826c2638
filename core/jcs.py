"""The canonical form of JSON (RFC 8785, JCS), with the standard library only.

Members are sorted by the UTF-16 units of their names. Text is escaped only where JSON demands it.
Numbers are written as in ECMAScript, but an integer keeps all its digits. The client uses this
module to check audit chains and to sign results. `canonical.py` has a faster encoder with the same
output.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any, Final

from core.json_bounds import INTEGER_DIGITS_MAX, INTEGER_END

# ECMAScript writes numbers from 10^21 and below 10^-6 with an exponent.
_PLAIN_DIGITS_MAX: Final = 21
_LEADING_ZEROS_MAX: Final = 6


def jcs(value: Any) -> bytes:
    """Return the canonical form of a JSON value.

    Raises:
        ValueError: the value has no canonical form: it contains an integer of more than 128 digits,
            NaN, an infinity, a lone surrogate, a key that is no text, or a value of another type.
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def number_text(value: float) -> str:
    """Return a number as ECMAScript writes it (ECMA-262, Number::toString).

    Raises:
        ValueError: the number is NaN or an infinity.
    """
    if value * 0 != 0:
        raise ValueError(f"got {value}, expected a finite number")
    if value == 0:
        return "0"
    # Python and ECMAScript write the same shortest digits. Only numbers that Python writes with an
    # exponent may have another position of the decimal point.
    text = float.__repr__(value)
    if "e" not in text:
        return text.removesuffix(".0")
    mantissa, _, exponent = text.partition("e")
    sign, mantissa = ("-", mantissa[1:]) if value < 0 else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    return sign + _place_point(whole + fraction, 1 + int(exponent))


def _write(value: Any, parts: list[str]) -> None:
    match value:
        case None:
            parts.append("null")
        case bool():
            parts.append("true" if value else "false")
        case str():
            parts.append(encode_basestring(value))
        case int():
            if not -INTEGER_END < value < INTEGER_END:
                most = INTEGER_DIGITS_MAX
                raise ValueError(f"got an integer of more than {most} digits, expected {most}")
            parts.append(int.__repr__(value))
        case float():
            parts.append(number_text(value))
        case list() | tuple():
            _write_array(value, parts)
        case dict():
            _write_object(value, parts)
        case _:
            raise ValueError("got a value that JSON does not have, expected a JSON value")


def _write_array(items: list[Any] | tuple[Any, ...], parts: list[str]) -> None:
    parts.append("[")
    for place, item in enumerate(items):
        if place:
            parts.append(",")
        _write(item, parts)
    parts.append("]")


def _write_object(members: dict[Any, Any], parts: list[str]) -> None:
    for name in members:
        if not isinstance(name, str):
            raise ValueError("got a name that is no text, expected text")
    parts.append("{")
    for place, name in enumerate(sorted(members, key=lambda name: name.encode("utf-16-be"))):
        if place:
            parts.append(",")
        parts += (encode_basestring(name), ":")
        _write(members[name], parts)
    parts.append("}")


def _place_point(digits: str, point: int) -> str:
    """Return digits with the decimal point after the first `point` digits."""
    if len(digits) <= point <= _PLAIN_DIGITS_MAX:
        return digits + "0" * (point - len(digits))
    if 0 < point <= _PLAIN_DIGITS_MAX:
        return f"{digits[:point]}.{digits[point:]}"
    if -_LEADING_ZEROS_MAX < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
