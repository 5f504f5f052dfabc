-- The history of every write that the invariants are about. For test databases only: nothing but the checker reads it.
--
-- A trigger writes its row while it holds the row that was written, and takes the number then. So for one payout, one account or one mark the
-- numbers go up in the order in which the writes took effect. What is rolled back leaves no row here either.
CREATE TABLE payout_history (
    seq        BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    source     TEXT        NOT NULL, -- the table
    operation  TEXT        NOT NULL, -- INSERT, UPDATE or DELETE
    payout_id  UUID,
    account_id UUID,
    old_state  TEXT,                 -- of the payout; of a submission its outcome
    new_state  TEXT,
    token      BIGINT,               -- under which it was written, where the row says so
    holder     TEXT,
    old_mark   BIGINT,               -- account.fence or highest_token before the write; of other tables at the write
    new_mark   BIGINT,
    change     BIGINT                -- of the balance
);

CREATE FUNCTION payout_history_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    fence BIGINT;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'account' THEN
        INSERT INTO payout_history (source, operation, account_id, old_mark, new_mark, change)
        VALUES ('account', TG_OP, coalesce(NEW.account_id, OLD.account_id), OLD.fence, NEW.fence, coalesce(NEW.balance_minor, 0) - coalesce(OLD.balance_minor, 0));
    WHEN 'rail_high_water' THEN
        INSERT INTO payout_history (source, operation, account_id, old_mark, new_mark)
        VALUES ('rail_high_water', TG_OP, coalesce(NEW.account_id, OLD.account_id), OLD.highest_token, NEW.highest_token);
    WHEN 'payout' THEN
        SELECT a.fence INTO fence FROM account a WHERE a.account_id = coalesce(NEW.account_id, OLD.account_id);
        INSERT INTO payout_history (source, operation, payout_id, account_id, old_state, new_state, token, holder, old_mark)
        VALUES ('payout', TG_OP, coalesce(NEW.payout_id, OLD.payout_id), coalesce(NEW.account_id, OLD.account_id), OLD.state, NEW.state,
                CASE WHEN NEW.state = 'CLAIMED' AND OLD.state IN ('PENDING', 'CLAIMED') OR NEW.claim_token IS DISTINCT FROM OLD.claim_token THEN NEW.claim_token END,
                NEW.claimed_by, fence);
    WHEN 'ledger_entry' THEN
        SELECT a.fence INTO fence FROM account a WHERE a.account_id = coalesce(NEW.account_id, OLD.account_id);
        INSERT INTO payout_history (source, operation, payout_id, account_id, new_state, token, old_mark, change)
        VALUES ('ledger_entry', TG_OP, coalesce(NEW.payout_id, OLD.payout_id), coalesce(NEW.account_id, OLD.account_id), NEW.direction, NEW.fence, fence, NEW.amount_minor);
    WHEN 'rail_submission' THEN
        SELECT h.highest_token INTO fence FROM payout p JOIN rail_high_water h USING (account_id) WHERE p.payout_id = coalesce(NEW.payout_id, OLD.payout_id);
        INSERT INTO payout_history (source, operation, payout_id, old_state, new_state, token, old_mark)
        VALUES ('rail_submission', TG_OP, coalesce(NEW.payout_id, OLD.payout_id), OLD.outcome, NEW.outcome, NEW.presented_token, fence);
    END CASE;
    RETURN NULL;
END
$$;

CREATE TRIGGER payout_history AFTER INSERT OR UPDATE OR DELETE ON account FOR EACH ROW EXECUTE FUNCTION payout_history_write();
CREATE TRIGGER payout_history AFTER INSERT OR UPDATE OR DELETE ON payout FOR EACH ROW EXECUTE FUNCTION payout_history_write();
CREATE TRIGGER payout_history AFTER INSERT OR UPDATE OR DELETE ON ledger_entry FOR EACH ROW EXECUTE FUNCTION payout_history_write();
CREATE TRIGGER payout_history AFTER INSERT OR UPDATE OR DELETE ON rail_submission FOR EACH ROW EXECUTE FUNCTION payout_history_write();
CREATE TRIGGER payout_history AFTER INSERT OR UPDATE OR DELETE ON rail_high_water FOR EACH ROW EXECUTE FUNCTION payout_history_write();
