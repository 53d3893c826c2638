-- Indexes of the tables that are described in ledger/tables/.

CREATE INDEX audit_actor ON callboard.audit (actor_did, id);
-- By ranges: entries come in the order of time, and a workflow's id begins with its time.
CREATE INDEX audit_workflow ON callboard.audit USING brin (workflow_id uuid_minmax_multi_ops)
    WITH (autosummarize = on);
-- The first audit entry at or after a time, by bisection: times do not decrease from entry to entry.
-- What is older than a time is a range of ids then, and is read from its newest on.
CREATE FUNCTION callboard.first_audit_id_since(p_ms bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
    WITH RECURSIVE search (low, high) AS (
        SELECT 1::bigint, h.audit_seq + 1 FROM callboard.head AS h
        UNION ALL
        SELECT CASE WHEN a.created_ms < p_ms THEN a.id + 1 ELSE s.low END,
            CASE WHEN a.created_ms < p_ms THEN s.high ELSE a.id END
        FROM search AS s JOIN callboard.audit AS a ON a.id = (s.low + s.high) / 2
        WHERE s.low < s.high
    )
    SELECT max(low) FROM search
$$;
CREATE INDEX audit_event_type ON callboard.audit_event (event_type, audit_id);
CREATE INDEX audit_event_target ON callboard.audit_event (target_id, audit_id);
-- All that a writer reads of the table as it opens.
CREATE INDEX member_present ON callboard.member (id) WHERE state <> 'gone';
-- A node is paid once, even under a wrong key.
CREATE UNIQUE INDEX entry_node_payment ON callboard.entry (workflow_id, node_id)
    WHERE kind = 'node_payment';
CREATE INDEX entry_debit ON callboard.entry (debit_account_id, id);
-- No query asks what the fee account received: every payment has such an entry.
CREATE INDEX entry_credit ON callboard.entry (credit_account_id, id)
    WHERE kind <> 'protocol_fee';
-- What came back to payers, by workflow and by wallet: few of all entries.
CREATE INDEX entry_back_workflow ON callboard.entry (workflow_id)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund', 'stake_slash');
CREATE INDEX entry_refund_credit ON callboard.entry (credit_account_id, created_ms)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund');
-- What came to a DID that is no payment for its work: few entries, which a collect adds up.
CREATE INDEX entry_given ON callboard.entry (credit_account_id) INCLUDE (amount)
    WHERE kind IN ('deposit', 'inheritance');
-- The orders at peers.
CREATE INDEX attempt_of_peer ON callboard.attempt (agent_did, completed_ms)
    WHERE starts_with(agent_did, 'did:callboard:clearing-');
CREATE INDEX escrow_held ON callboard.escrow (payer_did) WHERE status = 'held';
-- By ranges, not by rows: an update that touches no other index stays in its page. A range knows
-- its newest row, which is what owners ask for.
CREATE INDEX stake_changed ON callboard.stake USING brin (changed_id)
    WITH (pages_per_range = 4, autosummarize = on);
CREATE INDEX stake_share_depositor ON callboard.stake_share (depositor_did) WHERE micro > 0;
CREATE INDEX invoice_payer ON callboard.invoice (payer_did, id);
CREATE INDEX invoice_period ON callboard.invoice (payer_did, period_end_ms)
    WHERE workflow_id IS NULL AND status <> 'void';
CREATE INDEX invoice_workflow ON callboard.invoice (workflow_id)
    WHERE workflow_id IS NOT NULL AND status <> 'void';
CREATE UNIQUE INDEX invoice_line_once ON callboard.invoice_line (entry_id) WHERE NOT is_void;
CREATE INDEX workflow_payer ON callboard.workflow (payer_did, id);
-- What a quota counts: workflows by payer and day of publishing.
CREATE INDEX workflow_payer_created ON callboard.workflow (payer_did, created_ms);
-- Unfinished is said by completed_ms: no index has the status, so that a start stays in its page.
CREATE INDEX workflow_deadline ON callboard.workflow (deadline_ms, id) WHERE completed_ms IS NULL;
-- By shard: eight random bits of the id, by which a member restores its own workflows.
CREATE INDEX workflow_shard ON callboard.workflow ((get_byte(uuid_send(id), 7)))
    WHERE completed_ms IS NULL;
-- By the trace id of the caller's traceparent; callers choose it, so it stands before the payer.
CREATE INDEX workflow_trace ON callboard.workflow
    ((substring(traceparent, 4, 32)), payer_did, id) WHERE traceparent IS NOT NULL;
-- The runs of a template that have not ended: whether a due time would overlap.
CREATE INDEX workflow_template ON callboard.workflow (template_id)
    WHERE template_id IS NOT NULL AND completed_ms IS NULL;
CREATE INDEX trigger_owner ON callboard.trigger (owner_did, id);
-- However many an owner has ended.
CREATE INDEX trigger_live ON callboard.trigger (owner_did, id) WHERE status <> 'ended';
CREATE INDEX trigger_due ON callboard.trigger ((due_ms + delay_ms)) WHERE due_ms IS NOT NULL;
CREATE INDEX trigger_event ON callboard.trigger (owner_did)
    WHERE kind = 'event' AND status = 'active';
CREATE INDEX trigger_run_entry ON callboard.trigger_run (trigger_id, audit_id);
CREATE INDEX trigger_run_workflow ON callboard.trigger_run (workflow_id)
    WHERE workflow_id IS NOT NULL;
CREATE INDEX workflow_quarantined ON callboard.workflow (id)
    WHERE quarantined_ms IS NOT NULL AND completed_ms IS NULL;
CREATE INDEX agent_capability ON callboard.agent USING gin (capability_ids);
-- Few agents are in a subnet: searches ask for each offer whether it is hidden.
CREATE INDEX agent_subnet ON callboard.agent (did) WHERE subnet_id IS NOT NULL;
CREATE INDEX subnet_changed ON callboard.subnet (changed_id);
CREATE INDEX subnet_owner ON callboard.subnet (owner_did);
CREATE INDEX subnet_member_did ON callboard.subnet_member (did);
CREATE INDEX subnet_policy_subnet ON callboard.subnet_policy (subnet_id, id);
CREATE INDEX agent_owner ON callboard.agent (owner_did, did);
CREATE INDEX agent_registered ON callboard.agent (registered_ms, did);
CREATE INDEX agent_changed ON callboard.agent (changed_id);
CREATE INDEX agent_inherited ON callboard.agent (inherited_from_did)
    WHERE inherited_from_did IS NOT NULL;
CREATE INDEX agent_sealed_by ON callboard.agent ((substring(signing_secret, 1, 1)), did)
    WHERE signing_secret IS NOT NULL;
CREATE INDEX agent_meta_name ON callboard.agent (meta_name, did) WHERE meta_name IS NOT NULL;
CREATE INDEX agent_meta_author ON callboard.agent (meta_author, did) WHERE meta_author IS NOT NULL;
CREATE INDEX agent_meta_model ON callboard.agent (meta_model, did) WHERE meta_model IS NOT NULL;
CREATE INDEX revocation_changed ON callboard.revocation (changed_id);
CREATE INDEX api_key_owner ON callboard.api_key (owner_did, id);
CREATE UNIQUE INDEX api_key_previous_hash ON callboard.api_key (previous_hash)
    WHERE previous_hash IS NOT NULL;
-- What is live of an owner's keys, however many have ended or expired.
CREATE INDEX api_key_live ON callboard.api_key (owner_did, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL;
CREATE INDEX api_key_live_child
    ON callboard.api_key (parent_id, coalesce(expires_ms, 253402300799999))
    WHERE revoked_ms IS NULL AND parent_id IS NOT NULL;
CREATE UNIQUE INDEX peer_did ON callboard.peer (did) WHERE removed_ms IS NULL;
CREATE INDEX capability_price_changed ON callboard.capability_price (changed_id);
CREATE INDEX capability_line_owner ON callboard.capability_line (owner_did) INCLUDE (versions);
CREATE INDEX capability_version_capability ON callboard.capability_version (capability_id);
CREATE INDEX capability_version_changed ON callboard.capability_version (changed_id);
CREATE INDEX reputation_changed ON callboard.reputation USING brin (changed_id)
    WITH (pages_per_range = 4, autosummarize = on);
CREATE INDEX dispute_complainant ON callboard.dispute (complainant_did, id);
CREATE INDEX dispute_respondent ON callboard.dispute (respondent_did, id);
CREATE INDEX dispute_workflow ON callboard.dispute (workflow_id);
CREATE INDEX feedback_agent ON callboard.feedback (agent_did, created_ms);
CREATE INDEX agent_name_agent ON callboard.agent_name (agent_did, name) WHERE released_ms IS NULL;
CREATE INDEX agent_name_counted ON callboard.agent_name (counted_did) WHERE released_ms IS NULL;
CREATE INDEX agent_name_expiry ON callboard.agent_name (expires_ms, name) WHERE released_ms IS NULL;
-- Switches are looked at in the order of their agents.
CREATE INDEX inheritance_switch ON callboard.inheritance (agent_did) WHERE status = 'armed';
CREATE INDEX recovery_open ON callboard.recovery (agent_did) WHERE status IN ('pending', 'waiting');
CREATE INDEX recovery_waiting ON callboard.recovery (waiting_ms) WHERE status = 'waiting';
-- Owners ask twice a second what has changed since they last asked. By ranges, not by rows: an
-- update that touches no other index stays in its page.
CREATE INDEX agent_live_updated ON callboard.agent_live USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);
