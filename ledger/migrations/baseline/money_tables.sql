-- Everything that holds money. Balances move by the trigger on entry alone; the writer may not
-- update them.
CREATE TABLE callboard.account (
    id bigint PRIMARY KEY,
    address text NOT NULL UNIQUE,
    owner_did text,
    kind text NOT NULL
        CHECK (kind IN ('external', 'wallet', 'escrow', 'stake', 'stake_locked', 'fee')),
    balance bigint NOT NULL DEFAULT 0,
    currency text NOT NULL DEFAULT 'CREDITS' CHECK (currency = 'CREDITS'),
    created_ms bigint NOT NULL,
    -- At most 9 * 10^18 are issued in all, so what one account receives cannot overflow it.
    CONSTRAINT account_balance_bounds CHECK (
        balance <= 9000000000000000000
        AND balance >= CASE WHEN kind = 'external' THEN -9000000000000000000 ELSE 0 END)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
INSERT INTO callboard.account (id, address, kind, created_ms)
VALUES (1, 'world', 'external', 0), (2, 'fee', 'fee', 0);

-- audit_id: the audit entry of the command that moved it.
CREATE TABLE callboard.entry (
    id bigint PRIMARY KEY,
    debit_account_id bigint NOT NULL,
    credit_account_id bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount BETWEEN 1 AND 1000000000000000),
    kind text NOT NULL CHECK (kind IN (
        'deposit', 'escrow_hold', 'node_payment', 'protocol_fee', 'escrow_release',
        'stake_deposit', 'stake_withdrawal', 'stake_lock', 'stake_unlock', 'stake_slash',
        'refund', 'fee_refund', 'stake_refund', 'inheritance', 'collection')),
    description text NOT NULL,
    workflow_id uuid,
    node_id text,
    audit_id bigint NOT NULL,
    created_ms bigint NOT NULL,
    CHECK (debit_account_id <> credit_account_id)
);
-- A node is paid once, even under a wrong key.
CREATE UNIQUE INDEX entry_node_payment ON callboard.entry (workflow_id, node_id)
    WHERE kind = 'node_payment';
CREATE INDEX entry_debit ON callboard.entry (debit_account_id, id);
-- No query asks what the fee account received: every payment has such an entry.
CREATE INDEX entry_credit ON callboard.entry (credit_account_id, id)
    WHERE kind <> 'protocol_fee';
-- What came back to payers, by workflow and by wallet: few of all entries.
CREATE INDEX entry_refund_workflow ON callboard.entry (workflow_id)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund');
CREATE INDEX entry_refund_credit ON callboard.entry (credit_account_id, created_ms)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund');
-- What came to a DID that is no payment for its work: few entries, which a collect adds up.
CREATE INDEX entry_given ON callboard.entry (credit_account_id) INCLUDE (amount)
    WHERE kind IN ('deposit', 'inheritance');

CREATE TABLE callboard.escrow (
    workflow_id uuid PRIMARY KEY,
    payer_did text NOT NULL,
    account_id bigint NOT NULL UNIQUE,
    amount bigint NOT NULL CHECK (amount BETWEEN 0 AND 1000000000000000),
    fee_bps integer NOT NULL CHECK (fee_bps BETWEEN 0 AND 10000),
    status text NOT NULL CHECK (status IN ('held', 'released')),
    created_ms bigint NOT NULL,
    released_ms bigint
) WITH (fillfactor = 80);
CREATE INDEX escrow_held ON callboard.escrow (payer_did) WHERE status = 'held';

-- Money is in accounts alone: a stake is two accounts, an invoice and a dispute hold no money.
CREATE TABLE callboard.stake (
    agent_did text PRIMARY KEY,
    free_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id),
    locked_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id),
    updated_ms bigint NOT NULL
);
-- By ranges, not by rows: an update that touches no other index stays in its page. A range knows
-- its newest row, which is what owners ask for.
CREATE INDEX stake_updated ON callboard.stake USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);

-- Whose credits a stake is: what each depositor has put in and not taken out, less the losses until
-- one of the agent's shares last changed. Later losses are shared in proportion.
CREATE TABLE callboard.stake_share (
    agent_did text NOT NULL,
    depositor_did text NOT NULL,
    micro bigint NOT NULL CHECK (micro BETWEEN 0 AND 1000000000000000),
    PRIMARY KEY (agent_did, depositor_did)
);
CREATE INDEX stake_share_depositor ON callboard.stake_share (depositor_did) WHERE micro > 0;

CREATE TABLE callboard.invoice (
    id uuid PRIMARY KEY,
    payer_did text NOT NULL,
    period_start_ms bigint NOT NULL,
    period_end_ms bigint NOT NULL CHECK (period_end_ms > period_start_ms),
    workflow_id uuid,
    subtotal_cents bigint NOT NULL CHECK (subtotal_cents >= 0),
    protocol_fee_cents bigint NOT NULL CHECK (protocol_fee_cents >= 0),
    total_cents bigint NOT NULL,
    subtotal_micro bigint NOT NULL CHECK (subtotal_micro >= 0),
    status text NOT NULL CHECK (status IN ('pending', 'paid', 'void')),
    created_ms bigint NOT NULL,
    settled_ms bigint,
    settled_by_did text,
    CHECK (total_cents = subtotal_cents + protocol_fee_cents)
);
CREATE INDEX invoice_payer ON callboard.invoice (payer_did, id);
CREATE INDEX invoice_period ON callboard.invoice (payer_did, period_end_ms)
    WHERE workflow_id IS NULL AND status <> 'void';
CREATE INDEX invoice_workflow ON callboard.invoice (workflow_id)
    WHERE workflow_id IS NOT NULL AND status <> 'void';

-- A payment is on at most one invoice that is not void. A trigger checks that the invoice exists:
-- a foreign key would look the same invoice up once per line, half of what a line costs.
CREATE TABLE callboard.invoice_line (
    invoice_id uuid NOT NULL,
    entry_id bigint NOT NULL,
    amount_micro bigint NOT NULL CHECK (amount_micro > 0),
    is_void boolean NOT NULL DEFAULT false,
    PRIMARY KEY (invoice_id, entry_id)
);
CREATE UNIQUE INDEX invoice_line_once ON callboard.invoice_line (entry_id) WHERE NOT is_void;
