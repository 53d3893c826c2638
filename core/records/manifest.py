"""The workflow manifest that a payer publishes. It is parsed and checked once, at the HTTP edge.

`parse_manifest` and `parse_list_form` parse published manifests. They refuse unknown members by
name, accept the alternative spellings, and report all problems at once, those of the graph
included. The first `PROBLEMS_MAX` problems are listed, the others are counted.
Node names have 1 to 128 characters without control characters, quotes, backslashes and outer
spaces, so that `$.name.result` or `$['name'].result` can name each node. They must not contain
`#verify`, which marks the payment line of a node's verifier.
Reference: features.md (Workflows, Nodes, Inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.json import decode
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic import ValidationError as PydanticError
from pydantic.alias_generators import to_camel

from core.capabilities.semver import parse_range
from core.errors import Problem, ProblemList
from core.json_bounds import as_whole
from core.money import (
    MICRO_MAX,
    MICRO_PER_CENT,
    MICRO_PER_CREDIT,
    credits_number,
    micro_from_cents,
    micro_from_credits,
)
from core.records.agent import Whole
from core.records.bounds import (
    AGENT_ID_PATTERN,
    CAPABILITY_ID_PATTERN,
    CAPABILITY_OF_VERSIONS_PATTERN,
    CREDITS_PATTERN,
    DID_CHARS_MAX,
    DID_PATTERN,
    HTTP_URL_PATTERN,
    NODE_NAME_CHARS_MAX,
    PLAIN_TEXT_PATTERN,
    REGION_PATTERN,
    TEXT_CHARS_MAX,
    URL_CHARS_MAX,
    is_node_name,
)
from core.records.graph import node_path
from core.records.manifest_problems import (
    NODE_ALIASES,
    add_graph_problems,
    add_problems_of_pydantic,
    add_trigger_problems,
    add_unsupported_problems,
    described,
    refused_manifest,
    spell_canonically,
)

# The parser's limit of nodes. A deployment's own limit may be lower; `compile_workflow` checks it.
NODES_MAX = 10_000
DURATION_MS_MAX = 30 * 24 * 3_600_000
RETRIES_MAX = 100


def _credits(value: object) -> int | None:
    if value is None:
        return None
    micro = micro_from_credits(value)
    if micro < 0:
        raise ValueError(f"got {value}, expected credits ≥ 0")
    return micro


def _cents(value: object) -> int | None:
    if value is None:
        return None
    value = as_whole(value)
    if type(value) is not int or value < 0:
        raise ValueError("expected whole cents ≥ 0")
    return micro_from_cents(value)


def _node_name(value: object) -> object:
    if type(value) is str and not is_node_name(value):
        raise ValueError(
            f"expected a node name of 1 to {NODE_NAME_CHARS_MAX} characters without control"
            " characters, quotes, backslashes, outer spaces or #verify"
        )
    return value


def _with_versions(value: str) -> str:
    if "@" in value:
        parse_range(value.partition("@")[2])
    return value


# These texts are stored in text columns of the database, which cannot store NUL.
PlainText = Annotated[str, StringConstraints(pattern=PLAIN_TEXT_PATTERN, max_length=TEXT_CHARS_MAX)]
AgentId = Annotated[str, StringConstraints(pattern=AGENT_ID_PATTERN)]
CapabilityId = Annotated[str, StringConstraints(pattern=CAPABILITY_ID_PATTERN)]
CapabilityOfVersions = Annotated[
    str,
    StringConstraints(pattern=CAPABILITY_OF_VERSIONS_PATTERN),
    AfterValidator(_with_versions),
]
NodeName = Annotated[str, BeforeValidator(_node_name)]
Region = Annotated[str, StringConstraints(pattern=REGION_PATTERN)]
DurationMs = Annotated[Whole, Field(ge=1, le=DURATION_MS_MAX)]
CreditsMicro = Annotated[
    int | None,
    BeforeValidator(_credits),
    WithJsonSchema(
        {
            "type": ["number", "string", "null"],
            "minimum": 0,
            "maximum": MICRO_MAX // MICRO_PER_CREDIT,
            "pattern": CREDITS_PATTERN,
        }
    ),
]
CentsMicro = Annotated[
    int | None,
    BeforeValidator(_cents),
    WithJsonSchema(
        {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": MICRO_MAX // MICRO_PER_CENT,
        }
    ),
]
Did = Annotated[str, StringConstraints(pattern=DID_PATTERN, max_length=DID_CHARS_MAX)]
HttpUrl = Annotated[str, StringConstraints(pattern=HTTP_URL_PATTERN, max_length=URL_CHARS_MAX)]


class _ClosedRecord(BaseModel):
    """A record that refuses unknown members and does not convert types; null means absent."""

    model_config = ConfigDict(
        alias_generator=to_camel, strict=True, extra="forbid", frozen=True, defer_build=False
    )


class NodeDefinition(_ClosedRecord):
    """One task of a workflow, bound to a capability."""

    capability_id: CapabilityOfVersions = Field(
        description="Capability that the node needs; `@` and a range select versions of it."
    )
    depends_on: list[str] = Field(
        default_factory=list, description="Names of nodes that must succeed first. Default: none."
    )
    payload: dict[str, Any] = Field(
        default_factory=dict, description="Static inputs; may hold `{{name}}`. Default: empty."
    )
    fill_templates: bool = Field(
        default=True, description="Whether `{{name}}` in the payload is replaced. Default: true."
    )
    input_mappings: dict[str, str] = Field(
        default_factory=dict,
        description="Input names and paths such as `$.node.result.field`. Default: none.",
    )
    requires_verification: bool = Field(
        default=False, description="Whether a verifier must approve the result before payment."
    )
    timeout_ms: DurationMs | None = Field(
        default=None, description="Time limit of one attempt, in milliseconds. Default: 60,000."
    )
    max_retries: Annotated[Whole, Field(ge=0, le=RETRIES_MAX)] | None = Field(
        default=None, description="Attempts after the first one. Default: 3."
    )
    target_agent_id: AgentId | None = Field(
        default=None, description="DID of the only agent to use. Default: the best candidate."
    )
    allow_broadcast_fallback: bool = Field(
        default=False, description="Use other candidates when the target is unavailable."
    )
    verifier_capability_id: CapabilityId | None = Field(
        default=None, description="Capability of the verifier. Default: cap.verify.generic.v1."
    )
    selection: Literal["best", "auction"] = Field(
        default="best", description="Select by rank, or by a sealed-bid auction."
    )
    auction_window_ms: Annotated[Whole, Field(ge=0, le=DURATION_MS_MAX)] | None = Field(
        default=None, description="Milliseconds for which bids are accepted. Default: 0."
    )
    max_cost_micro: CreditsMicro = Field(
        default=None,
        alias="maxCostCredits",
        description="Most that the node may cost, in credits. Default: from prices and budget.",
    )
    wait_for_agent_ms: Annotated[Whole, Field(ge=0, le=DURATION_MS_MAX)] | None = Field(
        default=None,
        description="How long the node waits for an agent, in milliseconds. Default: 60,000.",
    )
    region: Region | None = Field(
        default=None, description="Region that should run the node. Default: the workflow's."
    )


class WorkflowTrigger(_ClosedRecord):
    """What starts the workflow."""

    type: Literal["manual", "scheduled", "webhook", "event"] = Field(
        description="`manual` starts the workflow at once; each other type stores a template and"
        " starts a run of it for each cause."
    )
    config: dict[str, Any] | None = Field(
        default=None, description="Configuration of the trigger, by its type. Default: none."
    )


class WorkflowSettings(_ClosedRecord):
    """Bounds of a whole run."""

    max_runtime_ms: DurationMs | None = Field(
        default=None, description="Time limit of the workflow, in milliseconds. Default: 300,000."
    )
    allow_fallback_agents: bool = Field(
        default=True, description="Whether a node may try other agents after a final failure."
    )
    max_budget_micro: CreditsMicro = Field(
        default=None,
        alias="maxBudgetCredits",
        description="Budget in credits; it is held in escrow. Default: the estimate is held.",
    )
    federate: bool = Field(
        default=False,
        description="Whether peers may run nodes for which no agent is available here.",
    )
    region: Region | None = Field(
        default=None, description="Region that should run the nodes. Default: none."
    )


_MANUAL = WorkflowTrigger(type="manual")
_DEFAULT_SETTINGS = WorkflowSettings()


class WorkflowManifest(_ClosedRecord):
    """A workflow as published. Amounts are micro-credits. Reference: features.md (Workflows)."""

    nodes: dict[NodeName, NodeDefinition] = Field(
        min_length=1, max_length=NODES_MAX, description="The nodes, by name."
    )
    intent: PlainText = Field(default="", description="Purpose of the workflow, in words.")
    trigger: WorkflowTrigger = Field(
        default=_MANUAL, description="What starts the workflow. Default: manual."
    )
    settings: WorkflowSettings = Field(
        default=_DEFAULT_SETTINGS, description="Bounds of the run. Default: see each setting."
    )
    payer_did: Did | None = Field(
        default=None, description="DID of the payer. Default: the caller."
    )
    max_cents_micro: CentsMicro = Field(
        default=None,
        alias="maxCents",
        description="Budget in cents; another form of `settings.maxBudgetCredits`.",
    )
    dry_run: bool = Field(default=False, description="Only estimate; store and pay nothing.")
    webhook_url: HttpUrl | None = Field(
        default=None, description="Address that is sent an event when the workflow ends."
    )

    @property
    def budget_micro(self) -> int | None:
        """The budget in micro-credits, from either of its two members; None without a budget."""
        micro = self.settings.max_budget_micro
        return self.max_cents_micro if micro is None else micro

    def to_json(self) -> dict[str, Any]:
        """Return the manifest in its canonical spelling, which `parse_manifest` can parse again."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        plain.pop("maxCents", None)
        if self.budget_micro is not None:
            plain.setdefault("settings", {})["maxBudgetCredits"] = credits_number(self.budget_micro)
        for name, node in self.nodes.items():
            if node.max_cost_micro is not None:
                plain["nodes"][name]["maxCostCredits"] = credits_number(node.max_cost_micro)
        return plain


