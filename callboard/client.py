"""The client, blocking and asynchronous, over one set of operations.

Theory of operation: `calls.py` says what each operation sends, as a generator; `replies.py` says
what comes back. `_Operations` lists the operations once; `Client` and `AsyncClient` differ only in
how they drive such a generator. Reference: http.md (Endpoints).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from callboard import (
    calls,
    capability_calls,
    cluster_calls,
    event_streams,
    identity_calls,
    market_calls,
    peer_calls,
    replies,
    subnet_calls,
    trigger_calls,
    trust_calls,
    webhook_calls,
)
from callboard.calls import (
    ATTEMPTS_MAX,
    AUDIT_PAGE,
    Call,
    CardSigner,
    NoReply,
    Reply,
    Steps,
    persistently,
)
from callboard.event_streams import Connections
from callboard.locating import DidKey, locate
from callboard.replies import AuditEntry, Published, Workflow, successful
from callboard.request_signing import SignsRequests
from callboard.tls import tls_context_for
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Json
from core.trust.did_key import key_of_did

P = ParamSpec("P")
R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)
H = TypeVar("H", httpx.Client, httpx.AsyncClient)

REQUEST_TIMEOUT_S = 30.0
_LOG = logging.getLogger("callboard")


class _Operation(Generic[P, R_co]):
    """Makes an operation of `calls` a method of either client, with its own signature.

    Args:
        build: the operation.
        record: what it returns.
        is_handle: whether a record takes the client, too.
    """

    def __init__(
        self, build: Callable[P, Steps], record: type[R_co], *, is_handle: bool = False
    ) -> None:
        self._build = build
        self._record = record
        self._is_handle = is_handle
        self.__doc__ = build.__doc__

    # Of the class it is a function, so that `help` shows its arguments.
    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Steps]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, R_co]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[R_co]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Any:
        build, record = self._build, self._record
        if client is None:
            return build
        made = partial(record, client=client) if self._is_handle else record

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._run(build(*args, **kwargs), made)

        return update_wrapper(call, build)


def _reading(path: str, record: type[R]) -> _Operation[[str], R]:
    """Make the operation that reads one record by its id; the record's text is its own.

    Args:
        path: of the record, `{}` for the id.
    """
    read = calls.reading(path)
    read.__doc__ = _doc_of(record)
    return _Operation(read, record)


def _listing(
    path: str, query: Callable[P, object], page: type[R], **defaults: Any
) -> _Operation[P, R]:
    """Make the operation that reads a page of a list; its arguments are the query's members.

    Args:
        path: of the list.
        query: the class of its query.
        page: the class of its pages.
        defaults: of arguments that are not given.
    """
    read = calls.listing(path, query, **defaults)
    read.__doc__ = _doc_of(page)
    return _Operation(read, page)


def _listing_of(
    path: str, query: Callable[P, object], page: type[R]
) -> _Operation[Concatenate[str, P], R]:
    """Make the operation that reads a page of a list that belongs to one record.

    Args:
        path: of the list, `{}` for the record's id.
        query: the class of its query.
        page: the class of its pages.
    """
    read = calls.listing_of(path, query)
    read.__doc__ = _doc_of(page)
    return _Operation(read, page)


def _doc_of(record: type[Record]) -> str:
    what = record.__doc__ or ""
    return f"Read {what[:1].lower()}{what[1:]}"


class _Iteration(Generic[P, R]):
    """Makes a list a method that gives the records of all its pages.

    The arguments are those of the list; pages are read as they are needed.
    """

    def __init__(self, listed: _Operation[P, Page[R]]) -> None:
        self._build = listed._build
        self._page = listed._record
        self.__doc__ = f"{listed.__doc__} Reads all pages, one after the other."

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Any:
        if client is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            if isinstance(client, Client):
                return self._each(client, *args, **kwargs)
            return self._each_async(client, *args, **kwargs)

        return update_wrapper(call, self._build)

    def _each(self, client: Client, *args: Any, **kwargs: Any) -> Iterator[R]:
        place: Json | None = {}
        while place is not None:
            page = client._run(self._build(*args, **{**kwargs, **place}), self._page)
            yield from page.rows
            place = page.next_place()
            kwargs.pop("offset", None)  # it is passed over already

    async def _each_async(self, client: AsyncClient, *args: Any, **kwargs: Any) -> AsyncIterator[R]:
        place: Json | None = {}
        while place is not None:
            page = await client._run(self._build(*args, **{**kwargs, **place}), self._page)
            for row in page.rows:
                yield row
            place = page.next_place()
            kwargs.pop("offset", None)  # it is passed over already


class _Stream(_Iteration[P, AuditEntry]):
    """A client method that iterates over the entries of a stream, and reconnects when needed."""

    def __init__(self, build: Callable[P, Steps]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    def _each(self, client: Client, *args: Any, **kwargs: Any) -> Iterator[AuditEntry]:
        connections = Connections(client._attempts(self._build(*args, **kwargs)))
        while (call := connections.next_call()) is not None:
            client._announce(call)
            time.sleep(call.pause_s)
            try:
                with client._http.stream(**client._arguments(call)) as response:
                    connections.open(response.status_code, response.headers)
                    for part in response.iter_bytes():
                        yield from connections.read(part)
            except httpx.HTTPError as error:
                connections.fail(client._failed(error))

    async def _each_async(
        self, client: AsyncClient, *args: Any, **kwargs: Any
    ) -> AsyncIterator[AuditEntry]:
        connections = Connections(client._attempts(self._build(*args, **kwargs)))
        while (call := connections.next_call()) is not None:
            client._announce(call)
            await asyncio.sleep(call.pause_s)
            try:
                async with client._http.stream(**client._arguments(call)) as response:
                    connections.open(response.status_code, response.headers)
                    async for part in response.aiter_bytes():
                        for entry in connections.read(part):
                            yield entry
            except httpx.HTTPError as error:
                connections.fail(client._failed(error))


class _Operations(Generic[H]):
    """Every operation of the service that a client offers."""

    suggest = _Operation(calls.suggest, replies.Suggestion)
    publish_bulk = _Operation(calls.publish_bulk, replies.BulkPublished)
    workflow = _reading("/v1/workflows/{}", replies.Workflow)
    budget = _reading("/v1/workflows/{}/budget", replies.Budget)
    workflows = _listing("/v1/workflows", replies.WorkflowsQuery, replies.WorkflowPage)
    trace = _listing_of("/v1/traces/{}", replies.TraceQuery, replies.TracePage)
    wait = _Operation(calls.wait, replies.Workflow)
    cancel = _Operation(calls.cancel, replies.Cancelled)
    resume = _Operation(calls.resume, replies.Resumed)
    node_result = _Operation(calls.node_result, replies.NodeResultTaken)
    deregister_agent = _Operation(calls.deregister_agent, replies.Deregistered)
    heartbeat = _Operation(calls.heartbeat, replies.HeartbeatTaken)
    agents = _listing("/v1/agents", replies.AgentsQuery, replies.AgentPage)
    agent = _Operation(calls.agent, replies.Agent)
    card_versions = _listing_of("/v1/agents/{}/versions", PageQuery, replies.Lineage)
    discover = _Operation(calls.discover, replies.Discovered)
    balance = _Operation(calls.balance, replies.Balance)
    deposit = _Operation(calls.deposit, replies.Deposited)
    transactions = _listing("/v1/ledger/transactions", replies.EntriesQuery, replies.EntryPage)
    history = _listing_of("/v1/ledger/{}/history", PageQuery, replies.HistoryPage)
    audit = _listing("/v1/audit", replies.AuditQuery, replies.AuditPage, limit=AUDIT_PAGE)
    audit_entry = _reading("/v1/audit/{}", replies.AuditEntry)
    audit_checkpoint = _Operation(trust_calls.audit_checkpoint, replies.SignedCheckpoint)
    audit_proof = _Operation(trust_calls.audit_proof, replies.InclusionProof)
    audit_consistency = _Operation(trust_calls.audit_consistency, replies.ConsistencyProof)
    check_audit = _Operation(trust_calls.check_audit, replies.AuditVerification)
    create_key = _Operation(calls.create_key, replies.KeyCreated)
    keys = _listing("/v1/keys", replies.KeysQuery, replies.KeyPage)
    rotate_key = _Operation(calls.rotate_key, replies.KeyRotated)
    revoke_key = _Operation(calls.revoke_key, replies.KeyRevoked)
    health = _Operation(calls.health, replies.Health)
    price = _reading("/v1/capabilities/{}/price", replies.Price)
    set_price = _Operation(market_calls.set_price, replies.PriceSet)
    publish_version = _Operation(capability_calls.publish_version, replies.VersionPublished)
    versions_of = _listing_of(
        "/v1/capabilities/{}/versions", PageQuery, replies.CapabilityVersionPage
    )
    version = _Operation(capability_calls.version, replies.CapabilityVersionWhole)
    deprecate_version = _Operation(capability_calls.deprecate_version, replies.VersionDeprecated)
    negotiate_version = _Operation(capability_calls.negotiate_version, replies.Negotiated)
    stake = _reading("/v1/stakes/{}", replies.Stake)
    deposit_stake = _Operation(market_calls.deposit_stake, replies.StakeMoved)
    withdraw_stake = _Operation(market_calls.withdraw_stake, replies.StakeMoved)
    collect = _Operation(market_calls.collect, replies.Collected)
    slash_stake = _Operation(market_calls.slash_stake, replies.StakeSlashed)
    reputation = _reading("/v1/reputation/{}", replies.Reputation)
    rebuild_reputation = _Operation(market_calls.rebuild_reputation, replies.ReputationCompared)
    quota = _reading("/v1/quotas/{}", replies.Quota)
    set_quota = _Operation(market_calls.set_quota, replies.QuotaSet)
    check_quota = _Operation(market_calls.check_quota, replies.QuotaCheck)
    account = _reading("/v1/ledger/accounts/{}", replies.Account)
    create_invoice = _Operation(market_calls.create_invoice, replies.InvoiceChanged)
    invoice = _reading("/v1/invoices/{}", replies.InvoiceWithLines)
    invoices = _listing("/v1/invoices", replies.InvoicesQuery, replies.InvoicePage)
    pay_invoice = _Operation(market_calls.pay_invoice, replies.InvoiceChanged)
    void_invoice = _Operation(market_calls.void_invoice, replies.InvoiceChanged)
    open_dispute = _Operation(market_calls.open_dispute, replies.DisputeOpened)
    dispute = _reading("/v1/disputes/{}", replies.Dispute)
    disputes = _listing("/v1/disputes", replies.DisputesQuery, replies.DisputePage)
    resolve_dispute = _Operation(market_calls.resolve_dispute, replies.DisputeResolved)
    give_feedback = _Operation(market_calls.give_feedback, replies.Feedback)
    publish_task = _Operation(market_calls.publish_task, replies.TaskPublished)
    task = _reading("/v1/tasks/{}", replies.Task)
    bid_for_task = _Operation(market_calls.bid_for_task, replies.Bid)
    auction = _Operation(market_calls.auction, replies.Auction)
    bid = _Operation(market_calls.bid, replies.Bid)
    revoke_agent = _Operation(trust_calls.revoke_agent, replies.Revoked)
    unrevoke_agent = _Operation(trust_calls.unrevoke_agent, replies.Unrevoked)
    revocation = _reading("/v1/revoked/{}", replies.Revocation)
    revocations = _listing("/v1/revoked", PageQuery, replies.RevocationPage)
    service_description = _Operation(trust_calls.service_description, replies.ServiceDescription)
    rotate_signing_key = _Operation(trust_calls.rotate_signing_key, replies.SigningKeyRotated)
    signed_results = _listing_of(
        "/v1/trust/signed-results/{}", replies.SignedResultsQuery, replies.SignedResultPage
    )
    verify_result = _Operation(trust_calls.verify_result, replies.ResultVerified)
    receipt = _reading("/v1/receipts/{}", replies.Receipt)
    receipts_of = _listing_of("/v1/receipts/{}", PageQuery, replies.ReceiptPage)
    receipts_of_workflow = _listing_of("/v1/receipts/workflow/{}", PageQuery, replies.ReceiptPage)
    submit_receipt = _Operation(trust_calls.submit_receipt, replies.ReceiptSubmitted)
    verify_receipt = _Operation(trust_calls.verify_receipt, replies.ReceiptVerified)
    rotate_agent_key = _Operation(identity_calls.rotate_agent_key, replies.AgentKeyRotated)
    key_history = _listing_of("/v1/trust/key-history/{}", PageQuery, replies.KeyHistory)
    register_name = _Operation(identity_calls.register_name, replies.NameChanged)
    name = _reading("/v1/identity/names/{}", replies.Name)
    names_of = _listing_of("/v1/agents/{}/names", PageQuery, replies.NamePage)
    renew_name = _Operation(identity_calls.renew_name, replies.NameChanged)
    transfer_name = _Operation(identity_calls.transfer_name, replies.NameTransferred)
    release_name = _Operation(identity_calls.release_name, replies.NameReleased)
    set_inheritance = _Operation(identity_calls.set_inheritance, replies.InheritanceSet)
    inheritance = _reading("/v1/identity/inheritance/{}", replies.Inheritance)
    cancel_inheritance = _Operation(identity_calls.cancel_inheritance, replies.InheritanceCancelled)
    set_guardians = _Operation(identity_calls.set_guardians, replies.GuardiansSet)
    guardians = _reading("/v1/identity/guardians/{}", replies.GuardianSet)
    request_recovery = _Operation(identity_calls.request_recovery, replies.RecoveryMade)
    recovery = _reading("/v1/identity/recover/{}", replies.Recovery)
    cancel_recovery = _Operation(identity_calls.cancel_recovery, replies.RecoveryMade)
    cluster = _Operation(cluster_calls.cluster, replies.Cluster)
    drain_machine = _Operation(cluster_calls.drain_machine, replies.MachineChanged)
    resume_machine = _Operation(cluster_calls.resume_machine, replies.MachineChanged)
    books = _Operation(cluster_calls.books, replies.BooksChecked)
    check_books = _Operation(cluster_calls.check_books, replies.BooksRequested)
    create_webhook = _Operation(webhook_calls.create_webhook, replies.Webhook)
    webhook = _reading("/v1/webhooks/{}", replies.Webhook)
    webhooks = _listing("/v1/webhooks", PageQuery, replies.WebhookPage)
    change_webhook = _Operation(webhook_calls.change_webhook, replies.Webhook)
    rotate_webhook_secret = _Operation(webhook_calls.rotate_webhook_secret, replies.Webhook)
    delete_webhook = _Operation(webhook_calls.delete_webhook, replies.WebhookDeleted)
    test_webhook = _Operation(webhook_calls.test_webhook, replies.WebhookDelivery)
    deliveries = _listing_of(
        "/v1/webhooks/{}/deliveries", replies.DeliveriesQuery, replies.DeliveryPage
    )
    redeliver = _Operation(webhook_calls.redeliver, replies.WebhookDelivery)

    create_schedule = _Operation(trigger_calls.create_schedule, replies.TriggerChanged)
    schedule = _reading("/v1/schedules/{}", replies.Trigger)
    schedules = _listing("/v1/schedules", replies.TriggersQuery, replies.SchedulePage)
    start_run = _Operation(trigger_calls.start_run, replies.RunStarted)
    due_times = _Operation(trigger_calls.due_times, replies.DueTimes)
    create_trigger = _Operation(trigger_calls.create_trigger, replies.TemplateStored)
    call_hook = _Operation(trigger_calls.call_hook, replies.RunStarted)
    trigger = _reading("/v1/triggers/{}", replies.Trigger)
    triggers = _listing("/v1/triggers", replies.TriggersQuery, replies.TriggerPage)
    schedule_runs = trigger_runs = _listing_of("/v1/triggers/{}/runs", PageQuery, replies.RunPage)
    change_trigger = _Operation(trigger_calls.change_trigger, replies.TriggerChanged)
    delete_trigger = _Operation(trigger_calls.delete_trigger, replies.TriggerChanged)
    change_schedule, delete_schedule = change_trigger, delete_trigger

    add_peer = _Operation(peer_calls.add_peer, replies.PeerAdded)
    peer = _reading("/v1/federation/peers/{}", replies.Peer)
    peers = _listing("/v1/federation/peers", replies.PeersQuery, replies.PeerPage)
    remove_peer = _Operation(peer_calls.remove_peer, replies.PeerRemoved)
    peer_heartbeat = _Operation(peer_calls.peer_heartbeat, replies.PeerHeartbeatTaken)
    peer_balance = _reading("/v1/federation/peers/{}/balance", replies.PeerBalance)
    peer_statement = _listing_of(
        "/v1/federation/peers/{}/statement", replies.StatementQuery, replies.Statement
    )
    check_peer = _listing_of("/v1/federation/peers/{}/check", replies.CheckQuery, replies.PeerCheck)
    settle_peer = _Operation(peer_calls.settle_peer, replies.Settled)
    route = _listing_of("/v1/federation/route/{}", replies.RouteQuery, replies.RouteResult)
    trust_events = _listing(
        "/v1/federation/trust-events", replies.TrustEventsQuery, replies.TrustPage
    )
    create_subnet = _Operation(subnet_calls.create_subnet, replies.Subnet)
    subnet = _reading("/v1/federation/subnets/{}", replies.Subnet)
    remove_subnet = _Operation(subnet_calls.remove_subnet, replies.SubnetRemoved)
    subnets = _listing("/v1/federation/subnets", replies.SubnetsQuery, replies.SubnetPage)
    add_subnet_member = _Operation(subnet_calls.add_subnet_member, replies.MemberChanged)
    remove_subnet_member = _Operation(subnet_calls.remove_subnet_member, replies.MemberChanged)
    create_policy = _Operation(subnet_calls.create_policy, replies.SubnetPolicy)
    policies = _listing("/v1/federation/policies", replies.PoliciesQuery, replies.PolicyPage)
    remove_policy = _Operation(subnet_calls.remove_policy, replies.PolicyRemoved)

    stream = _Stream(event_streams.stream)
    events = _Stream(event_streams.events)
    iterate_workflows = _Iteration(workflows)
    iterate_agents = _Iteration(agents)
    iterate_versions = _Iteration(versions_of)
    iterate_transactions = _Iteration(transactions)
    iterate_audit = _Iteration(audit)
    iterate_signed_results = _Iteration(signed_results)
    iterate_receipts_of_workflow = _Iteration(receipts_of_workflow)
    iterate_invoices = _Iteration(invoices)
    iterate_disputes = _Iteration(disputes)
    iterate_revocations = _Iteration(revocations)

    # Makes the HTTP client, unless the caller gives one.
    _open: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        did: str | None = None,
        private_key: str | Path | None = None,
        reason: str | None = None,
        home: Path | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attempts_max: int = ATTEMPTS_MAX,
        on_wait: Callable[[float], object] | None = None,
        proxy: str | None = None,
        http: H | None = None,
    ) -> None:
        given = None if private_key is None else DidKey.read(private_key, did)
        location = locate(url, api_key, home, given)
        self.url = location.url.rstrip("/")
        self._api_key = location.api_key
        self._did_key = location.did_key
        self._auth = None if location.did_key is None else SignsRequests(location.did_key)
        self._reason = reason
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._on_wait = on_wait
        self._is_own = http is None
        self._http: H = http or self._open(
            proxy=proxy, verify=tls_context_for(self.url), trust_env=False
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _registration(
        self,
        card: Mapping[str, Any],
        signing_secret: str | None,
        private_key: str | Path | None,
        owner_did: str | None,
    ) -> Steps:
        """Return the steps that register a card, signed where the agent's key is known."""
        did, key = str(card.get("did", "")), self._did_key
        if private_key is not None:
            key = DidKey.read(private_key, did)
        elif key is not None and (key.did != did or key_of_did(did) is None):
            key = None  # of another DID, or it shows nothing of this one
        if key is None:
            return calls.register_agent(card, signing_secret=signing_secret)
        own = None if self._did_key is None else self._did_key.did
        owner = owner_did or own
        if owner is None:
            raise ValueError("a signed card names its owner: give owner_did")
        signer = CardSigner(key, self.url, owner)
        return calls.register_agent(card, signing_secret=signing_secret, signer=signer)

    def _attempts(self, steps: Steps) -> calls.Attempts:
        return persistently(steps, attempts_max=self._attempts_max)

    def _announce(self, call: Call) -> None:
        """Say that the client waits for a rate limit, if it does before this call."""
        if call.is_limited:
            said = "rate limit: waiting %.1f s before %s %s is sent again"
            _LOG.warning(said, call.pause_s, call.method, call.path)
            if self._on_wait is not None:
                self._on_wait(call.pause_s)

    def _arguments(self, call: Call) -> dict[str, Any]:
        headers: dict[str, str | bytes] = dict(call.headers)
        # A call with a credential of its own goes without the client's.
        if self._reason is not None and call.method != "GET":
            headers["x-callboard-reason"] = self._reason.encode()
        auth: dict[str, Any] = {}
        if "Authorization" not in headers:
            if self._api_key:
                headers["x-api-key"] = self._api_key
            if self._auth is not None:
                auth["auth"] = self._auth
        return {
            **auth,
            "method": call.method,
            "url": self.url + call.path,
            "params": dict(call.query),
            "json": call.body,
            "headers": headers,
            "timeout": self._timeout_s + call.wait_s,
            # A redirect would take the key to where it points, also with a client of the caller's.
            "follow_redirects": False,
        }

    def _failed(self, error: httpx.HTTPError) -> NoReply:
        reason = f"no answer from {self.url}: {error or type(error).__name__}"
        unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
        return NoReply(reason, sent=not isinstance(error, unsent))


