-- A heartbeat carries no body, so the time to live that a session was opened with is kept
-- beside it; C1's heartbeat statement takes it as its parameter.
ALTER TABLE lock_session
    ADD COLUMN ttl_millis INTEGER NOT NULL DEFAULT 15000,
    ADD CONSTRAINT lock_session_ttl_millis_ck CHECK (ttl_millis BETWEEN 1000 AND 60000);
