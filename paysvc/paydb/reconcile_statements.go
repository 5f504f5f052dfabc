package paydb

import "fenceline/paysvc/reconcile/finding"

// The statements of reconciliation. They run under the role reconcile, one after the other on one snapshot (REPEATABLE READ), with the rail's transfers
// in the temporary table rail_transfer. An attempt is the one submission of a payout that isn't FENCED; rail_submission_attempt_uidx allows one.

// createTransfers: a table of this connection, which nobody else sees.
const createTransfers = `
CREATE TEMPORARY TABLE rail_transfer (
    rail_reference   TEXT   NOT NULL,
    client_reference TEXT   NOT NULL,
    payout_id        UUID, -- null when the client reference isn't one
    amount_minor     BIGINT NOT NULL,
    currency         TEXT   NOT NULL
)`

// dropTransfers leaves the connection as it was.
const dropTransfers = `DROP TABLE IF EXISTS pg_temp.rail_transfer`

// indexTransfers and what follows let the planner know what it is dealing with.
const indexTransfers = `CREATE INDEX ON rail_transfer (payout_id)`

const analyzeTransfers = `ANALYZE rail_transfer`

// isOpening tells the synthetic payouts whose one leg is an account's opening balance.
const isOpening = `(p.state = 'POSTED' AND p.idempotency_key = 'opening-balance:' || p.account_id)`

// attemptOf joins a payout p with its attempt s.
const attemptOf = `rail_submission s ON s.payout_id = p.payout_id AND s.outcome IS DISTINCT FROM 'FENCED'`

// discrepancy is a statement that gives 0 or more rows (subject, detail), one for each discrepancy of its class.
type discrepancy struct {
	class finding.Class
	sql   string
}

// listDiscrepancies wraps one of them: 0 to $1 rows (count of all, subject, detail), in the order of the subject.
func (d discrepancy) list() string {
	return `SELECT count(*) OVER (), subject, detail FROM (` + d.sql + `) AS found (subject, detail) ORDER BY subject, detail LIMIT $1`
}

// discrepancies returns them in no particular order.
func discrepancies() []discrepancy {
	return append(ledgerDiscrepancies(), railDiscrepancies()...)
}

