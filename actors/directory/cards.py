"""Builds directory entries from stored agent cards, and finds the prices that agents ask.

The functions do no I/O. Reference: features.md (Agent cards).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from actors.ports import AgentEntry, AskingPrices
from actors.values.agent_schemas import AgentSchemas
from core.capabilities.semver import is_version, version_id
from core.json_text import read_json
from core.market.pricing import FREE, Price, TokenPrice, effective_price, parse_price
from core.market.standing_bid import standing_offers
from core.records.agent import said_in_card
from core.records.bounds import TRUSTED_VERIFIERS
from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, unseal

# The empty mapping of all cards that lack a member. Sharing it saves memory.
_NONE: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class CardReader:
    """Builds entries from cards, with the defaults of this deployment.

    Args:
        service: the service name, which is `<service>` in dispatch paths.
        deployment_keys: unseal signing secrets.
        default_secret: signs dispatches to agents without a secret of their own, or None.
        max_concurrency: the concurrency of agents whose card has no `maxConcurrency`.
        schemas: the cache for the schemas of the cards.
        trusted_verifiers: the DIDs that the settings trust to verify, if their claim is proven.
    """

    service: str
    deployment_keys: DeploymentKeys
    default_secret: str | None
    max_concurrency: int
    schemas: AgentSchemas
    trusted_verifiers: Collection[str] = ()

    def build_entry(self, row: Mapping[str, Any], order: int) -> AgentEntry:
        """Return the entry of an agent.

        Args:
            row: `did, owner_did, card, endpoint, public_key, signing_secret, is_trusted,
                is_proven`; and `former_key, former_until_ms` if the agent had another key before.
            order: the agent's position in the order of reading, which decides between equal ranks.
        """
        card = read_json(row["card"])
        for one in card["capabilities"]:
            one["id"] = intern(one["id"])  # many agents offer the same capability
        secret = self.default_secret
        if row["signing_secret"] is not None:
            secret = unseal(
                bytes(row["signing_secret"]), self.deployment_keys, KeyPurpose.SIGNING_SECRET
            )
        url, cancel_url = self._find_urls(str(row["endpoint"]), card.get("dispatchPath"))
        versions = _versions_of(card["capabilities"])
        promised_ms = _promises_of(card["capabilities"])
        # An invalid stored price counts as no price.
        prices = {c["id"]: parse_price(c)[0] for c in card["capabilities"]}
        for capability_id, version in versions.items():
            offered_id = intern(version_id(capability_id, version))
            prices[offered_id] = prices[capability_id]
            if capability_id in promised_ms:
                promised_ms[offered_id] = promised_ms[capability_id]
        return AgentEntry(
            did=row["did"],
            owner_did=row["owner_did"],
            url=url,
            cancel_url=cancel_url,
            prices=prices,
            secret=secret,
            max_concurrency=int(card.get("maxConcurrency") or self.max_concurrency),
            order=order,
            standing=standing_offers(card["capabilities"]) or _NONE,
            public_key=row["public_key"],
            former_key=row.get("former_key"),
            former_until_ms=row.get("former_until_ms") or 0,
            input_schemas=self._schema_names(card, "inputSchema"),
            output_schemas=self._schema_names(card, "outputSchema"),
            versions=versions or _NONE,
            is_trusted=bool(row.get("is_trusted") or self._is_named(row)),
            accepted_verifiers=_accepted_verifiers(card.get("acceptedVerifiers")),
            promised_ms=promised_ms or _NONE,
            private_subnet=row.get("private_subnet") or "",
            region=_region_of(card),
        )

    def _is_named(self, row: Mapping[str, Any]) -> bool:
        # Without a proven claim, a stranger may have registered the DID before its real owner.
        return row["did"] in self.trusted_verifiers and bool(row.get("is_proven"))

    def _find_urls(self, endpoint: str, dispatch_path: str | None) -> tuple[str, str]:
        """Return the URLs of an agent for dispatches and for cancel notices.

        An endpoint that ends in `/node` is itself the dispatch URL. It is used as registered, with
        or without a final slash, because a server that serves one form may redirect the other form.
        If the card has a `dispatchPath`, the dispatch URL is the endpoint with this path appended.
        The dispatch URL is "" for an agent without an endpoint.
        """
        base = endpoint.rstrip("/")
        is_path = base.endswith("/node")
        prefix = base.removesuffix("/node") if is_path else f"{base}/{self.service}"
        url = endpoint if is_path else f"{prefix}/node"
        if dispatch_path:
            url = f"{base}{dispatch_path}"
        return url if endpoint else "", f"{prefix}/cancel"

    def _schema_names(self, card: dict[str, Any], member: str) -> dict[str, str]:
        names = {
            one["id"]: self.schemas.keep(one[member])
            for one in card["capabilities"]
            if one.get(member) is not None
        }
        return names or _NONE


def _versions_of(capabilities: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the version that a card offers of each capability, without invalid versions."""
    return {c["id"]: intern(c["version"]) for c in capabilities if is_version(c.get("version"))}


def _accepted_verifiers(said: str | list[str] | None) -> str | tuple[str, ...]:
    """Return the verifiers that a card accepts: "trusted", "any", or a tuple of DIDs."""
    return tuple(map(intern, said)) if isinstance(said, list) else said or TRUSTED_VERIFIERS


def _region_of(card: Mapping[str, Any]) -> str:
    region = said_in_card(card, "region")
    return intern(region) if isinstance(region, str) else ""


def _promises_of(capabilities: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the promised time of a card's capabilities, milliseconds, by capability."""
    return {c["id"]: int(c["etaMs"]) for c in capabilities if c.get("etaMs") is not None}


def find_target_prices(
    entry: AgentEntry, capability_id: str, registered: Price | None
) -> AskingPrices:
    """Return the prices that one agent asks for a capability, for an estimate.

    Args:
        entry: an agent that offers the capability.
        registered: the capability's registered price, which is the most that a node pays.
    """
    own = effective_price(entry.prices[capability_id], registered)
    if isinstance(own, TokenPrice):
        return AskingPrices(registered, None, own)
    return AskingPrices(registered, own.micro)


def find_asking_prices(entries: Iterable[AgentEntry], capability_id: str) -> AskingPrices:
    """Return the prices that agents ask for a capability that has no registered price.

    Args:
        entries: the agents that offer the capability.
    """
    by_token: TokenPrice | None = None
    asked: set[int] = set()
    for entry in entries:
        price = entry.prices[capability_id] or FREE
        if isinstance(price, TokenPrice):
            by_token = price
        else:
            asked.add(price.micro)
    positive_micro = min((micro for micro in asked if micro), default=None)
    return AskingPrices(
        None, max(asked, default=None), by_token, min(asked, default=None), positive_micro
    )
