-- Who serves a guard alone (ownership: exclusive). Its requests in flight are known to that sidecar's memory only, so whoever takes over treats every key as
-- unsettled for a while.
CREATE TABLE fence.claim (
    guard           TEXT        PRIMARY KEY,
    life            UUID        NOT NULL REFERENCES fence.sidecar (life),
    epoch           BIGINT      NOT NULL, -- counts the owners
    unsettled_after INTERVAL    NOT NULL, -- how long a request of this owner may take effect after its end
    settled         BOOLEAN     NOT NULL DEFAULT false, -- it ended in order, and nothing was in flight
    taken_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT claim_epoch_ck CHECK (epoch > 0),
    CONSTRAINT claim_after_ck CHECK (unsettled_after >= interval '0')
);

CREATE INDEX claim_life_idx ON fence.claim (life);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fence_sidecar') THEN
        GRANT SELECT, INSERT, DELETE, UPDATE (life, epoch, unsettled_after, settled, taken_at) ON fence.claim TO fence_sidecar;
    END IF;
END
$$;

UPDATE fence.schema_contract SET version = 3, installed_at = now();
