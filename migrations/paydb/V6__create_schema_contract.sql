-- One row that says which schema this is. It means "every object and grant of this version is there",
-- which a service checks before it calls itself ready.
CREATE TABLE schema_contract (
    singleton    BOOLEAN     PRIMARY KEY DEFAULT true,
    version      INTEGER     NOT NULL,
    name         TEXT        NOT NULL,
    installed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT schema_contract_singleton_ck CHECK (singleton),
    CONSTRAINT schema_contract_version_ck   CHECK (version > 0)
);

INSERT INTO schema_contract (version, name) VALUES (1, 'paydb');

DO $$
DECLARE
    reader TEXT;
BEGIN
    FOR reader IN
        SELECT rolname FROM pg_roles
         WHERE rolname IN ('payapp', 'railapp', 'reconcile', 'fence_account', 'fence_rail')
    LOOP
        EXECUTE format('GRANT SELECT ON schema_contract TO %I', reader);
    END LOOP;
END
$$;
