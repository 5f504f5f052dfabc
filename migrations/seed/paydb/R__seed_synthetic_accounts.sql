-- Synthetic accounts for the demonstration and for tests; nothing here is real.
--
-- An opening balance is a ledger row like any other: one CREDIT leg under a synthetic payout that is POSTED
-- from the start. So every balance equals the sum of its entries from the first row on. These legs are the only ones
-- that have no counterpart.
INSERT INTO account (account_id, currency, balance_minor)
SELECT account_id::uuid, 'EUR', opening
  FROM (VALUES
        ('00000000-0000-4000-8000-000000000001', 0), -- the clearing account: it only ever receives
        ('00000000-0000-4000-8000-000000000101', 100000),
        ('00000000-0000-4000-8000-000000000102', 100000),
        ('00000000-0000-4000-8000-000000000103', 100000),
        ('00000000-0000-4000-8000-000000000104', 100000),
        ('00000000-0000-4000-8000-000000000105', 100000),
        ('00000000-0000-4000-8000-000000000106', 100000),
        ('00000000-0000-4000-8000-000000000107', 1000), -- too little for most payouts
        ('00000000-0000-4000-8000-000000000108', 250000)
       ) AS seed (account_id, opening)
ON CONFLICT (account_id) DO NOTHING;

INSERT INTO payout (payout_id, account_id, amount_minor, currency, state, claimed_by, claim_token, idempotency_key)
SELECT ('00000000-0000-4000-9000-' || right(account_id::text, 12))::uuid, account_id, balance_minor, currency,
       'POSTED', 'seed', 1, 'opening-balance:' || account_id
  FROM account
 WHERE account_id BETWEEN '00000000-0000-4000-8000-000000000101' AND '00000000-0000-4000-8000-000000000108'
ON CONFLICT DO NOTHING;

INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
SELECT ('00000000-0000-4000-a000-' || right(p.account_id::text, 12))::uuid, p.payout_id, p.account_id, 'CREDIT', p.amount_minor, 1
  FROM payout p
 WHERE p.idempotency_key LIKE 'opening-balance:%'
ON CONFLICT DO NOTHING;
