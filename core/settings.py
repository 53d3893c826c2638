"""The settings of a deployment, which operators change, in one frozen object.

`serve_app/settings_from_env.py` builds the object once per process. No other module reads the
environment. Bounds that operators do not change are constants next to their use.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.market.sharing.fair_queue import parse_weights
from core.records.bounds import REGION_PATTERN, is_did
from core.shards.machine_size import DEDICATED_ACTORS_MAX, READER_POOL_SIZE, Wanted
from core.trust.deployment_keys import FORM, DeploymentKeys, parse_deployment_keys
from core.wording import did_you_mean

# The value of `cors_origins` that allows every origin.
ANY_ORIGIN: Final = "*"
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_OWN_URL: Final = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")
_SEED: Final = re.compile(r"[0-9a-f]{64}")
_HEADER_TEXT: Final = re.compile(r"[!-~]*")
_JWKS_URL: Final = re.compile(
    r"https://[^@\s]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?/\S*|file:///\S+"
)

_TOML_TYPES: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a float",
    bool: "a boolean",
    tuple: "an array of strings",
    list: "an array",
    dict: "a table",
}
_GOT_MAX: Final = 80


KIB, MIB = 1024, 1024 * 1024
DAY_MS = 86_400_000


class SettingsError(ValueError):
    """A setting has a value that the deployment cannot run with."""

    def __init__(self, name: str, got: str, expected: str) -> None:
        super().__init__(name, got, expected)
        self.name = name
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.name}: got {self.got}, expected {self.expected}"


def _setting(
    default: Any,
    about: str,
    low: int | None = None,
    high: int | None = None,
    *,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare one setting: its default, its description, and its range (both ends included)."""
    # Secrets are not in `repr`, because it is written to logs and error messages.
    return field(
        default=default,
        repr=not secret,
        metadata={"about": about, "range": (low, high), "choices": choices, "secret": secret},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a deployment. The last word of a name is the unit.

    Raises:
        SettingsError: a value is outside its range.
    """

    # The location of the deployment.
    home: str = _setting("", "the deployment's folder")
    run_folder: str = _setting("", "short folder for sockets; empty: derived from the home")
    host: str = _setting("127.0.0.1", "address the API listens on")
    port: int = _setting(8000, "port of the API", 1, 65_535)
    region: str = _setting("local", "region of this deployment, for federation")
    fallback_regions: tuple[str, ...] = _setting(
        (),
        "regions to try, in order, when no peer of the wanted region can take a node; only those"
        " to which the inputs may leave",
    )
    service: str = _setting("callboard", "name in dispatch paths and x-<service>- headers")
    public_url: str = _setting("", "address under which others reach the API; empty: host and port")
    signed_urls: tuple[str, ...] = _setting(
        (), "other addresses of the API that signed requests may name"
    )

    # Postgres. With empty URLs, the embedded server in the deployment's folder is used.
    database_url: str = _setting("", "Postgres, as the service's login", secret=True)
    owner_url: str = _setting("", "Postgres, as the owner; used by migrations only", secret=True)
    machine_connections_max: int = _setting(
        88, "connections of a machine's owners and replicas together", 16
    )

    # Secrets. The first start creates the deployment key in the deployment's folder.
    deployment_key: str = _setting(
        "", "hex of 32 bytes; with versions others are accepted, too", secret=True
    )
    signing_key: str = _setting(
        "",
        "Ed25519 seed of the signing key, 64 hex digits; used at the first start and by"
        " rotate-signing-key; empty: a random seed",
        secret=True,
    )
    signing_secret: str = _setting("", "signs dispatches where an agent gave none", secret=True)
    jwt_secret: str = _setting("", "HS256 secret of accepted access tokens", secret=True)
    jwks_url: str = _setting(
        "", "keys of accepted RS256 and EdDSA access tokens: https, or http or file of this machine"
    )
    jwt_issuer: str = _setting("", "iss that access tokens must have; without it none is admin")
    jwt_audience: str = _setting("", "aud that access tokens must have; empty: any")
    free_tier_key: str = _setting(
        "", "API key that may call suggest alone, counted per address; empty: none", secret=True
    )
    ray_token: str = _setting(
        "", "authenticates Ray's processes; the same on all machines of a cluster", secret=True
    )

    # Processes and the distribution of work.
    dispatch: str = _setting(
        "local", "local: own loop first; spread: over all machines", choices=("local", "spread")
    )
    isolation: str = _setting(
        "pooled", "pooled or dedicated workflow actors", choices=("pooled", "dedicated")
    )
    workflow_actors_per_machine: int = _setting(
        0, "processes that drive workflows; 0: by the machine's cores", 0, 64
    )
    serve_replicas: int = _setting(
        0, "processes per machine that serve the API; 0: by its cores", 0, 256
    )
    machines_max: int = _setting(
        1, "machines of the cluster, at most; join: 64 when not given", 1, 1_024
    )
    workflows_per_machine: int = _setting(
        0, "unfinished ones that ask Ray's autoscaler for one more machine; 0: it is not asked", 0
    )
    machine_idle_ms: int = _setting(
        300_000, "how long one machine less must be enough until one is given back", 1_000
    )
    replica_requests_max: int = _setting(2_000, "open requests per replica", 10)
    ray_cpus: int = _setting(0, "CPUs that Ray may count on; 0: all of the machine", 0)
    generation: str = _setting("", "names the actors of one release; set by `callboard upgrade`")

    # Requests.
    nodes_max: int = _setting(1_000, "nodes of one workflow", 1, 10_000)

    cors_origins: tuple[str, ...] = _setting(
        (), "origins whose pages may call the API in a browser; *: all; empty: none"
    )

    # Bounds per address or owner at the API (decisions http-edge, fairness-and-long-work and
    # limits-and-admission).
    trusted_proxies: tuple[str, ...] = _setting(
        (), "networks of proxies whose X-Forwarded-For names the caller's address"
    )
    connections_max: int = _setting(6_000, "connections to the API per machine", 100)
    bodies_max: int = _setting(500, "requests per replica whose body is incomplete", 10)
    waits_max: int = _setting(1_600, "requests per replica that wait (Prefer: wait)", 10)
    share_of_free: int = _setting(
        8, "one owner or address holds at most 1/n of what is free", 2, 100
    )

    # Rates per minute, for each owner, or for each address of callers without a key (specification,
    # Limits).
    read_rate: int = _setting(1_000, "read operations a minute", 1)
    write_rate: int = _setting(100, "write operations a minute", 1)
    bulk_rate: int = _setting(10, "bulk operations a minute", 1)
    machine_rate: int = _setting(6_000, "heartbeats and node results a minute", 1)

    # Workflows and nodes.
    max_runtime_ms_max: int = _setting(30 * DAY_MS, "largest maxRuntimeMs", 1, 30 * DAY_MS)
    workflows_per_actor_max: int = _setting(
        22_500, "unfinished workflows of an owner, eight ninths of them of one payer", 1
    )

    # Dispatch.
    payer_weights: tuple[str, ...] = _setting(
        (), "did=weight: payers that an agent's queue serves more often in their turn"
    )
    agent_concurrency: int = _setting(32, "dispatches at once to an agent", 1)
    claims: str = _setting(
        "first",
        "who may have names, heirs and versions: first (unproven claims too) or proven only",
        choices=("first", "proven"),
    )
    egress_allow: tuple[str, ...] = _setting(
        ("127.0.0.0/8", "::1/128"),
        "networks that agents may live in although not public; join: none when not given",
    )

    # Ledger.
    fee_bps: int = _setting(500, "protocol fee of a node payment, basis points", 0, 10_000)
    shard_drain_ms: int = _setting(
        10_000, "how long open calls may delay the move of a workflow to another owner", 0
    )
    owner_silence_ms: int = _setting(5_000, "silence after which an owner is replaced", 1_000)
    ledger_silence_ms: int = _setting(
        15_000, "silence after which the ledger actor is replaced", 5_000
    )
    timekeeper_silence_ms: int = _setting(
        15_000, "silence after which the timekeeper is replaced", 5_000
    )
    serve_silence_ms: int = _setting(
        30_000, "the same of Serve's controller, and of replicas of the API", 6_000
    )
    drain_ms: int = _setting(
        600_000, "how long a machine may drain until it is said what is left", 1_000, DAY_MS
    )

    # Identity.
    key_overlap_s: int = _setting(0, "how long a rotated key stays valid for results", 0, 86_400)

    # Drafts of workflows by a model (decision planning).
    model_url: str = _setting(
        "", "OpenAI-compatible API that drafts workflows, https://…/v1; empty: drafts by words"
    )
    model_name: str = _setting("", "name of the model that is requested")
    model_key: str = _setting("", "API key of the model, sent as a bearer token", secret=True)
    model_timeout_ms: int = _setting(20_000, "how long a suggestion waits for the model", 1, 60_000)

    # Traces.
    otlp_endpoint: str = _setting(
        "", "collector that gets the traces of ended workflows, http://…/v1/traces; empty: none"
    )

    # Market.
    stake_bps: int = _setting(
        0, "stake asked of an agent, basis points of the node's price", 0, 10_000
    )
    auction_stake_bps: int = _setting(
        1_000, "stake asked of a bidder, basis points of its bid", 0, 10_000
    )
    auction_score_min_percent: int = _setting(
        0, "least reputation score of a bidder, percent", 0, 100
    )
    slash_failure_bps: int = _setting(
        1_000, "locked stake lost by a failure, basis points", 0, 10_000
    )
    slash_fraud_bps: int = _setting(10_000, "locked stake lost by fraud, basis points", 0, 10_000)
    trusted_verifiers: tuple[str, ...] = _setting(
        (), "proven DIDs that may verify, besides agents that an administrator registered"
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_range(item, getattr(self, item.name))
        try:
            DeploymentKeys.parse(self.deployment_key)
        except ValueError:
            got = f"{len(self.deployment_key)} characters"  # a secret is not repeated in a message
            raise SettingsError("deployment_key", got, FORM) from None
        if self.signing_key and not _SEED.fullmatch(self.signing_key):
            got = f"{len(self.signing_key)} characters"
            raise SettingsError("signing_key", got, "64 hex digits, which are 32 bytes")
        if re.fullmatch(REGION_PATTERN, self.region) is None:
            expected = "1 to 64 letters, digits, dots, dashes and underscores, as eu-west-1"
            raise SettingsError("region", repr(self.region[:_GOT_MAX]), expected)
        _check_urls(self)
        _check_origins(self.cors_origins)
        _check_model(self)
        for name in ("egress_allow", "trusted_proxies"):
            _check_networks(name, getattr(self, name))
        for did in self.trusted_verifiers:
            if not is_did(did):
                raise SettingsError("trusted_verifiers", did[:_GOT_MAX], "DIDs, as did:example:me")
        _check_connections(self)
        try:
            parse_weights(self.payer_weights)
        except ValueError:
            weights = ",".join(self.payer_weights)
            raise SettingsError("payer_weights", weights, "did=weight, each 1 to 1000") from None

    @property
    def deployment_keys(self) -> DeploymentKeys:
        """Return the deployment's keys by version."""
        return parse_deployment_keys(self.deployment_key)

    @property
    def wanted_size(self) -> Wanted:
        """Return the settings that decide how many owners and replicas a machine runs."""
        return Wanted(
            self.workflow_actors_per_machine,
            self.serve_replicas,
            DEDICATED_ACTORS_MAX if self.isolation == "dedicated" else 0,
            READER_POOL_SIZE,
            self.machine_connections_max,
        )

    def on_machine(self, cores: int) -> Settings:
        """Return the settings for one machine, with its numbers of owners and replicas filled in.

        Args:
            cores: the number of cores of the machine, 1 or more.
        """
        size = self.wanted_size.size(cores)
        return dataclasses.replace(
            self,
            workflow_actors_per_machine=size.owners,
            serve_replicas=size.replicas,
        )

    @property
    def reader_pool_size(self) -> int:
        """Return how many connections for reads each process has; call after `on_machine`."""
        return self.wanted_size.size(1).reader_pool_size

    @property
    def needs_proof(self) -> bool:
        """Return whether names, heirs and versions require a proven claim of the DID."""
        return self.claims == "proven"

    @property
    def url(self) -> str:
        """Return the address under which clients reach the API."""
        return self.public_url or self.local_url

    @property
    def own_urls(self) -> tuple[str, ...]:
        """Return the addresses of the API that follow from the settings."""
        urls = dict.fromkeys((self.url, self.local_url, f"http://localhost:{self.port}"))
        return tuple(urls)

    @property
    def local_url(self) -> str:
        """Return the address under which this machine reaches its own API."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}"


def _check_urls(settings: Settings) -> None:
    for name, urls in (
        ("public_url", (settings.public_url,)),
        ("signed_urls", settings.signed_urls),
        ("model_url", (settings.model_url,)),
        ("otlp_endpoint", (settings.otlp_endpoint,)),
        ("jwks_url", (settings.jwks_url,)),
    ):
        form, example = (
            (_JWKS_URL, "https://host/path, http://127.0.0.1/path or file:///path")
            if name == "jwks_url"
            else (_OWN_URL, "https://host or http://host:port, without user, query and fragment")
        )
        for url in filter(None, urls):
            if form.fullmatch(url) is None:
                raise SettingsError(name, repr(url), f"addresses such as {example}")


def _check_origins(origins: tuple[str, ...]) -> None:
    if origins != (ANY_ORIGIN,):
        for origin in origins:
            if _ORIGIN.fullmatch(origin) is None:
                expected = f"origins such as https://host:port in lower case, or {ANY_ORIGIN} alone"
                raise SettingsError("cors_origins", repr(origin), expected)


def _check_model(settings: Settings) -> None:
    if settings.model_url and not settings.model_name:
        raise SettingsError("model_name", "nothing", "the name of a model of model_url")
    if not _HEADER_TEXT.fullmatch(settings.model_key):
        got = f"{len(settings.model_key)} characters"  # a secret is not repeated in a message
        raise SettingsError("model_key", got, "visible ASCII characters without blanks")


def _check_networks(name: str, networks: tuple[str, ...]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as defect:
            raise SettingsError(name, repr(network), f"networks as CIDR ({defect})") from None


def _check_connections(settings: Settings) -> None:
    least, most = settings.wanted_size.connections_min, settings.machine_connections_max
    if least > most:
        expected = f"{least} or more for the owners and replicas that the settings name"
        raise SettingsError("machine_connections_max", str(most), expected)


def about(name: str) -> str:
    """Return a setting's description."""
    return str(_declared(name).metadata["about"])


def is_secret(name: str) -> bool:
    """Say whether a setting's value must be masked in output."""
    return bool(_declared(name).metadata["secret"])


def setting_names() -> tuple[str, ...]:
    """Return the names of all settings in their order of declaration."""
    return tuple(item.name for item in dataclasses.fields(Settings))


def parse_setting(name: str, text: str) -> object:
    """Parse the text of a flag or an environment variable as the setting's type.

    Raises:
        SettingsError: the name is unknown, or the text is no value of the setting's type.
    """
    default = _declared(name).default
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(default, int):
        try:
            return int(text.replace("_", ""))
        except ValueError:
            raise SettingsError(name, repr(text), "a whole number") from None
    return text


def build_settings(values: Mapping[str, object]) -> Settings:
    """Return the settings with these values, and the defaults of all others.

    Raises:
        SettingsError: a name is unknown, or a value has the wrong type or range.
    """
    for name, value in values.items():
        _check_type(_declared(name), value)
    return Settings(**values)  # type: ignore[arg-type]  # each value was checked just above


def known_settings(values: Mapping[str, object]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings from values that another version of the code may have written.

    Args:
        values: the values by the name of the setting.

    Returns: the settings, and one message for each ignored value. A value is ignored if its name is
    unknown or if this version does not accept it. The default replaces an ignored value.

    Raises:
        SettingsError: values that are valid individually contradict each other.
    """
    known: dict[str, object] = {}
    left_out: list[str] = []
    for name, value in values.items():
        try:
            _check_type(_declared(name), value)
            _check_range(_declared(name), value)
        except SettingsError as error:
            left_out.append(f"{error.name}: expected {error.expected}")
        else:
            known[name] = value
    return Settings(**known), tuple(left_out)  # type: ignore[arg-type]  # each was checked above


def _check_type(item: dataclasses.Field[Any], value: object) -> None:
    """Check the type of a value. The message of the error names the types of TOML."""
    expected = _TOML_TYPES[type(item.default)]
    wrong = value
    if isinstance(value, (tuple, list)):
        wrong = next((part for part in value if not isinstance(part, str)), None)
        if isinstance(item.default, tuple) and wrong is None:
            return
    elif type(value) is type(item.default):
        return
    got = (
        _toml_type(value)
        if wrong is value or wrong is None
        else f"an array with {_toml_type(wrong)}"
    )
    if not item.metadata["secret"] and isinstance(wrong, (str, int, float)):
        got += f" ({json.dumps(wrong, ensure_ascii=False)[:_GOT_MAX]})"
    raise SettingsError(item.name, got, expected)


def _toml_type(value: object) -> str:
    return _TOML_TYPES.get(type(value), "a date or a time")


def _check_range(item: dataclasses.Field[Any], value: Any) -> None:
    choices = item.metadata["choices"]
    if choices and value not in choices:
        raise SettingsError(item.name, repr(value), " or ".join(choices))
    low, high = item.metadata["range"]
    if (low is not None and value < low) or (high is not None and value > high):
        wanted = f"{low} or more" if high is None else f"{low} to {high}"
        raise SettingsError(item.name, repr(value), wanted)


def _declared(name: str) -> dataclasses.Field[Any]:
    for item in dataclasses.fields(Settings):
        if item.name == name:
            return item
    expected = "one that `callboard settings` lists" + did_you_mean(name, setting_names())
    raise SettingsError(name, "an unknown setting", expected)
