package paydb

// The statements of fenced mode. (a), (b) and (c) are those of C1 §1.6 as they stand there, @name for its :name. They run in one
// transaction, in that order, under the role payapp_fenced.

// fencedStatements are the texts that fenced mode runs. They are fields so that a test can run the store with a statement that is
// wrong on purpose.
type fencedStatements struct {
	raise, claim, debit, leg, transition, replay string
}

func newFencedStatements() fencedStatements {
	return fencedStatements{raise: raiseFence, claim: claimFenced, debit: debitFenced, leg: insertFencedLeg, transition: transitionFenced, replay: selectPayoutFence}
}

// raiseFence: 0 or 1 row. It runs before claimFenced, in its transaction. None means that the account's fence is at or above the token, or that
// there is no such payout.
//
// It raises the fence to token − 1 and not to the token. From here on every older token is at or below the fence, so (a) refuses it;
// the claimant's own token is still above it, which (a), whose < is strict, wants: a claim that raised the fence to its own
// token would make its own posting fail. fence < token is fence <= token − 1, so the fence never goes down. The update holds the account's row to the
// transaction's end: of two claims on one account the second sees the first one's fence.
const raiseFence = `
UPDATE account a
   SET fence = @token::bigint - 1, updated_at = now()
  FROM payout p
 WHERE p.payout_id = @payout_id
   AND a.account_id = p.account_id
   AND a.fence < @token
RETURNING a.account_id`

// claimFenced: 0 or 1 row. States are compared as in plain mode. The stamped token never goes down either: raiseFence has seen to
// that where every claim was fenced, but a payout may have been claimed while fencing was off.
const claimFenced = `
UPDATE payout p
   SET state = 'CLAIMED', claimed_by = @owner, claim_token = @token, attempt_count = p.attempt_count + 1, updated_at = now()
  FROM account a
 WHERE p.payout_id = @payout_id
   AND p.state = @expected
   AND p.state = ANY (@claimable)
   AND (p.claim_token IS NULL OR p.claim_token <= @token)
   AND a.account_id = p.account_id
   AND a.balance_minor >= p.amount_minor
RETURNING ` + payoutColumns

// debitFenced is (a): 0 or 1 row. None means fenced out or insufficient funds. The < is strict: a token debits an account once.
const debitFenced = `
UPDATE account
   SET balance_minor = balance_minor - @amount_minor,
       fence         = @token,
       updated_at    = now()
 WHERE account_id    = @account_id
   AND currency      = @currency
   AND fence         < @token
   AND balance_minor >= @amount_minor
RETURNING balance_minor, fence`

// insertFencedLeg is (b): 0 or 1 row, once for each leg. None means that the fence moved past the token. The <= isn't strict: (a) has
// stamped our own token. A leg that is there already is 23505 on ledger_leg_uq.
const insertFencedLeg = `
INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
SELECT @entry_id, @payout_id, a.account_id, @direction, @amount_minor, @token
  FROM account a
 WHERE a.account_id = @account_id
   AND a.fence     <= @token
RETURNING entry_id`

// transitionFenced is (c): 0 or 1 row. None means that the payout isn't RAIL_ACKED, or that a newer holder has claimed it.
const transitionFenced = `
UPDATE payout
   SET state = 'POSTED', updated_at = now()
 WHERE payout_id = @payout_id AND state = 'RAIL_ACKED' AND claim_token <= @token
RETURNING state`

// diagnoseFenced: 0 or 1 row. The one read that tells why a statement above found nothing.
const diagnoseFenced = `
SELECT ` + payoutColumns + `, a.balance_minor, a.fence, a.currency
  FROM payout p JOIN account a ON a.account_id = p.account_id
 WHERE p.payout_id = $1`

// diagnoseFencedClaim is diagnoseFenced, and holds the payout still, since a payout without funds is failed after it.
const diagnoseFencedClaim = diagnoseFenced + ` FOR UPDATE OF p`

// selectFence: 0 or 1 row.
const selectFence = `SELECT fence FROM account WHERE account_id = $1`
