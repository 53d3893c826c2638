"""The metrics of the deployment, in Prometheus' text format.

Any replica can return the metrics of all processes, because the timekeeper adds them up. Reference:
operations.md (Metrics).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from core.metric_families import FAMILIES, STAGE_BOUNDS, SUM, Key
from core.records.api.shape import Kind
from core.trust.access import READ_METRICS
from serve_app.http.calls import Call, Operations, Reply

_TEXT: Final = Kind({"type": "string", "description": "Prometheus' text format, 0.0.4"})

OPERATIONS = Operations("service")


@OPERATIONS.add("GET", "/metrics", scope=READ_METRICS, reply=_TEXT, media_type="text/plain")
async def metrics(call: Call) -> Reply:
    """Read the metrics of the deployment."""
    sums = await call.services.gateway.ask_timekeeper("metrics")
    text = "\n".join([*_lines(sums), ""])
    return Reply(text.encode(), content_type=b"text/plain; version=0.0.4; charset=utf-8")


def _lines(sums: Mapping[Key, float]) -> Iterator[str]:
    """Return the lines of all metric families. A family without values has only HELP and TYPE.

    Label values need no escaping, because they are all constants of this code.
    """
    for name, kind, meaning, labels in FAMILIES:
        shown = f"{name}_total" if kind == "counter" else name
        yield f"# HELP {shown} {meaning}"
        yield f"# TYPE {shown} {kind}"
        found = {key[1:]: value for key, value in sorted(sums.items()) if key[0] == name}
        if kind == "histogram":
            for of in dict.fromkeys(key[:-1] for key in found):
                count = 0.0
                for bound in STAGE_BOUNDS:
                    count += found.get((*of, bound), 0)
                    yield _sample(f"{name}_bucket", (*labels, "le"), (*of, bound), count)
                yield _sample(f"{name}_count", labels, of, count)
                yield _sample(f"{name}_sum", labels, of, found.get((*of, SUM), 0))
        else:
            for values, value in found.items():
                yield _sample(shown, labels, values, value)


def _sample(name: str, labels: Key, values: Key, value: float) -> str:
    """Return the line of one sample."""
    pairs = ",".join(f'{one}="{of}"' for one, of in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} {float(value)}"