func ledgerDiscrepancies() []discrepancy {
	return []discrepancy{
		{finding.PostedWithoutLegs, `
SELECT p.payout_id::text, format('%s %s', p.amount_minor, p.currency)
  FROM payout p
 WHERE p.state = 'POSTED' AND NOT EXISTS (SELECT FROM ledger_entry l WHERE l.payout_id = p.payout_id)`},

		{finding.LegsWithoutPosted, `
SELECT p.payout_id::text, format('%s entries, state %s', count(*), p.state)
  FROM payout p JOIN ledger_entry l USING (payout_id)
 WHERE p.state <> 'POSTED'
 GROUP BY p.payout_id`},

		// ledger_leg_uq allows one leg for each account and direction, so whoever has one DEBIT and one CREDIT of the right amounts has nothing else.
		{finding.UnbalancedLegs, `
SELECT p.payout_id::text,
       format('debits %s, credits %s, payout %s',
              coalesce(sum(l.amount_minor) FILTER (WHERE l.direction = 'DEBIT'), 0),
              coalesce(sum(l.amount_minor) FILTER (WHERE l.direction = 'CREDIT'), 0), p.amount_minor)
  FROM payout p JOIN ledger_entry l USING (payout_id)
 WHERE p.state = 'POSTED'
 GROUP BY p.payout_id
HAVING CASE WHEN ` + isOpening + `
            THEN count(*) <> 1
              OR bool_or(l.direction <> 'CREDIT' OR l.account_id <> p.account_id OR l.amount_minor <> p.amount_minor)
            ELSE count(*) FILTER (WHERE l.direction = 'DEBIT') <> 1
              OR count(*) FILTER (WHERE l.direction = 'CREDIT') <> 1
              OR bool_or(l.amount_minor <> p.amount_minor)
              OR bool_or((l.direction = 'DEBIT') <> (l.account_id = p.account_id))
       END`},

		// sum(BIGINT) is NUMERIC: it can't overflow.
		{finding.BalanceMismatch, `
SELECT a.account_id::text, format('balance %s, entries %s', a.balance_minor, coalesce(e.total, 0))
  FROM account a
  LEFT JOIN (SELECT account_id, sum(CASE direction WHEN 'CREDIT' THEN amount_minor ELSE -amount_minor END) AS total
               FROM ledger_entry GROUP BY account_id) e USING (account_id)
 WHERE a.balance_minor <> coalesce(e.total, 0)`},

		// A later write under an older token: a leg below the claim's token or the submission's, an attempt below the claim's; an abandoned payout is stamped
		// later than it was submitted. A mark counts where there is one: without a guard account.fence stays at 0 and rail_high_water is empty.
		{finding.TokenOrder, `
SELECT l.payout_id::text, format('%s entry under token %s, claimed under %s, submitted under %s', l.direction, l.fence, p.claim_token, coalesce(s.presented_token::text, 'none'))
  FROM ledger_entry l JOIN payout p USING (payout_id) LEFT JOIN ` + attemptOf + `
 WHERE l.fence < greatest(p.claim_token, s.presented_token)
UNION ALL
SELECT p.payout_id::text, format('submitted under token %s, claimed under %s', s.presented_token, p.claim_token)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.presented_token < p.claim_token AND p.state <> 'ABANDONED'
UNION ALL
SELECT l.payout_id::text, format('entries under tokens %s and %s', min(l.fence), max(l.fence))
  FROM ledger_entry l GROUP BY l.payout_id HAVING min(l.fence) <> max(l.fence)
UNION ALL
SELECT a.account_id::text, format('mark of the account %s, an entry under %s', a.fence, max(l.fence))
  FROM account a JOIN ledger_entry l ON l.account_id = a.account_id AND l.direction = 'DEBIT'
 WHERE a.fence > 0
 GROUP BY a.account_id HAVING max(l.fence) > a.fence
UNION ALL
SELECT h.account_id::text, format('mark of the rail %s, submitted under %s', h.highest_token, max(s.presented_token))
  FROM rail_high_water h JOIN payout p USING (account_id) JOIN ` + attemptOf + `
 GROUP BY h.account_id HAVING max(s.presented_token) > h.highest_token`},
	}
}

func railDiscrepancies() []discrepancy {
	return []discrepancy{
		{finding.AckedNotAdvanced, `
SELECT p.payout_id::text, format('state %s, rail reference %s', p.state, s.rail_reference)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.outcome = 'ACKED' AND p.state NOT IN ('RAIL_ACKED', 'POSTED')`},

		{finding.RejectedNotFailed, `
SELECT p.payout_id::text, format('state %s', p.state)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.outcome = 'REJECTED' AND p.state <> 'FAILED'`},

		{finding.TimeoutNotAmbiguous, `
SELECT p.payout_id::text, format('state %s', p.state)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.outcome = 'TIMEOUT' AND p.state NOT IN ('RAIL_AMBIGUOUS', 'ABANDONED')`},

		{finding.UnresolvedSubmission, `
SELECT p.payout_id::text, format('state %s, submitted at %s under token %s', p.state, s.submitted_at, s.presented_token)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.outcome IS NULL`},

		{finding.PaidWithoutSubmission, `
SELECT p.payout_id::text, format('state %s', p.state)
  FROM payout p LEFT JOIN ` + attemptOf + `
 WHERE p.state IN ('RAIL_SUBMITTED', 'RAIL_ACKED', 'RAIL_AMBIGUOUS', 'POSTED') AND s.submission_id IS NULL AND NOT ` + isOpening},

		{finding.TransferWithoutSubmission, `
SELECT t.client_reference, format('%s transfers, such as %s', count(*), min(t.rail_reference))
  FROM rail_transfer t LEFT JOIN rail_submission s ON s.payout_id = t.payout_id AND s.outcome IS DISTINCT FROM 'FENCED'
 WHERE s.submission_id IS NULL
 GROUP BY t.client_reference`},

		{finding.TransferNotPaid, `
SELECT p.payout_id::text, format('state %s, outcome on record %s, rail reference %s', p.state, coalesce(s.outcome, 'none'), min(t.rail_reference))
  FROM rail_transfer t JOIN payout p USING (payout_id) JOIN ` + attemptOf + `
 WHERE p.state IN ('FAILED', 'ABANDONED') AND s.outcome IS DISTINCT FROM 'ACKED'
 GROUP BY p.payout_id, s.submission_id`},

		{finding.AckedWithoutTransfer, `
SELECT p.payout_id::text, format('rail reference %s', s.rail_reference)
  FROM payout p JOIN ` + attemptOf + `
 WHERE s.outcome = 'ACKED'
   AND NOT EXISTS (SELECT FROM rail_transfer t WHERE t.payout_id = p.payout_id AND t.rail_reference = s.rail_reference)`},

		{finding.MultipleTransfers, `
SELECT t.client_reference, format('%s transfers, %s together', count(*), sum(t.amount_minor))
  FROM rail_transfer t
 GROUP BY t.client_reference HAVING count(*) > 1`},

		// One transfer only: several are a class of their own.
		{finding.TransferAmount, `
SELECT p.payout_id::text, format('transfer %s %s, payout %s %s', min(t.amount_minor), min(t.currency), p.amount_minor, p.currency)
  FROM rail_transfer t JOIN payout p USING (payout_id)
 GROUP BY p.payout_id
HAVING count(*) = 1 AND (min(t.amount_minor) <> p.amount_minor OR min(t.currency) <> p.currency)`},

		{finding.AmbiguousUnresolved, `
SELECT p.payout_id::text, format('%s %s since %s; the rail has %s transfers',
       p.amount_minor, p.currency, p.updated_at, (SELECT count(*) FROM rail_transfer t WHERE t.payout_id = p.payout_id))
  FROM payout p
 WHERE p.state = 'RAIL_AMBIGUOUS'`},
	}
}

