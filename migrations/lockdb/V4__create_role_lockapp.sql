-- Roles belong to the whole cluster, so another database may have made this one already, at this very
-- moment even; and an owner without CREATEROLE may have had it made by somebody else.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'lockapp') THEN
        CREATE ROLE lockapp NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role lockapp is not created: % may not create roles', current_user;
END
$$;

-- lock_revocation is append-only: no UPDATE, no DELETE.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'lockapp') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON lock_session, lock_entry TO lockapp;
        GRANT SELECT, INSERT ON lock_revocation TO lockapp;
        GRANT USAGE, SELECT ON SEQUENCE fencing_token_seq, lock_revocation_id_seq TO lockapp;
    END IF;
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
