-- The sidecar's own tables. They may stand in the database of the resource that it
-- guards, so they keep to a schema of their own.
CREATE SCHEMA IF NOT EXISTS fence;

-- The highest token admitted for a key, for guards whose marks don't live in a table of the resource.
CREATE TABLE fence.mark (
    guard      TEXT        NOT NULL,
    key        TEXT        NOT NULL,
    token      BIGINT      NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT mark_pk       PRIMARY KEY (guard, key),
    CONSTRAINT mark_token_ck CHECK (token > 0)
);

-- One row for each life of a sidecar process: the id is configured and stays, the life is new with
-- every start.
CREATE TABLE fence.sidecar (
    life         UUID        PRIMARY KEY,
    id           TEXT        NOT NULL,
    started_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    heartbeat_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    ended_at     TIMESTAMPTZ,
    CONSTRAINT sidecar_id_ck CHECK (id <> '')
);

CREATE INDEX sidecar_id_idx ON fence.sidecar (id) WHERE ended_at IS NULL;

-- Admitted requests whose outcome isn't known yet. A row goes when its request is settled; unsettled_at
-- is when the outcome became unknown.
CREATE TABLE fence.inflight (
    id           BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    guard        TEXT        NOT NULL,
    key          TEXT        NOT NULL,
    token        BIGINT      NOT NULL,
    life         UUID        NOT NULL REFERENCES fence.sidecar (life),
    route        TEXT        NOT NULL,
    owner_id     TEXT        NOT NULL DEFAULT '',
    admitted_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    unsettled_at TIMESTAMPTZ,
    CONSTRAINT inflight_token_ck CHECK (token > 0)
);

CREATE INDEX inflight_key_idx  ON fence.inflight (guard, key, token);
CREATE INDEX inflight_life_idx ON fence.inflight (life);

-- Requests that were fenced out. Append-only; old rows are removed by time.
CREATE TABLE fence.rejection (
    id              BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    guard           TEXT        NOT NULL,
    key             TEXT        NOT NULL,
    route           TEXT        NOT NULL,
    mode            TEXT        NOT NULL,
    presented_token BIGINT      NOT NULL,
    highest_token   BIGINT      NOT NULL,
    owner_id        TEXT        NOT NULL DEFAULT '',
    sidecar_id      TEXT        NOT NULL,
    trace_id        TEXT        NOT NULL DEFAULT '',
    rejected_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT rejection_token_ck CHECK (presented_token > 0 AND highest_token >= presented_token)
);

CREATE INDEX rejection_time_idx ON fence.rejection (rejected_at);

-- Roles belong to the whole cluster, so this one may exist already.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_sidecar') THEN
        CREATE ROLE fence_sidecar NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role fence_sidecar is not created: % may not create roles', current_user;
END
$$;

-- A mark is never deleted by the running sidecar: a deleted mark lets every old token in.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_sidecar') THEN
        GRANT USAGE ON SCHEMA fence TO fence_sidecar;
        GRANT SELECT, INSERT, UPDATE (token, updated_at) ON fence.mark TO fence_sidecar;
        GRANT SELECT, INSERT, UPDATE (heartbeat_at, ended_at) ON fence.sidecar TO fence_sidecar;
        GRANT SELECT, INSERT, UPDATE (unsettled_at), DELETE ON fence.inflight TO fence_sidecar;
        GRANT SELECT, INSERT, DELETE ON fence.rejection TO fence_sidecar;
    END IF;
END
$$;
