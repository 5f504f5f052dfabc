-- Tokens never go back, also not when the database does: after a failover to a standby that lagged, or in a database restored
-- from a backup or a dump, the sequence stands lower than the tokens that were handed out. What tells such a database from the one that
-- handed them out is its incarnation. It is kept here, and lockd compares it in every transaction that draws a token.
CREATE TABLE token_source (
    singleton         BOOLEAN     PRIMARY KEY DEFAULT true,
    system_identifier BIGINT      NOT NULL, -- of the cluster: another one after a dump was restored elsewhere
    timeline          BIGINT      NOT NULL, -- another one after a promotion or a point-in-time recovery
    database_oid      OID         NOT NULL, -- another one after a dump was restored into the same cluster
    sequence_oid      OID         NOT NULL, -- the same, into the same database
    seen_since        TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT token_source_singleton_ck CHECK (singleton)
);

-- The incarnation as it is now; one row, nulls on a standby. The timeline is that of the log that is being written: the control file
-- still has the old one for seconds after a promotion.
CREATE VIEW token_source_now AS
SELECT c.system_identifier,
       CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END AS timeline,
       d.oid AS database_oid,
       'fencing_token_seq'::regclass::oid AS sequence_oid
  FROM pg_control_system() c, pg_database d
 WHERE d.datname = current_database();

INSERT INTO token_source (system_identifier, timeline, database_oid, sequence_oid)
SELECT system_identifier, timeline, database_oid, sequence_oid FROM token_source_now;

-- Append-only: every move of the token source that isn't a draw. Only the functions below write here.
CREATE TABLE token_source_change (
    id         BIGSERIAL   PRIMARY KEY,
    from_token BIGINT      NOT NULL, -- the highest token that may have been handed out before
    to_token   BIGINT      NOT NULL, -- every token after it is above this one
    cause      TEXT        NOT NULL,
    operator   TEXT        NOT NULL,
    reason     TEXT        NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT token_source_change_cause_ck CHECK (cause IN ('incarnation', 'fast-forward')),
    CONSTRAINT token_source_change_order_ck CHECK (to_token > from_token)
);

-- Moves the token source so that every later token is above the given one, and never down.
--
-- setval would race: nextval takes no lock that keeps it away, so a value that was read before a hundred draws could be set after
-- them. ALTER SEQUENCE takes a lock that conflicts with the one that each nextval holds until the end of its transaction: whoever has drawn is
-- waited for, whoever wants to draw waits, and last_value stands still until the commit. It is transactional too, so the move and its record happen together or
-- not at all. lockapp itself may neither set nor alter the sequence; it may only ask for this, as the owner's.
CREATE FUNCTION move_token_source(above BIGINT, why TEXT, who TEXT, because TEXT, OUT from_token BIGINT, OUT to_token BIGINT)
LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    ALTER SEQUENCE public.fencing_token_seq NO CYCLE; -- changes nothing but takes the lock
    SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END INTO from_token FROM public.fencing_token_seq;
    to_token := coalesce(above, from_token + 1000000000);
    IF to_token <= from_token THEN
        RAISE EXCEPTION USING ERRCODE = 'LK004', MESSAGE = format('the token source is at %s already and never moves down', from_token);
    END IF;
    IF to_token > 9007199254740991 THEN
        RAISE EXCEPTION USING ERRCODE = 'LK005', MESSAGE = format('%s is above the ceiling 9007199254740991 (2^53 - 1)', to_token);
    END IF;
    EXECUTE format('ALTER SEQUENCE public.fencing_token_seq RESTART WITH %s', to_token + 1);
    INSERT INTO public.token_source_change (from_token, to_token, cause, operator, reason) VALUES (from_token, to_token, why, who, because);
END
$$;

-- An operator's move.
CREATE FUNCTION fast_forward_token_source(above BIGINT, operator TEXT, reason TEXT, OUT from_token BIGINT, OUT to_token BIGINT)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT * FROM public.move_token_source(above, 'fast-forward', operator, reason)
$$;

-- Adopts a new incarnation: far beyond everything that the old one can have handed out since the two parted. No row when another replica was faster:
-- the lock on the row lets one do it and the others see it done.
CREATE FUNCTION adopt_token_source(operator TEXT) RETURNS TABLE (from_token BIGINT, to_token BIGINT, why TEXT)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    known  public.token_source;
    actual public.token_source_now;
BEGIN
    SELECT * INTO STRICT known FROM public.token_source FOR UPDATE;
    SELECT * INTO STRICT actual FROM public.token_source_now;
    IF (known.system_identifier, known.timeline, known.database_oid, known.sequence_oid)
     = (actual.system_identifier, actual.timeline, actual.database_oid, actual.sequence_oid) THEN
        RETURN;
    END IF;
    why := concat_ws(', ',
        CASE WHEN known.system_identifier <> actual.system_identifier THEN format('system identifier %s, was %s', actual.system_identifier, known.system_identifier) END,
        CASE WHEN known.timeline <> actual.timeline THEN format('timeline %s, was %s', actual.timeline, known.timeline) END,
        CASE WHEN known.database_oid <> actual.database_oid THEN format('database oid %s, was %s', actual.database_oid, known.database_oid) END,
        CASE WHEN known.sequence_oid <> actual.sequence_oid THEN format('sequence oid %s, was %s', actual.sequence_oid, known.sequence_oid) END);
    SELECT m.from_token, m.to_token INTO from_token, to_token FROM public.move_token_source(NULL, 'incarnation', operator, why) m;
    UPDATE public.token_source
       SET system_identifier = actual.system_identifier, timeline = actual.timeline,
           database_oid = actual.database_oid, sequence_oid = actual.sequence_oid, seen_since = now();
    RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION move_token_source(BIGINT, TEXT, TEXT, TEXT), fast_forward_token_source(BIGINT, TEXT, TEXT), adopt_token_source(TEXT) FROM PUBLIC;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'lockapp') THEN
        GRANT SELECT ON token_source, token_source_now, token_source_change TO lockapp;
        GRANT EXECUTE ON FUNCTION fast_forward_token_source(BIGINT, TEXT, TEXT), adopt_token_source(TEXT) TO lockapp;
    END IF;
END
$$;