def _members(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


_KNOWN = {
    "": _members(WorkflowManifest),
    "nodes": [*_members(NodeDefinition), *NODE_ALIASES],
    "settings": _members(WorkflowSettings),
    "trigger": _members(WorkflowTrigger),
}


def parse_manifest(raw: object, *, is_stored: bool = False) -> WorkflowManifest:
    """Check a manifest and return it.

    Args:
        raw: a JSON value. The JSON parser has already checked its depth, numbers and texts.
        is_stored: whether the service has stored the manifest. The trigger configuration of a
            stored manifest may be that of a run.

    Raises `ServiceError` (INVALID_MANIFEST) with the problems of the manifest.
    Reference: features.md (Workflows).
    """
    manifest = _object(raw, "a workflow manifest, a JSON object")
    return _checked(manifest, ProblemList(), node_path, is_stored=is_stored)


def _object(raw: object, expected: str) -> dict[str, Any]:
    if type(raw) is dict:
        return raw
    problems = ProblemList()
    problems.append(Problem("", described(raw), expected))
    raise refused_manifest(problems)


def _checked(
    raw: dict[str, Any],
    problems: ProblemList,
    path_of: Callable[[str], str],
    *,
    is_stored: bool = False,
) -> WorkflowManifest:
    """Return the manifest; raise if `problems` has a problem at the start or after the checks."""
    plain = spell_canonically(raw, problems, path_of)
    try:
        manifest = WorkflowManifest.model_validate(plain)
    except PydanticError as error:
        add_problems_of_pydantic(error, raw, problems, path_of, _KNOWN)
        # Check the graph of the readable parts, so that an invalid part does not hide a cycle.
        add_graph_problems(plain, problems, path_of)
        add_unsupported_problems(plain, problems, path_of)
        add_trigger_problems(plain, problems, path_of, is_stored=is_stored)
        raise refused_manifest(problems) from None
    if manifest.max_cents_micro is not None:
        budget_micro = manifest.settings.max_budget_micro
        if budget_micro not in (None, manifest.max_cents_micro):
            got = f"{plain['maxCents']}, which differs from settings.maxBudgetCredits"
            problems.append(Problem("maxCents", got, "maxBudgetCredits × 100"))
    add_unsupported_problems(plain, problems, path_of)
    add_trigger_problems(plain, problems, path_of, is_stored=is_stored)
    if problems:
        add_graph_problems(plain, problems, path_of)
        raise refused_manifest(problems)
    return manifest


def parse_list_form(raw: object) -> WorkflowManifest:
    """Check the list form (`nodes: [{id, …}]`, `edges: [{from, to}]`) and return its manifest.

    Raises `ServiceError` (INVALID_MANIFEST). The paths of its problems are those of the list form.
    """
    lists = _object(raw, "an object with nodes and edges")
    problems = ProblemList()
    nodes, positions = _nodes_of_list(lists.get("nodes"), problems)
    _add_edges(lists.get("edges"), nodes, problems)
    if problems and not nodes:
        raise refused_manifest(problems)
    manifest = {name: value for name, value in lists.items() if name != "edges"}
    return _checked(
        {**manifest, "nodes": nodes}, problems, lambda name: f"nodes[{positions[name]}]"
    )


def _nodes_of_list(
    raw: object, problems: ProblemList
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    nodes: dict[str, dict[str, Any]] = {}
    positions: dict[str, int] = {}
    if type(raw) is not list:
        problems.append(Problem("nodes", described(raw), "an array of nodes"))
        return nodes, positions
    for position, entry in enumerate(raw):
        path = f"nodes[{position}]"
        if type(entry) is not dict:
            problems.append(Problem(path, described(entry), "an object"))
            continue
        name = entry.get("id")
        if type(name) is not str or name in nodes:
            got = described(name) + (" again" if type(name) is str else "")
            problems.append(Problem(f"{path}.id", got, "a unique name"))
            continue
        node = {key: value for key, value in entry.items() if key not in ("id", "input")}
        if "input" in entry and node.setdefault("payload", entry["input"]) != entry["input"]:
            got = "a value that differs from payload"
            problems.append(Problem(f"{path}.input", got, "one value: input or payload"))
        nodes[name] = node
        positions[name] = position
    return nodes, positions


def _add_edges(raw: object, nodes: dict[str, dict[str, Any]], problems: ProblemList) -> None:
    if raw is None:
        return
    if type(raw) is not list:
        problems.append(Problem("edges", described(raw), "an array of {from, to}"))
        return
    parents: dict[str, list[str]] = {}
    for position, edge in enumerate(raw):
        path = f"edges[{position}]"
        ends = set(edge) if type(edge) is dict else set()
        if ends not in ({"from", "to"}, {"source", "target"}):
            got = ", ".join(sorted(ends)) or described(edge)
            problems.append(Problem(path, got, "{from, to} or {source, target}"))
            continue
        parent_key, child_key = ("from", "to") if "from" in ends else ("source", "target")
        parent, child = edge[parent_key], edge[child_key]
        unknown = [
            (key, end) for key, end in edge.items() if type(end) is not str or end not in nodes
        ]
        for key, end in unknown:
            problems.append(Problem(f"{path}.{key}", described(end), "the id of a node"))
        if not unknown:
            parents.setdefault(child, []).append(parent)
    for child, added in parents.items():
        depends_on = nodes[child].get("dependsOn")
        if depends_on is None:
            nodes[child]["dependsOn"] = added
        elif type(depends_on) is list:
            nodes[child]["dependsOn"] = [*depends_on, *added]


class StoredNode(Struct, rename="camel"):
    """A node of a stored manifest, in either spelling of its capability; null means absent."""

    capability_id: str | None = None
    capability: str | None = None
    depends_on: list[str] | None = None
    selection: str | None = None

    @property
    def offered_id(self) -> str:
        """The capability id without the range of versions."""
        return (self.capability_id or self.capability or "").partition("@")[0]


class StoredSettings(Struct, rename="camel"):
    """The settings of a stored manifest that are read again."""

    max_budget_credits: float | int | str | None = None


class StoredManifest(Struct, rename="camel"):
    """The members of a stored manifest that are read again."""

    nodes: dict[str, StoredNode]
    settings: StoredSettings | None = None
    max_cents: float | int | None = None

    @property
    def budget_micro(self) -> int | None:
        """The budget in micro-credits, from either of its two members; None without a budget."""
        credits = None if self.settings is None else self.settings.max_budget_credits
        if credits is not None:
            return micro_from_credits(credits)
        return None if self.max_cents is None else micro_from_cents(int(self.max_cents))


def read_stored_manifest(text: str | bytes) -> StoredManifest:
    """Return the parts of a stored manifest that are read again.

    Args:
        text: the JSON text that the ledger has stored.
    """
    return decode(text, type=StoredManifest)