def _read(response: httpx.Response) -> Reply:
    try:
        is_text = response.headers.get("content-type", "").startswith("text/plain")
        body = {"note": response.text} if is_text and response.is_success else response.json()
    except ValueError:
        body = None
    return Reply(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body)


def _ended(published: Published) -> Workflow | None:
    """Return the record that publishing waited for, None if it did not wait or not long enough."""
    is_record = "nodes" in published and published.status in replies.FINISHED
    return Workflow(published) if is_record else None


class WorkflowHandle(Published):
    """A published workflow: the reply to publishing it, and what can be done with it."""

    def __init__(self, reply: Mapping[str, Any], client: Client) -> None:
        super().__init__(reply)
        self._client = client

    def record(self) -> Workflow:
        """Read the workflow as it stands."""
        return self._client.workflow(self.workflow_id)

    def result(self, timeout_s: float | None = None) -> Workflow:
        """Return the record once the workflow has succeeded.

        Args:
            timeout_s: how long to wait, None for as long as it takes.

        Raises:
            WorkflowFailed: it has ended otherwise.
            StillRunning: it has not ended in that time.
        """
        record = _ended(self) or self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; what is left in its escrow returns."""
        return self._client.cancel(self.workflow_id, reason=reason, details=details)


class AsyncWorkflowHandle(Published):
    """`WorkflowHandle` for asyncio programs."""

    def __init__(self, reply: Mapping[str, Any], client: AsyncClient) -> None:
        super().__init__(reply)
        self._client = client

    async def record(self) -> Workflow:
        """Read the workflow as it stands."""
        return await self._client.workflow(self.workflow_id)

    async def result(self, timeout_s: float | None = None) -> Workflow:
        """Return the record once the workflow has succeeded; see `WorkflowHandle.result`."""
        record = _ended(self) or await self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    async def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; what is left in its escrow returns."""
        return await self._client.cancel(self.workflow_id, reason=reason, details=details)


