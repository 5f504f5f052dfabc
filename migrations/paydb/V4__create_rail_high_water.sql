CREATE TABLE rail_high_water (
    account_id    UUID        PRIMARY KEY REFERENCES account (account_id),
    highest_token BIGINT      NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT rail_hwm_token_ck CHECK (highest_token > 0)
);
