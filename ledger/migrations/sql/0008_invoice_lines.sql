-- What the foreign key of 0005 also held, as the owner of the tables too: a line stays its invoice's,
-- and an invoice keeps its id. A line that is voided changes none of these columns, and costs nothing.
CREATE OR REPLACE TRIGGER fixed BEFORE UPDATE OF invoice_id, entry_id, amount_micro
    ON callboard.invoice_line FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();
ALTER TABLE callboard.invoice_line ENABLE ALWAYS TRIGGER fixed;

CREATE OR REPLACE TRIGGER fixed BEFORE UPDATE OF id
    ON callboard.invoice FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();
ALTER TABLE callboard.invoice ENABLE ALWAYS TRIGGER fixed;
