"""An agent that writes down every dispatch it gets; run as a process of its own.

Called with the path of its log and, to come back where it was, a port; prints its port; ends when
its standard input closes. Each line of the log is `eventId workflowId node attempt`, so that a test
can see what was repeated; the node of a verification ends in `#verify`. Inputs may ask for a
behaviour: `delay_s`, and `manner`: `fail`, or what an agent does that means harm (`hang`, `huge`,
`slow`, `redirect`, `bomb`).
"""

from __future__ import annotations

import asyncio
import gzip
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from aiohttp import web

HUGE_BYTES = 10 * 1024 * 1024
FOREVER_S = 3_600.0
PRIVATE = "http://10.0.0.1/"
TOKENS = {"input_tokens": 700, "output_tokens": 301}


@cache
def bomb() -> bytes:
    """Return 100 MB in 100 kB; made when first asked for, for it takes most of a second."""
    return gzip.compress(b'"' + b"x" * (10 * HUGE_BYTES) + b'"')


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Do what the inputs ask for."""
    inputs = body["inputs"]
    await asyncio.sleep(float(inputs.get("delay_s", 0)))
    match inputs.get("manner"):
        case "fail":
            failed = {"eventId": body["eventId"], "status": "error", "error": "as it was told"}
            return web.json_response(failed)
        case "hang":
            await asyncio.sleep(FOREVER_S)
        case "huge":
            return web.Response(
                body=b'"' + b"x" * HUGE_BYTES + b'"', content_type="application/json"
            )
        case "bomb":
            headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            return web.Response(body=bomb(), headers=headers)
        case "slow":
            return await _drip(request)
        case "redirect":
            raise web.HTTPTemporaryRedirect(PRIVATE)
    reply = {"status": "success", "result": {"n": 1, "approved": True}, "metrics": TOKENS}
    return web.json_response({"eventId": body["eventId"], **reply})


async def _drip(request: web.Request) -> web.StreamResponse:
    """Send a byte a second until the other side has had enough."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(b" ")
            await asyncio.sleep(1.0)
    return response


async def main(path: str, port: int) -> None:
    """Serve until standard input closes."""
    with open(path, "a", encoding="utf-8", buffering=1) as log:  # noqa: ASYNC230  # before serving

        async def work(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            event = str(body["eventId"])
            node = body["nodeId"] + ("#verify" if event.endswith("#verify") else "")
            log.write(f"{event} {body['workflowId']} {node} {body['attempt']}\n")
            return await answer(request, body)

        application = web.Application()
        application.router.add_post("/callboard/node", work)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048, reuse_address=True).start()
        sys.stdout.write(f"{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
