"""Writes `serve_app/openapi/examples.json`: of every operation a body and a reply, as they went.

Run it after `pytest tests/contract --ignore tests/contract/test_edges.py --keep-replies FILE` (that
file sends odd values): `python -m scripts.record_examples FILE`.
Of the replies that fit an operation's schema the one that shows most members is taken, of those the
shortest; of each refusal the shortest. Secrets and local addresses are replaced, lists cut.
What the file has stays while the document describes it: for a new operation, FILE of its own test
is enough. To have an example recorded anew, delete it first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve_app.openapi.document import EXAMPLES
from tests.contract.described import Described, described

Json = dict[str, Any]
# What is longer than an example should be.
_NOT_SHOWN = ("GET /openapi.json",)
_ROWS_MAX = 2
_MEMBERS_MAX = 3
_LOCAL = re.compile(r"http://127\.0\.0\.1:\d+")
_SECRETS = {
    "key": "cb_shown-this-once",
    "heartbeatToken": "a-token-for-heartbeats",
    "signingSecret": "a-secret-of-the-agent",
    "resultId": "4f" * 32,
    "secret": "whsec_c2hvd24tdGhpcy1vbmNlLW9ubHktISEh",
    "webhookSecret": "whsec_c2hvd24tdGhpcy1vbmNlLW9ubHktISEh",
    "hookUrl": "https://callboard.example/v1/hooks/a-token-of-the-hook",
}


def exchanges(kept: Path) -> Iterator[Json]:
    """Yield the kept exchanges, bodies and replies parsed where they are JSON."""
    with kept.open(encoding="utf-8") as lines:
        for line in lines:
            exchange = json.loads(line)
            for name in ("sent", "body"):
                try:
                    exchange[name] = json.loads(exchange[name])
                except ValueError:
                    exchange[name] = None
            yield exchange


def chosen(kept: Path, document: Described) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the best exchange of every operation, and the shortest refusal of every code."""
    best: dict[str, tuple[Any, Json]] = {}
    problems: dict[str, Json] = {}
    for exchange in exchanges(kept):
        reply, path = exchange["body"], exchange["path"].partition("?")[0]
        template = document.path_of(path)
        if template is None or not isinstance(reply, dict):
            continue
        if exchange["status"] != 200:
            code = str(reply.get("code"))
            if len(str(reply)) < len(str(problems.get(code, " " * 100_000))):
                problems[code] = reply
            continue
        key = f"{exchange['method']} {template}"
        if key in _NOT_SHOWN:
            continue
        method, sent = exchange["method"], exchange["sent"]
        fits = document.fits_first(method, template, reply)
        worth = (fits, document.fits_body(method, template, sent), *_worth(exchange))
        if key not in best or worth > best[key][0]:
            best[key] = (worth, exchange)
    return {key: exchange for key, (_, exchange) in best.items()}, problems


def _worth(exchange: Json) -> tuple[Any, ...]:
    """Return what makes an exchange a good example; of two the greater is better."""
    reply = exchange["body"]
    sent = exchange["sent"] if isinstance(exchange["sent"], dict) else {}
    good = sum("code" not in result for result in reply.get("results", ()))
    is_record = not exchange["path"].endswith("/result")  # a node's result is any JSON
    shown = sum(value not in (None, [], {}) for value in reply.values()) if is_record else 0
    size = len(str(sent)) + len(str(reply))
    return (min(good, _ROWS_MAX), shown, min(len(sent), _MEMBERS_MAX), -size)


def cleaned(value: Any, name: str = "") -> Any:
    """Return an example without secrets and addresses of this machine, its lists cut."""
    if isinstance(value, dict):
        return {member: cleaned(below, member) for member, below in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value[:_ROWS_MAX]] if name != "scopes" else value[:3]
    if isinstance(value, str):
        return _SECRETS.get(name) or _LOCAL.sub("https://agents.example.org", value)
    return value


def added(examples: Json, kept: Path, document: Described) -> Json:
    """Return examples with those of the kept exchanges, and without what is described no more.

    Args:
        examples: `operations` and `problems` as they are now.
        kept: the exchanges.
        document: what operations there are, and what their examples have to look like.
    """
    found, problems = chosen(kept, document)
    operations = {}
    for key, exchange in found.items():
        operations[key] = {"reply": cleaned(exchange["body"])}
        if isinstance(exchange["sent"], dict):
            operations[key]["body"] = cleaned(exchange["sent"])
    for key, example in examples["operations"].items():
        method, path = key.split(" ")
        fits = document.fits_first(method, path, example["reply"])
        if "body" in example:
            fits = fits and document.fits_body(method, path, example["body"])
        if fits or (key not in operations and document.has(method, path)):
            operations[key] = example
    shown = {code: cleaned(problem) for code, problem in problems.items() if code != "None"}
    shown |= examples["problems"]
    return {
        "operations": dict(sorted(operations.items())),
        "problems": dict(sorted(shown.items())),
    }


def main(kept: Path) -> None:
    """Add the examples of the kept exchanges to the file."""
    examples = added(json.loads(EXAMPLES.read_text(encoding="utf-8")), kept, described())
    text = json.dumps(examples, indent=1, ensure_ascii=False)
    EXAMPLES.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
