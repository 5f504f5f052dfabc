-- One row that says which schema this is. It means "every object and grant of this version is there",
-- which a service checks before it calls itself ready.
CREATE TABLE fence.schema_contract (
    singleton    BOOLEAN     PRIMARY KEY DEFAULT true,
    version      INTEGER     NOT NULL,
    name         TEXT        NOT NULL,
    installed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT schema_contract_singleton_ck CHECK (singleton),
    CONSTRAINT schema_contract_version_ck   CHECK (version > 0)
);

INSERT INTO fence.schema_contract (version, name) VALUES (1, 'fence');

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_sidecar') THEN
        GRANT SELECT ON fence.schema_contract TO fence_sidecar;
    END IF;
END
$$;
