-- What is stored already was held against the narrower check.
ALTER TABLE callboard.entry DROP CONSTRAINT entry_kind_check;
ALTER TABLE callboard.entry ADD CONSTRAINT entry_kind_check CHECK (kind IN (
    'deposit', 'escrow_hold', 'node_payment', 'protocol_fee', 'escrow_release',
    'stake_deposit', 'stake_withdrawal', 'stake_lock', 'stake_unlock', 'stake_slash',
    'refund', 'fee_refund', 'stake_refund', 'inheritance', 'collection')) NOT VALID;
-- What came to a DID that is no payment for its work: few entries, which a collect adds up.
CREATE INDEX entry_given ON callboard.entry (credit_account_id) INCLUDE (amount)
    WHERE kind IN ('deposit', 'inheritance');
