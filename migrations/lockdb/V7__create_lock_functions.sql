-- Many acquires, releases or renewals in one transaction, each with C1's statement as it stands. They are functions so that the server
-- plans each statement once a connection, whatever pooler stands in between, and so that what must end a transaction does so here: the client sends
-- call and COMMIT in one go and reads the answers when all is done.
--
-- Rows of lock_entry are locked in the order of the arrays, which is the same order of keys everywhere, so two calls don't wait for each
-- other in a circle.

-- Acquires keys[i] for sessions[i] of owners[i]; each key is there once. One row for each, in that order.
--
-- 1. The ordering locks of all keys, in the order of their numbers. C1's statement draws its token before it waits for a conflicting row; with
--    this lock only one transaction at a time draws for a key, and holds on until it has committed. Statements after the wait have snapshots of
--    their own (READ COMMITTED, and a volatile function).
-- 2. Whether a token drawn here stays the highest: the server keeps what it confirms (both settings can change under a running server,
--    or with a restart behind a pool that mends itself), and the database is the one that handed out all tokens so far.
-- 3. The sessions: what is read here stays until the end of the transaction. A call under a session that isn't live is refused by
--    itself, and C1's statement isn't run for it.
-- 4. For each key: its holder is ended if the holder's session is dead; then C1's statement.
--
-- now() was fixed before the waits. That errs on the safe side for an acquire: nothing is judged expired too soon, and a new lease ends sooner. A session
-- that ends during a wait was alive at that instant; its grant is one that the next acquire takes over, with a higher token.
CREATE FUNCTION acquire_locks(keys TEXT[], owners TEXT[], sessions UUID[], ttls DOUBLE PRECISION[])
RETURNS TABLE (outcome TEXT, token BIGINT, acquired TIMESTAMPTZ, expires TIMESTAMPTZ, holder TEXT, ended BIGINT, overdue DOUBLE PRECISION, swept BOOLEAN)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    p_owner TEXT;
    p_live  BOOLEAN;
    p_grant RECORD;
    p_any   BOOLEAN := false;
BEGIN
    PERFORM pg_advisory_xact_lock(number)
       FROM (SELECT DISTINCT hashtextextended(key, 0) AS number FROM unnest(keys) AS key ORDER BY number) AS ordered;

    PERFORM demand_token_source();

    PERFORM FROM lock_session WHERE session_id = ANY (sessions) ORDER BY session_id FOR KEY SHARE;

    FOR i IN 1 .. cardinality(keys) LOOP
        token := NULL; acquired := NULL; expires := NULL; holder := NULL; ended := NULL; overdue := NULL; swept := false;

        SELECT owner_id, expires_at > now() INTO p_owner, p_live FROM lock_session WHERE session_id = sessions[i];
        outcome := CASE WHEN NOT FOUND THEN 'session unknown' WHEN NOT p_live THEN 'session expired' WHEN p_owner <> owners[i] THEN 'session of another' END;
        IF outcome IS NOT NULL THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT e.fencing_token, extract(epoch FROM now() - least(e.expires_at, s.expires_at)) INTO ended, overdue
          FROM lock_entry e
          JOIN lock_session s USING (session_id)
         WHERE e.lock_key = keys[i] AND (e.expires_at <= now() OR s.expires_at <= now());
        IF FOUND THEN
            -- The cascade deletes the entry. An acquire under that very session, judged alive a moment ago, holds it; then this waits, and judges
            -- it again by what is committed: a heartbeat meanwhile keeps it.
            DELETE FROM lock_session s
             USING lock_entry e
             WHERE e.lock_key = keys[i] AND s.session_id = e.session_id AND s.expires_at <= now();
            swept := FOUND;
        END IF;

        INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, acquired_at, expires_at)
        VALUES (keys[i], owners[i], sessions[i], nextval('fencing_token_seq'),
                now(), now() + make_interval(secs => ttls[i]))
        ON CONFLICT (lock_key) DO UPDATE
           SET owner_id      = EXCLUDED.owner_id,
               session_id    = EXCLUDED.session_id,
               fencing_token = nextval('fencing_token_seq'),
               acquired_at   = now(),
               expires_at    = now() + make_interval(secs => ttls[i])
         WHERE lock_entry.expires_at <= now()
            OR (lock_entry.owner_id = EXCLUDED.owner_id AND lock_entry.session_id = EXCLUDED.session_id)
        RETURNING fencing_token, owner_id, session_id, acquired_at, expires_at INTO p_grant;

        IF FOUND THEN
            p_any := true;
            outcome := 'granted'; token := p_grant.fencing_token; acquired := p_grant.acquired_at; expires := p_grant.expires_at;
        ELSE
            -- The row is still there: ON CONFLICT DO UPDATE has locked it, although it changed nothing.
            outcome := 'contended'; ended := NULL; overdue := NULL;
            SELECT owner_id, expires_at INTO holder, expires FROM lock_entry WHERE lock_key = keys[i];
        END IF;
        RETURN NEXT;
    END LOOP;

    -- Contended acquires have locked their holders' rows, which makes this a transaction that wrote, and its commit would wait for the disk. Where nobody
    -- was granted anything nothing must survive, so it needn't.
    IF NOT p_any THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Ends the transaction that is about to draw a token, unless the token will be the highest for good. A failover can happen under a running lockd and
