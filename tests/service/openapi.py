"""Requests made from the service's own description of its calls: some that it allows, some not."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

GARBAGE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
NAMES = ["shop", "a", "b", "x1"]  # that exist, or come to exist


@dataclass(frozen=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None


def calls(description: dict[str, Any]) -> st.SearchStrategy[Call]:
    """Any request to any path that is described."""
    found = [
        _requests(description, path, method, about)
        for path, methods in description["paths"].items()
        for method, about in methods.items()
    ]
    every = st.one_of(found)

    @st.composite
    def call(
        draw: st.DrawFn,
    ) -> Call:  # whose name Hypothesis can say; that of `every` fills memory
        return draw(every)

    return call()


def _requests(
    description: dict[str, Any], path: str, method: str, about: dict[str, Any]
) -> st.SearchStrategy[Call]:
    parameters = about.get("parameters", [])
    kinds = {
        place: {p["name"]: p["schema"] for p in parameters if p["in"] == place}
        for place in ("path", "query")
    }
    places = st.fixed_dictionaries(
        {name: _texts(description, schema) for name, schema in kinds["path"].items()}
    )
    query = st.fixed_dictionaries(
        {}, optional={n: _texts(description, schema) for n, schema in kinds["query"].items()}
    )
    content = about.get("requestBody", {}).get("content", {}).get("application/json")
    bodies = _bodies(description, content["schema"]) if content else st.none()
    return st.builds(
        lambda values, asked, body: Call(method.upper(), _filled(path, values), asked, body),
        places,
        query,
        bodies,
    )


def _filled(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", quote(value, safe="", errors="surrogatepass") or "-")
    return path


def _texts(description: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[str]:
    return st.sampled_from(NAMES) | _values(description, schema).map(str) | st.text(max_size=12)


def _bodies(description: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[bytes]:
    sound = _values(description, schema)
    encoded = st.one_of(sound, sound, sound, GARBAGE).map(lambda value: json.dumps(value).encode())
    return st.one_of(encoded, encoded, encoded, st.binary(max_size=40))


def _values(description: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, and now and then one that it does not."""
    sound = _sound(description, schema)
    return st.one_of(sound, sound, sound, sound, sound, GARBAGE)


def _sound(description: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: _values(description, description["components"]["schemas"][name]))
    if "anyOf" in schema or "oneOf" in schema:
        return st.one_of(
            [_values(description, each) for each in schema.get("anyOf") or schema["oneOf"]]
        )
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        items = _values(description, schema.get("items", {}))
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=4)
    if schema.get("type") == "object":
        return _objects(description, schema)
    return _scalars(schema)


def _objects(description: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        values = schema.get("additionalProperties", {})
        inner = _values(description, values if isinstance(values, dict) else {})
        return st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=3)
    required = schema.get("required", [])
    parts = {n: _values(description, each) for n, each in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: parts[name] for name in required},
        optional={name: part for name, part in parts.items() if name not in required},
    )


def _scalars(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema.get("type") == "integer":
        return st.integers(low, high) | st.integers(1, 3)
    if schema.get("type") == "number":
        return st.floats(low, high, allow_nan=False) | st.sampled_from([0, 1, 0.5])
    if schema.get("type") == "boolean":
        return st.booleans()
    if schema.get("type") == "null":
        return st.none()
    if schema.get("type") == "string":
        known = st.sampled_from(NAMES)
        return known | (st.from_regex(schema["pattern"]) if "pattern" in schema else st.text())
    return GARBAGE
