-- signing_secret is encrypted by the registry before it comes here. Heartbeat tokens are good from
-- token_revision on, which moves when a deregistered agent comes back.
-- key_number: how many keys the agent has had, the current one included. key_from_ms: since when it
-- has that one, NULL: since its registration. inherited_from_did: the owner before its first heir,
-- for whose bound of agents it still counts: an heir need not agree.
-- proven_by: what shows that the DID is its owner's, NULL for a claim that nothing shows.
-- card_counter: the highest counter that a card of it was signed for.
-- card_number, lineage_hash: the newest card's place in the lineage, and the hash of that place.
-- meta_*: what the card says for people, by which agents are listed; NULL where it stands in a text
-- with U+0000. is_trusted: an administrator registered the agent, so it may verify where the payer
-- names no verifier.
-- offered_since_ms: since when the agent offers each capability, in the order of capability_ids;
-- NULL: since it was registered.
CREATE TABLE callboard.agent (
    did text PRIMARY KEY,
    owner_did text NOT NULL,
    card text NOT NULL,
    endpoint text NOT NULL,
    capability_ids text[] NOT NULL,
    public_key text,
    signing_secret bytea,
    status text NOT NULL CHECK (status IN ('active', 'inactive')),
    revision integer NOT NULL CHECK (revision > 0),
    token_revision integer NOT NULL DEFAULT 1 CHECK (token_revision > 0),
    registered_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    key_number integer NOT NULL DEFAULT 1 CHECK (key_number > 0),
    key_from_ms bigint,
    inherited_from_did text,
    proven_by text CHECK (proven_by IN ('signature', 'own_credential', 'operator')),
    card_counter bigint NOT NULL DEFAULT 0 CHECK (card_counter >= 0),
    card_number integer NOT NULL DEFAULT 0,
    card_hash text,
    lineage_hash text CHECK ((lineage_hash IS NULL) = (card_number = 0)),
    meta_name text,
    meta_author text,
    meta_model text,
    is_trusted boolean NOT NULL DEFAULT false,
    offered_since_ms bigint[]
);
CREATE INDEX agent_capability ON callboard.agent USING gin (capability_ids);
CREATE INDEX agent_owner ON callboard.agent (owner_did, did);
CREATE INDEX agent_registered ON callboard.agent (registered_ms, did);
CREATE INDEX agent_inherited ON callboard.agent (inherited_from_did)
    WHERE inherited_from_did IS NOT NULL;
CREATE INDEX agent_sealed_by ON callboard.agent ((substring(signing_secret, 1, 1)), did)
    WHERE signing_secret IS NOT NULL;
CREATE INDEX agent_meta_name ON callboard.agent (meta_name, did) WHERE meta_name IS NOT NULL;
CREATE INDEX agent_meta_author ON callboard.agent (meta_author, did) WHERE meta_author IS NOT NULL;
CREATE INDEX agent_meta_model ON callboard.agent (meta_model, did) WHERE meta_model IS NOT NULL;

-- The lineage of agents' cards: each place has the hash of the one before it.
CREATE TABLE callboard.agent_card (
    did text NOT NULL,
    number integer NOT NULL CHECK (number > 0),
    card_version bigint NOT NULL,
    card_hash text NOT NULL,
    previous_hash text CHECK (previous_hash IS NOT NULL OR number = 1),
    hash text NOT NULL,
    registered_by_did text NOT NULL,
    registered_ms bigint NOT NULL,
    PRIMARY KEY (did, number)
);

-- parent_id: the key that it was made with, with which it ends. depth: how many keys are above it.
-- previous_hash: what a rotated key was known by before, which opens until previous_ends_ms.
CREATE TABLE callboard.api_key (
    id text PRIMARY KEY,
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    owner_did text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    rate_class text NOT NULL,
    rate_limits json,
    created_ms bigint NOT NULL,
    expires_ms bigint,
    revoked_ms bigint,
    parent_id text REFERENCES callboard.api_key (id),
    depth integer NOT NULL CHECK (depth >= 0),
    previous_hash bytea,
    previous_ends_ms bigint,
    CHECK ((parent_id IS NULL) = (depth = 0)),
    CONSTRAINT api_key_previous CHECK (
        (previous_hash IS NULL) = (previous_ends_ms IS NULL)
        AND (previous_hash IS NULL OR octet_length(previous_hash) = 32 AND previous_hash <> hash))
);
CREATE INDEX api_key_owner ON callboard.api_key (owner_did, id);
CREATE UNIQUE INDEX api_key_previous_hash ON callboard.api_key (previous_hash)
    WHERE previous_hash IS NOT NULL;
