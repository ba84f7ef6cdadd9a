"""JSON Schema, in few words, and the check of what callers send by the same schemas that the
document shows.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match

from scheduler.model.texts import LONGEST_NAME
from scheduler.web.problems import Problem

Schema = dict[str, Any]

LARGEST_PAGE = 1000
LONGEST_CURSOR = 2000
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

FORMATS = FormatChecker(formats=("uuid",))


@FormatChecker.checks(FORMATS, "date-time", ValueError)
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or (
        _MOMENT.fullmatch(value) is not None and bool(datetime.fromisoformat(value))
    )


def text(most: int | None = None, *, least: int = 0, **more: object) -> Schema:
    """A text."""
    return {
        "type": "string",
        **({"minLength": least} if least else {}),
        **({"maxLength": most} if most else {}),
        **more,
    }


def whole(least: int | None = None, most: int | None = None, **more: object) -> Schema:
    """A whole number."""
    bounds = {"minimum": least, "maximum": most}
    return {
        "type": "integer",
        **{word: bound for word, bound in bounds.items() if bound is not None},
        **more,
    }


def record(properties: Mapping[str, Schema], *, required: tuple[str, ...] | None = None) -> Schema:
    """An object with these properties and no others; all are required unless some are named."""
    needed = list(properties) if required is None else list(required)
    return {
        "type": "object",
        "properties": dict(properties),
        "required": needed,
        "additionalProperties": False,
    }


def listed(items: Schema, **more: object) -> Schema:
    """A list; its length is looked at first."""
    return {"type": "array", **more, "items": items}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def named(component: str) -> Schema:
    """One of the schemas that the document names."""
    return {"$ref": f"#/components/schemas/{component}"}


ANY: Schema = {}
YES: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
MOMENT = text(format="date-time")
UUID = text(format="uuid")
NAME = text(LONGEST_NAME, least=1, pattern=r"^[^\u0000]*$")
DURATION = text(
    100,
    pattern=r"^([0-9]{1,12}(\.[0-9]{1,6})?(ms|weeks?|days?|hours?|minutes?|seconds?|[smhdw]))+$",
    examples=["500ms", "15m", "1h30m"],
)
LIMIT = whole(1, LARGEST_PAGE, default=100, description="at most so many")
CURSOR = text(LONGEST_CURSOR, least=1, description="`cursor` of the page before")


def page(items: str) -> Schema:
    """Some of what was asked for; with a cursor there may be more."""
    return record({"items": listed(named(items)), "cursor": maybe(text())})


class Checked:
    """The check of one place of a request, made once."""

    def __init__(self, where: str, schema: Schema) -> None:
        self._where = where
        self._validator = Draft202012Validator(schema, format_checker=FORMATS)

    def check(self, value: object) -> None:
        """Refuse what the schema does not allow, naming the place."""
        first = next(
            self._validator.iter_errors(value), None
        )  # the others of a large body would take a while
        if first is not None:
            error = best_match([first]) or first
            place = ".".join(map(str, (self._where, *error.absolute_path))).removeprefix(".")
            raise Problem("invalid_request", f"{place[:200]}: {error.message[:500]}")


def plain(schema: Schema, said: list[str]) -> object:
    """Read a value out of the texts of a query; what cannot be read stays, and is refused by its
    schema.
    """
    kind = schema.get("type")
    if kind == "array":
        return said
    if len(said) > 1:
        return said
    (one,) = said
    if kind == "integer" and re.fullmatch(r"-?[0-9]{1,18}", one):
        return int(one)
    return {"true": True, "false": False}.get(one, one) if kind == "boolean" else one
