-- acquire_locks as in V7, except that the row of a grant that took an expired one's place also says whose that one was, in holder. A lockd of before doesn't look
-- at it there, and a lockd of now does without it, so the contract's version stays.
CREATE OR REPLACE FUNCTION acquire_locks(keys TEXT[], owners TEXT[], sessions UUID[], ttls DOUBLE PRECISION[])
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

        SELECT e.fencing_token, extract(epoch FROM now() - least(e.expires_at, s.expires_at)), e.owner_id INTO ended, overdue, holder
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
