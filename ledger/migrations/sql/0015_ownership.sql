-- What shows that an agent's DID is its owner's, NULL for a claim that nothing shows; and the highest
-- counter that a card of it was signed for.
ALTER TABLE callboard.agent
    ADD COLUMN proven_by text
        CHECK (proven_by IN ('signature', 'own_credential', 'operator')),
    ADD COLUMN card_counter bigint NOT NULL DEFAULT 0 CHECK (card_counter >= 0);
UPDATE callboard.agent SET proven_by = 'own_credential' WHERE owner_did = did;
-- The key of a did:web is that of its document, which was not looked at before.
UPDATE callboard.agent SET public_key = NULL WHERE did LIKE 'did:web:%' AND proven_by IS NULL;
