-- number: of the set among those of the agent. replaced: sets that the agent's own key has replaced and
-- that count on, the earliest first. struck_number: sets up to this one were struck out by the owner.
ALTER TABLE callboard.guardian_set
    ADD COLUMN number integer NOT NULL DEFAULT 1 CHECK (number > 0),
    ADD COLUMN replaced json CHECK (json_array_length(replaced) <= 5),
    ADD COLUMN struck_number integer NOT NULL DEFAULT 0 CHECK (struck_number >= 0),
    ADD CHECK (struck_number < number);

-- signer_keys: of the signers, in their order, by which key each has signed; NULL, or too few: stored by
-- code of before. agreed: the set of guardians whose word a time lock waits on; NULL: the owner's own.
ALTER TABLE callboard.recovery
    ADD COLUMN signer_keys text[] CHECK (cardinality(signer_keys) <= cardinality(signers)),
    ADD COLUMN agreed json;

-- What is live of an owner's keys, however many have ended or expired.
CREATE INDEX api_key_live ON callboard.api_key (owner_did, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL;
CREATE INDEX api_key_live_child ON callboard.api_key (parent_id, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL AND parent_id IS NOT NULL;
DROP INDEX callboard.api_key_parent;

-- Switches are looked at in the order of their agents.
CREATE INDEX inheritance_switch ON callboard.inheritance (agent_did) WHERE status = 'armed';
DROP INDEX callboard.inheritance_armed;
