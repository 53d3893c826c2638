"""An agent that writes down every dispatch it gets; run as a process of its own.

Called with the path of its log; prints its port; ends when its standard input closes. Each line of
the log is `eventId workflowId node`, so that a test can see what was repeated.
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


async def main(path: str) -> None:
    """Serve until standard input closes."""
    with open(path, "a", encoding="utf-8", buffering=1) as log:  # noqa: ASYNC230  # before serving

        async def work(request: web.Request) -> web.Response:
            body = await request.json()
            log.write(f"{body['eventId']} {body['workflowId']} {body['nodeId']}\n")
            return web.json_response(
                {"eventId": body["eventId"], "status": "success", "result": {"n": 1}}
            )

        application = web.Application()
        application.router.add_post("/callboard/node", work)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        sys.stdout.write(f"{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
