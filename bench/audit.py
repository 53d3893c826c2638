"""What the audit log costs at a million entries: pages, filters and proofs by HTTP, checks.

Entries of workflows are stored in bulk, past the ledger, into a deployment of its own; then the
timekeeper signs them, each request is sent often, the log is exported, and the export is verified.

Usage: `python -m bench.audit [entries]`, default 1,000,000.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg

from callboard.client import Client
from callboard.proofs import export_log
from callboard.verify import verify_log
from core.ids import uuid7
from core.timestamps import iso_ms
from core.trust.hashchain import record_body, record_hash
from tests.faults.victims import superuser_url
from tests.platform.deployments import free_port, start_deployment

ASKED: Final = 100
PAYERS: Final = 1_000
BEGAN_MS: Final = 1_760_000_000_000
Row = tuple[Any, ...]
KINDS: Final = ("workflow.published", "node.succeeded", "node.succeeded", "workflow.finished")


def made_entries(
    first: int, last: int, before: bytes
) -> Iterator[tuple[Row, Row | None, list[Row]]]:
    """Yield rows of `audit`, `audit_event` and `audit_party`; every tenth entry is a deposit."""
    workflow = ""
    for number in range(first, last + 1):
        payer, agent = f"did:bench:p{number // 4 % PAYERS}", f"did:bench:a{number % PAYERS}"
        at_ms = BEGAN_MS + number * 10
        if number % 4 == 0 or not workflow:
            workflow = uuid7(at_ms=at_ms, entropy=number.to_bytes(10, "big"))
        kind, target = KINDS[number % 4], ("workflow", workflow)
        payload: dict[str, Any] = {
            "nodeId": "a",
            "agentDid": agent,
            "outputHash": "sha256:" + 64 * "a",
        }
        if number % 10 == 0:
            kind, target, payload = "ledger.deposited", ("account", payer), {"amountCredits": "1"}
        event = {"type": kind, "targetType": target[0], "targetId": target[1], "payload": payload}
        paid = {**event, "type": "payment.settled"}
        body = record_body(
            number, kind, actor_did=payer, target_type=target[0], target_id=target[1],
            action=kind.partition(".")[2], payload={"events": [event, paid]},
            created_at=iso_ms(at_ms), prev_hash=before,
        )  # fmt: skip
        before = record_hash(body)
        is_workflows = target[0] == "workflow"
        yield (
            (
                number,
                [kind],
                payer,
                target[1] if is_workflows else None,
                at_ms,
                body.decode(),
                before,
            ),
            None if is_workflows else (number, 0, kind, *target),
            [(payer, number), (agent, number)],
        )


def fill(url: str, entries: int) -> None:
    """Store entries after those of the log, as its owner, whom no trigger stops."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1 FROM callboard.head FOR UPDATE")
        (before,) = connection.execute("SELECT audit_seq, hash FROM callboard.head").fetchall()
        connection.execute("ALTER TABLE callboard.audit DISABLE TRIGGER USER")
        connection.execute("ALTER TABLE callboard.audit_event DISABLE TRIGGER USER")
        number, digest = before
        step = 50_000
        while number < entries:
            rows = list(made_entries(number + 1, min(number + step, entries), digest))
            for table, part in (
                ("audit", [one for one, _, _ in rows]),
                ("audit_event", [one for _, one, _ in rows if one is not None]),
                ("audit_party", [one for _, _, more in rows for one in more]),
            ):
                with connection.cursor().copy(f"COPY callboard.{table} FROM STDIN") as copy:
                    for row in part:
                        copy.write_row(row)
            number, digest = rows[-1][0][0], rows[-1][0][-1]
        connection.execute("UPDATE callboard.head SET audit_seq = %s, hash = %s", (number, digest))
        connection.execute("ALTER TABLE callboard.audit ENABLE ALWAYS TRIGGER append_only")
        connection.execute("ALTER TABLE callboard.audit ENABLE ALWAYS TRIGGER link_audit")
        connection.execute("ALTER TABLE callboard.audit_event ENABLE ALWAYS TRIGGER append_only")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")


def p95_ms(http: httpx.Client, path: str, entries: int) -> float:
    """Return what a request takes, the slowest twentieth left out."""
    took = []
    for number in range(ASKED):
        began = time.perf_counter()
        http.get(path.format(id=1 + number * 7919 % entries, at=number)).raise_for_status()
        took.append((time.perf_counter() - began) * 1_000)
    return sorted(took)[ASKED * 95 // 100]


def main(entries: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="cb-audit-") as folder:
        home = Path(folder) / "up"
        home.mkdir()
        (home / "callboard.toml").write_text("read_rate = 1_000_000\n", encoding="utf-8")
        running = start_deployment(home, port=free_port())
        began = time.perf_counter()
        fill(superuser_url(running), entries)
        print(f"{entries} entries stored in {time.perf_counter() - began:.0f} s")
        with Client(running.url, running.admin_key) as client:
            began = time.perf_counter()
            while int(client.audit_checkpoint().note.split("\n")[1]) < entries:
                time.sleep(0.5)
            print(f"signed in {time.perf_counter() - began:.0f} s")
            middle = iso_ms(BEGAN_MS + entries * 5)
            headers = {"x-api-key": running.admin_key}
            with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
                for path in (
                    "/ready", "/v1/audit?limit=100", "/v1/audit/{id}", "/v1/audit/proof?id={id}",
                    "/v1/audit/consistency?from={id}", "/v1/audit?actorDid=did:bench:p{at}",
                    "/v1/audit?eventType=ledger.deposited", "/v1/audit?eventType=node.succeeded",
                    "/v1/audit?targetId=did:bench:p{at}", f"/v1/audit?endTime={middle}",
                    f"/v1/audit?startTime={middle}", "/v1/audit/verify?from={id}",
                ):  # fmt: skip
                    print(f"{path:45} p95 {p95_ms(http, path, entries):6.1f} ms")
            file = Path(folder) / "audit.jsonl"
            began = time.perf_counter()
            export_log(client, file)
            print(
                f"exported in {time.perf_counter() - began:.0f} s, {file.stat().st_size >> 20} MiB"
            )
        running.down()
        began = time.process_time()
        with file.open("rb") as lines:
            log = verify_log(lines)
        took = time.process_time() - began
        print(f"verified {log.entries} entries, {log.entries / took:,.0f} a second of one core")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
