package paydb

// The statements of plain mode. They are those of an ordinary application that trusts its lock: they stamp the fencing token that
// came with the request and never compare it, and posting asks for neither state nor token. Put nothing here that fences: this
// is the unmodified resource that a sidecar protects. Each runs under the role payapp, which may not write account.fence.

// claimPayout: 0 or 1 row. The state is compared with the expected one and with those from which the state machine lets a claim
// start, so of two claims that expect PENDING one wins: the second waits for the row, reads its state again, and finds CLAIMED. The
// token isn't: a stale holder that expects CLAIMED takes the payout back from the current one.
const claimPayout = `
UPDATE payout p
   SET state = 'CLAIMED', claimed_by = $2, claim_token = $3, attempt_count = p.attempt_count + 1, updated_at = now()
  FROM account a
 WHERE p.payout_id = $1
   AND p.state = $4
   AND p.state = ANY ($5)
   AND a.account_id = p.account_id
   AND a.balance_minor >= p.amount_minor
RETURNING ` + payoutColumns

// debitPayer: 0 or 1 row. Careless on purpose: it asks for neither state nor token, so a second posting debits a second time. What
// account_balance_ck refuses is 23514.
const debitPayer = `
UPDATE account a
   SET balance_minor = a.balance_minor - p.amount_minor, updated_at = now()
  FROM payout p
 WHERE p.payout_id = $1 AND a.account_id = p.account_id
RETURNING a.account_id, a.balance_minor, p.amount_minor, p.currency`

// insertLeg: 0 or 1 row. Careless on purpose: a leg that is there already (ledger_leg_uq) is taken for this posting's own.
const insertLeg = `
INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (payout_id, account_id, direction) DO NOTHING`

// markPosted: 0 or 1 row. Careless on purpose: the state isn't compared.
const markPosted = `
UPDATE payout p SET state = 'POSTED', updated_at = now() WHERE p.payout_id = $1
RETURNING ` + payoutColumns