-- behind a pooler, so this is asked in every such transaction; within one, connection and incarnation can't part.
CREATE FUNCTION demand_token_source() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('fsync') <> 'on' OR current_setting('full_page_writes') <> 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'LK003', MESSAGE = 'no token is drawn: fsync or full_page_writes is off';
    END IF;
    IF NOT EXISTS (SELECT FROM token_source s JOIN token_source_now n USING (system_identifier, timeline, database_oid, sequence_oid)) THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = 'no token is drawn: the database was restored or failed over, and its token source must be advanced first';
    END IF;
END
$$;

-- Releases the grants of keys[i] with tokens[i]. One row for each, in that order; held in seconds, null when there was no such grant any more.
CREATE FUNCTION release_locks(keys TEXT[], tokens BIGINT[])
RETURNS TABLE (released BOOLEAN, held DOUBLE PRECISION)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    FOR i IN 1 .. cardinality(keys) LOOP
        SELECT extract(epoch FROM now() - acquired_at) INTO held FROM lock_entry WHERE lock_key = keys[i] AND fencing_token = tokens[i];
        DELETE FROM lock_entry
         WHERE lock_key      = keys[i]
           AND fencing_token = tokens[i];
        released := FOUND;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Renews the grants of keys[i] with tokens[i]. One row for each, in that order. A grant under a dead session is over, so its session is
-- ended first. It takes no ordering lock, since it draws no token. Should it wait for a row, now() stays the instant at which the transaction began: a lease that was alive
-- then is prolonged from then, if the row still has its token, that is, if nobody took the key meanwhile.
CREATE FUNCTION renew_locks(keys TEXT[], tokens BIGINT[], ttls DOUBLE PRECISION[])
RETURNS TABLE (renewed BOOLEAN, owner TEXT, session UUID, acquired TIMESTAMPTZ, expires TIMESTAMPTZ, swept BOOLEAN)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    p_grant RECORD;
BEGIN
    FOR i IN 1 .. cardinality(keys) LOOP
        owner := NULL; session := NULL; acquired := NULL; expires := NULL;
        DELETE FROM lock_session s
         USING lock_entry e
         WHERE e.lock_key = keys[i] AND s.session_id = e.session_id AND s.expires_at <= now();
        swept := FOUND;
        UPDATE lock_entry
           SET expires_at = now() + make_interval(secs => ttls[i])
         WHERE lock_key      = keys[i]
           AND fencing_token = tokens[i]
           AND expires_at    > now()
        RETURNING fencing_token, expires_at INTO p_grant;
        renewed := FOUND;
        IF renewed THEN
            SELECT owner_id, session_id, acquired_at, expires_at INTO owner, session, acquired, expires FROM lock_entry WHERE lock_key = keys[i];
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Version 2: tokens are drawn by these functions, after a look at the incarnation.
UPDATE schema_contract SET version = 2, installed_at = now();