-- What is live of an owner's keys, however many have ended or expired.
CREATE INDEX api_key_live ON callboard.api_key (owner_did, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL;
CREATE INDEX api_key_live_child
    ON callboard.api_key (parent_id, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL AND parent_id IS NOT NULL;

-- The last revocation of each DID; the earlier ones are in the audit chain. expires_ms NULL: for
-- good. ended_ms: taken back.
CREATE TABLE callboard.revocation (
    did text PRIMARY KEY,
    reason text NOT NULL,
    evidence json NOT NULL,
    revoked_ms bigint NOT NULL,
    expires_ms bigint CHECK (expires_ms > 0),
    revoked_by_did text NOT NULL,
    ended_ms bigint,
    ended_by_did text,
    CHECK ((ended_ms IS NULL) = (ended_by_did IS NULL))
);

-- What a capability costs where an agent's card names no price of its own: cents, or rates per token
-- in credits (as decimal text: they are multiplied exactly and rounded once per node).
CREATE TABLE callboard.capability_price (
    capability_id text PRIMARY KEY,
    price_cents bigint CHECK (price_cents BETWEEN 0 AND 100000000000),
    input_rate text,
    output_rate text,
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL,
    CHECK ((price_cents IS NULL) = (input_rate IS NOT NULL)),
    CHECK ((input_rate IS NULL) = (output_rate IS NULL))
);

-- The owner of a capability's versions, and how many versions it has. is_assigned: an administrator
-- assigned the owner, so no other owner takes the capability over.
CREATE TABLE callboard.capability_line (
    capability_id text PRIMARY KEY,
    owner_did text NOT NULL,
    versions integer NOT NULL CHECK (versions BETWEEN 1 AND 1000),
    is_assigned boolean NOT NULL DEFAULT false
);
CREATE INDEX capability_line_owner ON callboard.capability_line (owner_did) INCLUDE (versions);

-- Versions never change and are never removed; each can be deprecated once, in favour of another.
-- Schemas are JSON texts in their canonical form; schema_hash is over both.
CREATE TABLE callboard.capability_version (
    id text PRIMARY KEY CHECK (id = capability_id || '@' || version),
    capability_id text NOT NULL REFERENCES callboard.capability_line,
    version text NOT NULL CHECK (
        octet_length(version) <= 64 AND version ~ '^[0-9]+[.][0-9]+[.][0-9]+(-[0-9A-Za-z.-]+)?$'),
    input_schema text NOT NULL,
    output_schema text NOT NULL,
    schema_hash text NOT NULL,
    changelog text NOT NULL,
    published_by_did text NOT NULL,
    published_ms bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('active', 'deprecated')),
    successor text CHECK (successor IS NULL OR successor <> version AND status = 'deprecated'),
    deprecated_ms bigint CHECK ((deprecated_ms IS NULL) = (status = 'active'))
);
CREATE INDEX capability_version_capability ON callboard.capability_version (capability_id);

CREATE TABLE callboard.quota (
    did text PRIMARY KEY,
    max_workflows_per_day bigint CHECK (max_workflows_per_day >= 0),
    max_concurrent_workflows bigint CHECK (max_concurrent_workflows >= 0),
    max_spend_per_day_cents bigint CHECK (max_spend_per_day_cents >= 0),
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL
);

-- Counts of final outcomes, from which scores are calculated; paid_*: of nodes with a price above 0.
-- They can be counted again from nodes and attempts.
CREATE TABLE callboard.reputation (
    agent_did text PRIMARY KEY,
    total bigint NOT NULL CHECK (total = successful + failed + cancelled),
    successful bigint NOT NULL CHECK (successful >= 0),
    failed bigint NOT NULL CHECK (failed >= 0),
    cancelled bigint NOT NULL CHECK (cancelled >= 0),
    latency_ms_sum bigint NOT NULL CHECK (latency_ms_sum >= 0),
    updated_ms bigint NOT NULL,
    paid_successful bigint NOT NULL DEFAULT 0
        CHECK (paid_successful BETWEEN 0 AND successful),
    paid_failed bigint NOT NULL DEFAULT 0 CHECK (paid_failed BETWEEN 0 AND failed),
    paid_cancelled bigint NOT NULL DEFAULT 0 CHECK (paid_cancelled BETWEEN 0 AND cancelled),
    paid_latency_ms_sum bigint NOT NULL DEFAULT 0
        CHECK (paid_latency_ms_sum BETWEEN 0 AND latency_ms_sum)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX reputation_updated ON callboard.reputation USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);

CREATE TABLE callboard.dispute (
    id uuid PRIMARY KEY,
    workflow_id uuid,
    complainant_did text NOT NULL,
    respondent_did text,
    node_id text,
    dispute_type text NOT NULL CHECK (dispute_type IN (
        'quality', 'timeout', 'incorrect_output', 'overcharge', 'fraud', 'other')),
    description text NOT NULL,
    evidence json NOT NULL,
    status text NOT NULL CHECK (status IN (
        'open', 'resolved_complainant', 'resolved_respondent', 'resolved_split', 'dismissed')),
    resolution text,
    refund_asked_micro bigint CHECK (refund_asked_micro >= 0),
    refunded_micro bigint NOT NULL DEFAULT 0 CHECK (refunded_micro >= 0),
    short_micro bigint NOT NULL DEFAULT 0 CHECK (short_micro >= 0),
    created_ms bigint NOT NULL,
    resolved_ms bigint,
    resolved_by_did text,
    CHECK ((status = 'open') = (resolved_ms IS NULL))
);
CREATE INDEX dispute_complainant ON callboard.dispute (complainant_did, id);
CREATE INDEX dispute_respondent ON callboard.dispute (respondent_did, id);
CREATE INDEX dispute_workflow ON callboard.dispute (workflow_id);

CREATE TABLE callboard.feedback (
    workflow_id uuid NOT NULL,
    agent_did text NOT NULL,
    payer_did text NOT NULL,
    rating numeric(4, 3) NOT NULL CHECK (rating BETWEEN 0 AND 1),
    comment text,
    created_ms bigint NOT NULL,
    PRIMARY KEY (workflow_id, agent_did)
);
CREATE INDEX feedback_agent ON callboard.feedback (agent_did, created_ms);
