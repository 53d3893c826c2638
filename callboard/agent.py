"""Write an agent in ten lines: declare capabilities with a decorator, then `run`.

Spec: Agent interface; docs/agents.md shows it used.
"""

from __future__ import annotations

import asyncio

from callboard import serving
from callboard.answering import AnsweringAgent


class Agent(AnsweringAgent):
    """An agent that serves its capabilities over HTTP; see `AnsweringAgent` for its arguments."""

    def run(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        endpoint: str | None = None,
        register: bool = True,
        until_eof: bool = False,
    ) -> None:
        """Serve until SIGINT or SIGTERM; prints one line once the agent is ready.

        Args:
            host: the address to listen on.
            port: the port to listen on, 0 for a free one.
            endpoint: the public address, when it is not the one listened on.
            register: register the card with the coordinator (CALLBOARD_URL, CALLBOARD_API_KEY).
            until_eof: end also when standard input closes, so that no agent outlives its starter.

        Raises:
            CallboardError: the coordinator could not be reached or refused the card.
        """
        asyncio.run(
            serving.run(
                self,
                host=host,
                port=port,
                endpoint=endpoint,
                register=register,
                until_eof=until_eof,
            )
        )
