-- Acquires and releases in one transaction, each with C1's statement as it stands: a busy lockd commits half as often as with V7's acquire_locks and
-- release_locks. What those did with two more statements for each key to acquire is one query for all of them here.
--
-- Releases the grants of keys[i] with tokens[i], and acquires keys[i] for sessions[i] of owners[i] where tokens[i] is null. Each key is there once. One row for
-- each, in that order; holder is whose grant stands in the way, or whose expired one this one took the place of. A wait for a lock ends after lock_wait; a
-- silent client ends the transaction after silence.
--
-- The plans are made once a connection, and use the indexes: those made for few rows would else be kept, or made again in each call.
--
-- 1. The ordering locks of all keys to acquire, in the order of their numbers. C1's statement draws its token before it waits for a conflicting row; with
--    this lock only one transaction at a time draws for a key, and holds on until it has committed. Statements after the wait have snapshots of
--    their own (READ COMMITTED, and a volatile function).
-- 2. Whether a token drawn here stays the highest: the server keeps what it confirms (both settings can change under a running server,
--    or with a restart behind a pool that mends itself), and the database is the one that handed out all tokens so far.
-- 3. The sessions: what is read from here on stays until the end of the transaction. A call under a session that isn't live is refused by
--    itself, and C1's statement isn't run for it.
-- 4. One look for all: each session's state, and of each key whether its holder's time is over, or its session's.
--    Nobody else can acquire these keys now (1), and times of expiry only grow; so a key that is free in this look, or whose holder is alive, isn't
--    held by a dead one afterwards.
-- 5. For each key: its holder is ended if the holder's session is dead; then C1's statement. Or C1's release: key and token and nothing else.
--
-- Nobody waits in a circle: who waits for an ordering lock has touched no row yet, and after them rows of lock_entry are locked in the order of the arrays, which is
-- the same order of keys everywhere. (The end of a dead session may lock others of its keys; then one of two is told of a deadlock, and nothing of it has happened.)
--
-- now() was fixed before the waits. That errs on the safe side for an acquire: nothing is judged expired too soon, and a new lease ends sooner. A session
-- that ends during a wait was alive at that instant; its grant is one that the next acquire takes over, with a higher token.
CREATE FUNCTION change_locks(keys TEXT[], tokens BIGINT[], owners TEXT[], sessions UUID[], ttls DOUBLE PRECISION[], lock_wait TEXT, silence TEXT)
RETURNS TABLE (outcome TEXT, token BIGINT, acquired TIMESTAMPTZ, expires TIMESTAMPTZ, holder TEXT, ended BIGINT, overdue DOUBLE PRECISION, held DOUBLE PRECISION, swept BOOLEAN)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    p_states TEXT[];
    p_over   BOOLEAN[];
    p_grant  RECORD;
    p_any    BOOLEAN := false;
BEGIN
    -- Durable, whatever the role's or the database's default is.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', lock_wait, true);
    PERFORM set_config('idle_in_transaction_session_timeout', silence, true);

    IF array_position(tokens, NULL) IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(number)
           FROM (SELECT DISTINCT hashtextextended(c.key, 0) AS number FROM unnest(keys, tokens) AS c (key, token) WHERE c.token IS NULL ORDER BY number) AS ordered;

        PERFORM demand_token_source();

        PERFORM FROM lock_session WHERE session_id = ANY (sessions) ORDER BY session_id FOR KEY SHARE;

        SELECT array_agg((SELECT CASE WHEN s.expires_at <= now() THEN 'session expired' WHEN s.owner_id <> c.owner THEN 'session of another' ELSE 'live' END
                            FROM lock_session s WHERE s.session_id = c.session)),
               array_agg((SELECT e.expires_at <= now() OR s.expires_at <= now()
                            FROM lock_entry e JOIN lock_session s USING (session_id) WHERE e.lock_key = c.key))
          INTO p_states, p_over
          FROM unnest(keys, owners, sessions) AS c (key, owner, session);
    END IF;

    FOR i IN 1 .. cardinality(keys) LOOP
        token := NULL; acquired := NULL; expires := NULL; holder := NULL; ended := NULL; overdue := NULL; held := NULL; swept := false;

        IF tokens[i] IS NOT NULL THEN
            SELECT extract(epoch FROM now() - acquired_at) INTO held FROM lock_entry WHERE lock_key = keys[i] AND fencing_token = tokens[i];
            DELETE FROM lock_entry
             WHERE lock_key      = keys[i]
               AND fencing_token = tokens[i];
            outcome := CASE WHEN FOUND THEN 'released' ELSE 'stale' END;
            p_any := p_any OR FOUND;
            RETURN NEXT;
            CONTINUE;
        END IF;

        outcome := coalesce(p_states[i], 'session unknown');
        IF outcome <> 'live' THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        IF p_over[i] THEN
            SELECT e.fencing_token, extract(epoch FROM now() - least(e.expires_at, s.expires_at)), e.owner_id INTO ended, overdue, holder
              FROM lock_entry e
              JOIN lock_session s USING (session_id)
             WHERE e.lock_key = keys[i] AND (e.expires_at <= now() OR s.expires_at <= now());
            -- The cascade deletes the entry. An acquire under that very session, judged alive a moment ago, holds it; then this waits, and judges
            -- it again by what is committed: a heartbeat meanwhile keeps it.
            DELETE FROM lock_session s
             USING lock_entry e
             WHERE e.lock_key = keys[i] AND s.session_id = e.session_id AND s.expires_at <= now();
            swept := FOUND;
            p_any := p_any OR FOUND;
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

    -- Contended acquires have locked their holders' rows, which makes this a transaction that wrote, and its commit would wait for the disk. Where nothing
    -- was granted and nothing ended, nothing must survive, so it needn't.
    IF NOT p_any THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Version 3: acquires and releases go through this function. What version 2 calls is still there.
UPDATE schema_contract SET version = 3, installed_at = now();
