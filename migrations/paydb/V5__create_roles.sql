-- One role for each process, with the least that it needs. Roles belong to the whole
-- cluster, so each may exist already; an owner without CREATEROLE may have had them made by somebody else.
DO $$
DECLARE
    wanted TEXT;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['payapp', 'railapp', 'reconcile', 'fence_sidecar', 'fence_account', 'fence_rail'] LOOP
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

-- The sidecars' roles include the sidecar's own tables, which fence/V1 grants to
-- fence_sidecar. A membership is cluster-wide as well, hence the same care.
DO $$
DECLARE
    member TEXT;
BEGIN
    FOREACH member IN ARRAY ARRAY['fence_account', 'fence_rail'] LOOP
        BEGIN
            IF (SELECT count(*) = 2 FROM pg_roles WHERE rolname IN (member, 'fence_sidecar'))
               AND NOT pg_has_role(member, 'fence_sidecar', 'MEMBER') THEN
                EXECUTE format('GRANT fence_sidecar TO %I', member);
            END IF;
        EXCEPTION
            WHEN unique_violation OR duplicate_object THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role fence_sidecar is not granted to %: % may not', member, current_user;
        END;
    END LOOP;
END
$$;

-- payapp, the payment-resource in plain mode: every column of account but fence, since a
-- careless write would lower the mark. It has no right at all on rail_high_water.
-- railapp, the rail-proxy: submissions and its own mark; of a payout only its state.
-- fence_account and fence_rail, the two sidecars: the mark, and what their key lookups read.
DO $$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('payapp',        'SELECT, INSERT (account_id, currency, balance_minor, updated_at), UPDATE (balance_minor, updated_at) ON account'),
            ('payapp',        'SELECT, INSERT, UPDATE ON payout'),
            ('payapp',        'SELECT, INSERT ON ledger_entry'),
            ('railapp',       'SELECT, UPDATE (state, updated_at) ON payout'),
            ('railapp',       'SELECT, INSERT, UPDATE (outcome, rail_reference, resolved_at) ON rail_submission'),
            ('railapp',       'SELECT, INSERT, UPDATE (highest_token, updated_at) ON rail_high_water'),
            ('railapp',       'SELECT (account_id) ON account'),
            ('reconcile',     'SELECT ON account, payout, ledger_entry, rail_submission, rail_high_water'),
            ('reconcile',     'UPDATE (state, updated_at) ON payout'),
            ('reconcile',     'UPDATE (outcome, rail_reference, resolved_at) ON rail_submission'),
            ('fence_account', 'SELECT (account_id, fence), UPDATE (fence, updated_at) ON account'),
            ('fence_account', 'SELECT (payout_id, account_id) ON payout'),
            ('fence_rail',    'SELECT, INSERT, UPDATE (highest_token, updated_at) ON rail_high_water'),
            ('fence_rail',    'INSERT ON rail_submission'),
            ('fence_rail',    'SELECT (payout_id, account_id) ON payout')
        ) AS g (role, what)
        WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = g.role)
    LOOP
        EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END LOOP;
END
$$;

-- Before version 15 PostgreSQL lets everybody create tables in public. Only the schema's owner can change that, and
-- a migration under another role gets a warning.
DO $$
BEGIN
    IF current_setting('server_version_num')::int < 150000 THEN
        REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    END IF;
END
$$;
