-- The first answer to each write that had an effect, kept in the transaction of that effect: a request that comes again gets it, byte
-- for byte. status and response are null only while a posting in plain mode stands between its two transactions.
CREATE TABLE request_ledger (
    operation   TEXT        NOT NULL,
    key         TEXT        NOT NULL,
    subject     TEXT        NOT NULL,
    token       BIGINT      NOT NULL,
    fingerprint BYTEA       NOT NULL,
    status      INTEGER,
    response    BYTEA,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT request_ledger_pk             PRIMARY KEY (operation, key),
    CONSTRAINT request_ledger_operation_ck   CHECK (operation IN ('create', 'claim', 'post')),
    CONSTRAINT request_ledger_token_ck       CHECK (token >= 0),
    CONSTRAINT request_ledger_fingerprint_ck CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT request_ledger_status_ck      CHECK (status BETWEEN 200 AND 599),
    CONSTRAINT request_ledger_answered_ck    CHECK ((status IS NULL) = (response IS NULL))
);

-- What others are to be told. event_id gives the order of one payout's events, since they are inserted under the lock on its row.
-- An event is claimed by a relay (claim_id) until claimed_until, tried again from next_attempt_at on, and parked after too many attempts.
CREATE TABLE outbox (
    event_id        BIGINT      GENERATED ALWAYS AS IDENTITY,
    event_key       TEXT        NOT NULL,
    event_type      TEXT        NOT NULL,
    payout_id       UUID        NOT NULL REFERENCES payout (payout_id),
    payload         JSONB       NOT NULL,
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    attempts        INTEGER     NOT NULL DEFAULT 0,
    next_attempt_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    claim_id        UUID,
    claimed_until   TIMESTAMPTZ,
    delivered_at    TIMESTAMPTZ,
    parked_at       TIMESTAMPTZ,
    last_error      TEXT,
    CONSTRAINT outbox_pk           PRIMARY KEY (event_id),
    CONSTRAINT outbox_event_key_uq UNIQUE (event_key),
    CONSTRAINT outbox_type_ck      CHECK (event_type IN ('payout.posted', 'payout.failed', 'payout.ambiguous')),
    CONSTRAINT outbox_attempts_ck  CHECK (attempts >= 0),
    CONSTRAINT outbox_claim_ck     CHECK ((claim_id IS NULL) = (claimed_until IS NULL)),
    CONSTRAINT outbox_end_ck       CHECK (delivered_at IS NULL OR parked_at IS NULL)
);

CREATE INDEX outbox_open_idx ON outbox (next_attempt_at, event_id) WHERE delivered_at IS NULL AND parked_at IS NULL;
CREATE INDEX outbox_open_payout_idx ON outbox (payout_id, event_id) WHERE delivered_at IS NULL;

-- Every change of state that others must hear of puts its event into the outbox, whoever makes it: the payment-resource, the rail-proxy, the
-- reconciler, or a person with psql. No writer can forget it, and none needs a right on the outbox: the function runs with its owner's.
CREATE FUNCTION outbox_payout_event() RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $$
DECLARE
    kind TEXT := CASE NEW.state WHEN 'POSTED' THEN 'payout.posted' WHEN 'FAILED' THEN 'payout.failed' ELSE 'payout.ambiguous' END;
BEGIN
    INSERT INTO outbox (event_key, event_type, payout_id, payload)
    VALUES (kind || ':' || NEW.payout_id, kind, NEW.payout_id, jsonb_build_object(
        'payoutId', NEW.payout_id, 'accountId', NEW.account_id, 'amountMinor', NEW.amount_minor, 'currency', NEW.currency,
        'state', NEW.state, 'previousState', OLD.state, 'fencingToken', NEW.claim_token))
    ON CONFLICT (event_key) DO NOTHING;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION outbox_payout_event() FROM PUBLIC;

-- A payout reaches each of these states once in its life, since the state machine has no way back to any of them: hence the event's key. A writer
-- that breaks the machine makes no second event; whoever reads them would drop it by its key.
CREATE TRIGGER outbox_payout_event_tr AFTER UPDATE OF state ON payout
    FOR EACH ROW WHEN (NEW.state IS DISTINCT FROM OLD.state AND NEW.state IN ('POSTED', 'FAILED', 'RAIL_AMBIGUOUS'))
    EXECUTE FUNCTION outbox_payout_event();

-- Who gave a payout up, and why. Rows are only ever added.
CREATE TABLE payout_abandonment (
    payout_id     UUID        NOT NULL REFERENCES payout (payout_id),
    operator      TEXT        NOT NULL,
    reason        TEXT        NOT NULL,
    from_state    TEXT        NOT NULL,
    fencing_token BIGINT      NOT NULL,
    abandoned_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT payout_abandonment_pk       PRIMARY KEY (payout_id),
    CONSTRAINT payout_abandonment_token_ck CHECK (fencing_token > 0)
);

-- relayapp delivers the outbox and can change nothing else; payoperator abandons payouts.
DO $$
DECLARE
    wanted TEXT;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['relayapp', 'payoperator'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % is not created: % may not create roles', wanted, current_user;
        END;
    END LOOP;
END
$$;

DO $$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('payapp',      'SELECT, INSERT, UPDATE (token, fingerprint, status, response, updated_at) ON request_ledger'),
            ('relayapp',    'SELECT, UPDATE (attempts, next_attempt_at, claim_id, claimed_until, delivered_at, parked_at, last_error) ON outbox'),
            ('relayapp',    'SELECT ON schema_contract'),
            ('reconcile',   'SELECT ON outbox, payout_abandonment'),
            ('payoperator', 'SELECT, UPDATE (state, claimed_by, claim_token, updated_at) ON payout'),
            ('payoperator', 'SELECT, INSERT ON payout_abandonment'),
            ('payoperator', 'SELECT ON schema_contract')
        ) AS g (role, what)
        WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = g.role)
    LOOP
        EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END LOOP;
END
$$;
