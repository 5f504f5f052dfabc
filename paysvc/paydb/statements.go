package paydb

// The statements that both modes of the payment-resource share.

// payoutColumns are what scanPayout reads, of a payout p.
const payoutColumns = `p.payout_id, p.account_id, p.amount_minor, p.currency, p.state, coalesce(p.claimed_by, ''), coalesce(p.claim_token, 0),
       p.idempotency_key, p.attempt_count, p.created_at, p.updated_at`

// selectPayout: 0 or 1 row.
const selectPayout = `SELECT ` + payoutColumns + ` FROM payout p WHERE p.payout_id = $1`

// listPayouts: 0 to $5 rows in the order (created_at, payout_id), which is total, since payout_id is unique. A null parameter
// doesn't restrict. created_at is the start of the creating transaction: a payout that commits late can appear before a place that a
// reader has passed, so a poller begins again from the start.
const listPayouts = `
SELECT ` + payoutColumns + `
  FROM payout p
 WHERE ($1::text IS NULL OR p.state = $1)
   AND ($2::uuid IS NULL OR p.account_id = $2)
   AND ($3::timestamptz IS NULL OR (p.created_at, p.payout_id) > ($3, $4::uuid))
 ORDER BY p.created_at, p.payout_id
 LIMIT $5`

// selectAccount: 0 or 1 row. One statement, hence balance and sum of one instant. A sum outside 64 bits is 22003, never a
// wrong number.
const selectAccount = `
SELECT a.account_id, a.currency, a.balance_minor, a.updated_at,
       (SELECT coalesce(sum(CASE l.direction WHEN 'CREDIT' THEN l.amount_minor ELSE -l.amount_minor END), 0)::bigint
          FROM ledger_entry l WHERE l.account_id = a.account_id)
  FROM account a
 WHERE a.account_id = $1`

// insertPayout: 0 or 1 row. None means that the key is known (the statement waits for a concurrent one with the same key to
// commit or roll back), or that there is no such account in this currency; the statements below tell which.
const insertPayout = `
INSERT INTO payout AS p (payout_id, account_id, amount_minor, currency, idempotency_key)
SELECT $1, a.account_id, $3, a.currency, $5 FROM account a WHERE a.account_id = $2 AND a.currency = $4
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING ` + payoutColumns

// selectPayoutByKey: 0 or 1 row.
const selectPayoutByKey = `SELECT ` + payoutColumns + ` FROM payout p WHERE p.idempotency_key = $1`

// selectCurrency: 0 or 1 row.
const selectCurrency = `SELECT currency FROM account WHERE account_id = $1`

// diagnoseClaim: 0 or 1 row. It tells why claimPayout found nothing, and holds the payout still until the transaction ends.
const diagnoseClaim = `
SELECT ` + payoutColumns + `, a.balance_minor
  FROM payout p JOIN account a ON a.account_id = p.account_id
 WHERE p.payout_id = $1
   FOR UPDATE OF p`

// failPayout: 0 or 1 row. It leaves PENDING only, as the state machine has it; diagnoseClaim has read that state and holds the row, so the
// predicate is a second line.
const failPayout = `
UPDATE payout p SET state = 'FAILED', updated_at = now() WHERE p.payout_id = $1 AND p.state = 'PENDING'
RETURNING ` + payoutColumns

// creditClearing: 0 or 1 row; none means that the configured clearing account isn't there in this currency. A balance outside 64 bits
// is 22003.
const creditClearing = `
UPDATE account SET balance_minor = balance_minor + $2, updated_at = now() WHERE account_id = $1 AND currency = $3
RETURNING balance_minor`

// selectLegs: 0 or more rows, two for a posted payout, the DEBIT first.
const selectLegs = `
SELECT entry_id, payout_id, account_id, direction, amount_minor, fence, created_at
  FROM ledger_entry
 WHERE payout_id = $1
 ORDER BY direction DESC, account_id`