// selectChecked: 1 row.
const selectChecked = `
SELECT now(), (SELECT count(*) FROM payout), (SELECT count(*) FROM rail_submission), (SELECT count(*) FROM rail_transfer),
       (SELECT count(*) FROM ledger_entry), (SELECT count(*) FROM account),
       (SELECT count(*) FROM rail_submission WHERE outcome = 'FENCED'),
       (SELECT count(*) FROM payout WHERE state = 'RAIL_ACKED'),
       (SELECT count(*) FROM outbox WHERE delivered_at IS NULL), (SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL)`

// selectStates: a row for each state that there is.
const selectStates = `SELECT state, count(*) FROM payout GROUP BY state`

// selectTotals: a row for each currency, in its order. A transfer's currency is the rail's, a debit's its account's.
const selectTotals = `
SELECT c.currency, coalesce(t.transferred, 0)::text, coalesce(l.debited, 0)::text, coalesce(t.open, 0)::text
  FROM (SELECT currency FROM rail_transfer UNION SELECT currency FROM account) c
  LEFT JOIN (SELECT t.currency, sum(t.amount_minor) AS transferred,
                    sum(t.amount_minor) FILTER (WHERE p.state IS DISTINCT FROM 'POSTED') AS open
               FROM rail_transfer t LEFT JOIN payout p USING (payout_id) GROUP BY t.currency) t USING (currency)
  LEFT JOIN (SELECT a.currency, sum(l.amount_minor) AS debited
               FROM ledger_entry l JOIN account a USING (account_id) WHERE l.direction = 'DEBIT' GROUP BY a.currency) l USING (currency)
 ORDER BY c.currency`

// selectAmbiguous: 0 to $2 rows in the order of payout_id, those after $1.
const selectAmbiguous = `
SELECT payout_id, amount_minor, currency, extract(epoch FROM now() - updated_at)::float8
  FROM payout
 WHERE state = 'RAIL_AMBIGUOUS' AND payout_id > $1
 ORDER BY payout_id
 LIMIT $2`

// resolveSubmission: 0 or 1 row affected. Only a submission whose answer was lost can get another outcome, and only once. The payout's row is held, so no two
// reconcilers and no operator decide about it at once.
const resolveSubmission = `
UPDATE rail_submission SET outcome = $2, rail_reference = NULLIF($3::text, ''), resolved_at = now() WHERE payout_id = $1 AND outcome = 'TIMEOUT'`