class Client(_Operations[httpx.Client]):
    """A blocking client.

    Args:
        url: the coordinator's address; default CALLBOARD_URL, else the local deployment's.
        api_key: the caller's key; default CALLBOARD_API_KEY, which is sent to whatever address is
            used, else the local deployment's, which is sent to that deployment only.
        did: the DID that signs the requests; default the `did:key` of the private key.
        private_key: its Ed25519 key, in the place of an API key: base64 of the 32 bytes, or the
            path of a file with that or with PEM; default the file that CALLBOARD_DID_KEY names, of
            the DID CALLBOARD_DID, which comes before CALLBOARD_API_KEY.
        reason: why an operator's right is used, for the audit; at most 512 characters.
        home: the folder of a local deployment, instead of the default one.
        timeout_s: how long one request may take beside what it asks the service to wait.
        attempts_max: how often a request that is safe to repeat is sent at most, 1 to 5.
        on_wait: called with the seconds of each wait for a rate limit, before the wait; the wait is
            logged in any case, as a warning of the logger `callboard`.
        proxy: the address of an HTTP proxy; the environment's is not used.
        http: an httpx client to send with, which stays the caller's to close; `proxy` is its own.

    Raises:
        Unavailable: no address is given and no deployment runs here.
        ValueError: the private key is none, or an API key is given as well.
    """

    publish = _Operation(calls.publish, WorkflowHandle, is_handle=True)
    _open = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless the httpx client is the caller's."""
        if self._is_own:
            self._http.close()

    def register_agent(
        self,
        card: Mapping[str, Any],
        *,
        signing_secret: str | None = None,
        private_key: str | Path | None = None,
        owner_did: str | None = None,
    ) -> replies.Registered:
        """Register an agent card, or replace it. Reference: features.md (Registration).

        A client that signs by the agent's own `did:key` signs the card, too.

        Args:
            card: the agent card in its JSON form.
            signing_secret: the secret the coordinator signs dispatches to this agent with.
            private_key: the agent's, which signs the card: as of this client.
            owner_did: the agent's owner, whom a signed card names; default the DID that signs the
                requests.

        Raises:
            ValueError: the private key is none, or a signed card would name no owner.
        """
        steps = self._registration(card, signing_secret, private_key, owner_did)
        return self._run(steps, replies.Registered)

    def _run(self, steps: Steps, record: Callable[[Json], R]) -> R:
        attempts = self._attempts(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(self._send(call))
        except StopIteration as end:
            return record(end.value)

    def _send(self, call: Call) -> Reply | NoReply:
        self._announce(call)
        time.sleep(call.pause_s)
        try:
            return _read(self._http.request(**self._arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)


class AsyncClient(_Operations[httpx.AsyncClient]):
    """A client for asyncio programs; the arguments are those of `Client`."""

    publish = _Operation(calls.publish, AsyncWorkflowHandle, is_handle=True)
    _open = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless the httpx client is the caller's."""
        if self._is_own:
            await self._http.aclose()

    async def register_agent(
        self,
        card: Mapping[str, Any],
        *,
        signing_secret: str | None = None,
        private_key: str | Path | None = None,
        owner_did: str | None = None,
    ) -> replies.Registered:
        """Register an agent card, or replace it. Reference: features.md (Registration).

        A client that signs by the agent's own `did:key` signs the card, too.

        Args:
            card: the agent card in its JSON form.
            signing_secret: the secret the coordinator signs dispatches to this agent with.
            private_key: the agent's, which signs the card: as of this client.
            owner_did: the agent's owner, whom a signed card names; default the DID that signs the
                requests.

        Raises:
            ValueError: the private key is none, or a signed card would name no owner.
        """
        steps = self._registration(card, signing_secret, private_key, owner_did)
        return await self._run(steps, replies.Registered)

    async def _run(self, steps: Steps, record: Callable[[Json], R]) -> R:
        attempts = self._attempts(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(await self._send(call))
        except StopIteration as end:
            return record(end.value)

    async def _send(self, call: Call) -> Reply | NoReply:
        self._announce(call)
        await asyncio.sleep(call.pause_s)
        try:
            return _read(await self._http.request(**self._arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)
