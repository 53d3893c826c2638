"""The client, blocking and asynchronous, over one set of operations.

Theory of operation: `calls.py` says what each operation sends, as a generator. `_Operations` lists
the operations once; `Client` and `AsyncClient` differ only in how they drive such a generator.
Spec: Endpoints; contract.md sections 1 and 2.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, overload

import httpx

from callboard import calls, market_calls, trust_calls
from callboard.calls import Call, Json, NoReply, Reply, Steps, persistently

P = ParamSpec("P")

DEFAULT_URL = "http://127.0.0.1:8000"
REQUEST_TIMEOUT_S = 30.0


class _Operation(Generic[P]):
    """Makes an operation of `calls` a method of either client, with its own signature."""

    def __init__(self, build: Callable[P, Steps]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Json]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[Json]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Any:
        if client is None:
            return self
        run, build = client._run, self._build

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(build(*args, **kwargs))

        return update_wrapper(call, build)


class _Operations:
    """Every operation of the service that a client offers."""

    publish = _Operation(calls.publish)
    publish_bulk = _Operation(calls.publish_bulk)
    workflow = _Operation(calls.workflow)
    workflows = _Operation(calls.workflows)
    wait = _Operation(calls.wait)
    cancel = _Operation(calls.cancel)
    resume = _Operation(calls.resume)
    node_result = _Operation(calls.node_result)
    register_agent = _Operation(calls.register_agent)
    agents = _Operation(calls.agents)
    agent = _Operation(calls.agent)
    balance = _Operation(calls.balance)
    deposit = _Operation(calls.deposit)
    transactions = _Operation(calls.transactions)
    audit = _Operation(calls.audit)
    create_key = _Operation(calls.create_key)
    keys = _Operation(calls.keys)
    revoke_key = _Operation(calls.revoke_key)
    health = _Operation(calls.health)
    price = _Operation(market_calls.price)
    set_price = _Operation(market_calls.set_price)
    stake = _Operation(market_calls.stake)
    deposit_stake = _Operation(market_calls.deposit_stake)
    withdraw_stake = _Operation(market_calls.withdraw_stake)
    slash_stake = _Operation(market_calls.slash_stake)
    reputation = _Operation(market_calls.reputation)
    rebuild_reputation = _Operation(market_calls.rebuild_reputation)
    quota = _Operation(market_calls.quota)
    set_quota = _Operation(market_calls.set_quota)
    check_quota = _Operation(market_calls.check_quota)
    account = _Operation(market_calls.account)
    create_invoice = _Operation(market_calls.create_invoice)
    invoice = _Operation(market_calls.invoice)
    invoices = _Operation(market_calls.invoices)
    pay_invoice = _Operation(market_calls.pay_invoice)
    void_invoice = _Operation(market_calls.void_invoice)
    open_dispute = _Operation(market_calls.open_dispute)
    dispute = _Operation(market_calls.dispute)
    disputes = _Operation(market_calls.disputes)
    resolve_dispute = _Operation(market_calls.resolve_dispute)
    give_feedback = _Operation(market_calls.give_feedback)
    publish_task = _Operation(market_calls.publish_task)
    task = _Operation(market_calls.task)
    bid_for_task = _Operation(market_calls.bid_for_task)
    auction = _Operation(market_calls.auction)
    bid = _Operation(market_calls.bid)
    revoke_agent = _Operation(trust_calls.revoke_agent)
    unrevoke_agent = _Operation(trust_calls.unrevoke_agent)
    revocation = _Operation(trust_calls.revocation)
    revocations = _Operation(trust_calls.revocations)

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self.url = (url or os.environ.get("CALLBOARD_URL") or DEFAULT_URL).rstrip("/")
        self._api_key = api_key or os.environ.get("CALLBOARD_API_KEY")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _options(self) -> dict[str, Any]:
        headers = {"x-api-key": self._api_key} if self._api_key else {}
        return {"base_url": self.url, "headers": headers, "trust_env": False}

    def _failed(self, error: httpx.HTTPError) -> NoReply:
        reason = f"no answer from {self.url}: {error or type(error).__name__}"
        unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
        return NoReply(reason, sent=not isinstance(error, unsent))


def _arguments(call: Call) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.query),
        "json": call.body,
        "headers": dict(call.headers),
        "timeout": REQUEST_TIMEOUT_S + call.wait_s,
    }


def _read(response: httpx.Response) -> Reply:
    try:
        body = response.json()
    except ValueError:
        body = None
    return Reply(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body)


class Client(_Operations):
    """A blocking client.

    Args:
        url: the coordinator's address; default CALLBOARD_URL, else the local default.
        api_key: the caller's key; default CALLBOARD_API_KEY.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        super().__init__(url, api_key)
        self._http = httpx.Client(**self._options())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _run(self, steps: Steps) -> Json:
        attempts = persistently(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(self._send(call))
        except StopIteration as end:
            result: Json = end.value
            return result

    def _send(self, call: Call) -> Reply | NoReply:
        time.sleep(call.pause_s)
        try:
            return _read(self._http.request(**_arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)


class AsyncClient(_Operations):
    """A client for asyncio programs; the arguments are those of `Client`."""

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        super().__init__(url, api_key)
        self._http = httpx.AsyncClient(**self._options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _run(self, steps: Steps) -> Json:
        attempts = persistently(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(await self._send(call))
        except StopIteration as end:
            result: Json = end.value
            return result

    async def _send(self, call: Call) -> Reply | NoReply:
        await asyncio.sleep(call.pause_s)
        try:
            return _read(await self._http.request(**_arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)
