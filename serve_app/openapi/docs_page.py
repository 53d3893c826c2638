"""Renders the API's documentation as one HTML page that works offline.

The page has no scripts and loads no other resources. Its content security policy allows only its
own style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any, Final

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
summary{cursor:pointer;padding:.4rem;border-bottom:1px solid #ddd}
code,pre{font:13px ui-monospace,monospace}pre{background:#f6f6f6;padding:.6rem;overflow:auto}
b.m{display:inline-block;width:4.5rem}td{vertical-align:top;padding:.1rem .8rem .1rem 0}
"""

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
DOCS_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)


def docs_page(document: dict[str, Any]) -> bytes:
    """Return the HTML page of an OpenAPI document."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Callboard API</title>",
        f"<style>{_STYLE}</style><h1>Callboard {escape(document['info']['version'])}</h1>",
        f"<p>{escape(document['info']['summary'])} ",
        "The same as <a href=/openapi.json>OpenAPI</a>.",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            section = _section(path, method, operation)
            by_tag.setdefault(operation["tags"][0], []).append(section)
    for tag, sections in by_tag.items():
        parts.append(f"<h2>{escape(tag)}</h2>{''.join(sections)}")
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts.append(
            f"<details id='{escape(name)}'><summary>{escape(name)}</summary>"
            f"{_pre(schema)}</details>"
        )
    return "".join(parts).encode()


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(status)}<td>{escape(response['description'])}"
        for status, response in operation["responses"].items()
    )
    body = ""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        body = f"<p>Body: {_link(media['schema'])}{_pre(media.get('example'))}"
    answer = next(iter(operation["responses"]["200"]["content"].values()))
    return (
        f"<details><summary><b class=m>{escape(method.upper())}</b> <code>{escape(path)}</code> "
        f"{escape(operation['summary'])}</summary><p>{escape(operation['description'])}{body}"
        f"<p>Answer: {_link(answer['schema'])}{_pre(answer.get('example'))}"
        f"<table>{rows}</table></details>"
    )


def _link(schema: dict[str, Any]) -> str:
    """Return links to the named schemas that a schema refers to, or else its description."""
    named = [
        one["$ref"].rsplit("/", 1)[1] for one in schema.get("anyOf", [schema]) if "$ref" in one
    ]
    links = [f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in named]
    return " or ".join(links) or escape(schema.get("description", schema.get("type", "any value")))


def _pre(value: Any) -> str:
    if value is None:
        return ""
    return f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
