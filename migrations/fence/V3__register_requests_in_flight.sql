-- What the gate needs beside fence.inflight and fence.sidecar (V1).

-- Which guards a life serves, so that it is known whether somebody serves a guard, and under which definition.
ALTER TABLE fence.sidecar ADD COLUMN guards TEXT[] NOT NULL DEFAULT '{}';

-- What defines a guard, as a hash: two sidecars that define one guard differently would look past each other's requests. It changes only while nothing
-- is in flight and nobody else serves the guard.
CREATE TABLE fence.guard (
    guard      TEXT        PRIMARY KEY,
    definition TEXT        NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- What operators declared settled, and marks that they set. Append-only.
CREATE TABLE fence.settlement (
    id         BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    guard      TEXT        NOT NULL,
    key        TEXT        NOT NULL,
    token      BIGINT      NOT NULL,
    inflight   BIGINT,     -- the row that was settled; null for a mark that was set
    reset_to   BIGINT,     -- the mark's new value; null for a row that was settled
    operator   TEXT        NOT NULL,
    reason     TEXT        NOT NULL,
    settled_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT settlement_operator_ck CHECK (operator <> '' AND reason <> ''),
    CONSTRAINT settlement_kind_ck     CHECK ((inflight IS NULL) <> (reset_to IS NULL))
);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_sidecar') THEN
        GRANT SELECT, INSERT, UPDATE (definition, updated_at) ON fence.guard TO fence_sidecar;
        GRANT SELECT, INSERT ON fence.settlement TO fence_sidecar;
        GRANT DELETE ON fence.sidecar TO fence_sidecar; -- lives that ended and left nothing behind
    END IF;
END
$$;

UPDATE fence.schema_contract SET version = 2, installed_at = now();
