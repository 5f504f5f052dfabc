-- Version 2: the ledger of requests (V8), without which the payment-resource can't take a write, and the outbox.
UPDATE schema_contract SET version = 2, installed_at = now();
