package invariant

// The checks. Each statement gives a row for each violation: payout, account, tokens, holders, rows (in words), and what is wrong. The
// parameters are the same for all: @grants and @transfers are the evidence from outside of the database as JSON, @terminal the states that
// nothing leaves, @fenced_account and @fenced_rail whether the process itself compares tokens, @slack_millis by how much a log line may be late.

// opening excludes the synthetic payouts that hold opening balances: nobody claimed them, and their one leg has no counterpart.
const opening = `p.idempotency_key LIKE 'opening-balance:%'`

// grantLog is lockd's grant log as a table.
const grantLog = `
grant_log AS (
    SELECT * FROM jsonb_to_recordset(@grants::jsonb) AS g (seq bigint, event text, key text, token bigint, holder text, at_millis bigint, lease_millis bigint)
), granted AS (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY seq) AS place,
           max(token) OVER (PARTITION BY key ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest_before
      FROM grant_log WHERE event = 'lock_granted'
)`

// INV-01: successful mutations of a payout are ordered by non-decreasing token.
const mutationsInTokenOrder = `
WITH writes AS (
    SELECT h.*, max(token) OVER (PARTITION BY payout_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest_before
      FROM payout_history h
     WHERE token IS NOT NULL AND (source = 'payout' OR source IN ('ledger_entry', 'rail_submission') AND operation = 'INSERT')
       AND (source <> 'rail_submission' OR new_state IS DISTINCT FROM 'FENCED')
)
SELECT w.payout_id::text, p.account_id::text, ARRAY[w.highest_before, w.token], ARRAY_REMOVE(ARRAY[p.claimed_by, w.holder], NULL),
       ARRAY[format('payout_history %s: %s %s %s', w.seq, w.operation, w.source, w.new_state)],
       format('a write under token %s came after one under %s', w.token, w.highest_before)
  FROM writes w JOIN payout p USING (payout_id)
 WHERE w.token < w.highest_before
 ORDER BY w.seq`

// INV-02: at most one submission of a payout ever succeeds. The rail's own log is the witness, if it is given; the tables hold one row at most
// and can't be.
const oneSuccessfulSubmission = `
WITH transfer AS (
    SELECT * FROM jsonb_to_recordset(@transfers::jsonb) AS t (reference text, client_reference text)
), paid AS (
    SELECT client_reference AS payout_id, array_agg('rail transfer ' || reference ORDER BY reference) AS rows FROM transfer GROUP BY client_reference HAVING count(*) > 1
    UNION ALL
    SELECT payout_id::text, array_agg('rail_submission ' || submission_id ORDER BY submission_id) FROM rail_submission WHERE outcome = 'ACKED' GROUP BY payout_id HAVING count(*) > 1
)
SELECT paid.payout_id, p.account_id::text,
       ARRAY(SELECT s.presented_token FROM rail_submission s WHERE s.payout_id = p.payout_id ORDER BY s.submitted_at),
       ARRAY_REMOVE(ARRAY[p.claimed_by], NULL), paid.rows, format('the payout was paid out %s times', cardinality(paid.rows))
  FROM paid LEFT JOIN payout p ON p.payout_id::text = paid.payout_id
 ORDER BY 1`

// INV-03: the legs of a payout balance and are those of its state, and each balance is the sum of its entries.
const moneyAddsUp = `
WITH legs AS (
    SELECT p.payout_id, p.account_id, p.state, p.amount_minor, p.claimed_by,
           coalesce(sum(l.amount_minor) FILTER (WHERE l.direction = 'DEBIT'), 0) AS debits,
           coalesce(sum(l.amount_minor) FILTER (WHERE l.direction = 'CREDIT'), 0) AS credits,
           coalesce(sum(l.amount_minor) FILTER (WHERE l.direction = 'DEBIT' AND l.account_id = p.account_id), 0) AS payer,
           array_agg(DISTINCT l.fence) FILTER (WHERE l.fence IS NOT NULL) AS tokens,
           array_agg(format('ledger_entry %s: %s %s of %s', l.entry_id, l.direction, l.amount_minor, l.account_id)) FILTER (WHERE l.entry_id IS NOT NULL) AS rows
      FROM payout p LEFT JOIN ledger_entry l USING (payout_id)
     WHERE NOT ` + opening + `
     GROUP BY p.payout_id
), sums AS (
    SELECT a.account_id, a.balance_minor,
           coalesce(sum(CASE l.direction WHEN 'CREDIT' THEN l.amount_minor ELSE -l.amount_minor END), 0) AS total
      FROM account a LEFT JOIN ledger_entry l USING (account_id)
     GROUP BY a.account_id
)
SELECT payout_id::text, account_id::text, coalesce(tokens, '{}'), ARRAY_REMOVE(ARRAY[claimed_by], NULL), coalesce(rows, ARRAY[format('payout %s', payout_id)]),
       format('the payout of %s is %s, its legs debit %s and credit %s', amount_minor, state, debits, credits)
  FROM legs
 WHERE debits <> credits OR debits <> payer OR debits <> CASE state WHEN 'POSTED' THEN amount_minor ELSE 0 END
UNION ALL
SELECT '', account_id::text, '{}', '{}', ARRAY[format('account %s', account_id)],
       format('the balance is %s, the entries add up to %s', balance_minor, total)
  FROM sums
 WHERE balance_minor <> total
 ORDER BY 1, 2`

// INV-04: tokens never repeat or go back for a key.
const tokensOnlyGrow = `
WITH ` + grantLog + `
SELECT '', key, ARRAY[highest_before, token], ARRAY[holder], ARRAY[format('grant log %s: lock_granted %s %s', seq, key, token)],
       format('token %s was granted after %s', token, highest_before)
  FROM granted
 WHERE token <= highest_before
 ORDER BY seq`

// INV-05: no write at or below the stored fence. Where the process itself compares, a claim is above the fence that it finds, a debit and an
// admission raise their mark, and legs are at it. Behind a sidecar, which raises the mark before the write, no write is below the mark. No
// mark ever goes down.
const noWriteBelowTheMark = `
WITH writes AS (
    SELECT h.*, p.claimed_by, p.account_id AS payer FROM payout_history h LEFT JOIN payout p USING (payout_id)
)
SELECT coalesce(payout_id::text, ''), coalesce(payer, account_id)::text, ARRAY_REMOVE(ARRAY[token, old_mark, new_mark], NULL), ARRAY_REMOVE(ARRAY[claimed_by], NULL),
       ARRAY[format('payout_history %s: %s %s %s', seq, operation, source, new_state)],
       CASE WHEN token IS NULL THEN format('the mark went from %s to %s', old_mark, new_mark) ELSE format('a write under token %s, with the mark at %s', token, old_mark) END
  FROM writes
 WHERE CASE source
       WHEN 'account'         THEN operation <> 'INSERT' AND (new_mark IS NULL OR new_mark < old_mark OR @fenced_account AND change < 0 AND new_mark <= old_mark)
       WHEN 'rail_high_water' THEN operation <> 'INSERT' AND (new_mark IS NULL OR new_mark < old_mark OR @fenced_rail AND new_mark = old_mark)
       WHEN 'payout'          THEN operation <> 'DELETE' AND token < old_mark OR @fenced_account AND new_state = 'CLAIMED' AND token = old_mark
       WHEN 'ledger_entry'    THEN operation = 'INSERT' AND account_id = payer AND token < old_mark
       WHEN 'rail_submission' THEN operation = 'INSERT' AND new_state IS DISTINCT FROM 'FENCED' AND token < old_mark
       END
 ORDER BY seq`

// INV-06: at most one live grant a key. A grant is over when its log says so, or its lease has run out; renewals only make it longer, so this
// finds no violation that isn't one. A grant to the same owner replaces its own earlier one.
const oneLiveGrant = `
WITH ` + grantLog + `
SELECT '', earlier.key, ARRAY[earlier.token, later.token], ARRAY[earlier.holder, later.holder],
       ARRAY[format('grant log %s: lock_granted %s %s', earlier.seq, earlier.key, earlier.token), format('grant log %s: lock_granted %s %s', later.seq, later.key, later.token)],
       format('granted %s ms after a grant of %s ms that nothing had ended', later.at_millis - earlier.at_millis, earlier.lease_millis)
  FROM granted earlier JOIN granted later ON later.key = earlier.key AND later.place = earlier.place + 1
 WHERE later.holder <> earlier.holder
   AND later.at_millis < earlier.at_millis + earlier.lease_millis
   AND NOT EXISTS (SELECT FROM grant_log e
                    WHERE e.key = earlier.key AND e.token = earlier.token AND e.event <> 'lock_granted' AND e.at_millis <= later.at_millis + @slack_millis)
 ORDER BY later.seq`

// INV-07: every submission and every fenced write presents a token that was granted for the account's lock. A mark alone isn't a write: a sidecar's barrier before
// the rail-proxy, where each token submits once, raises it to one below the holder's token, so that this one is still to be used.
const tokensWereGranted = `
WITH ` + grantLog + `, presented AS (
    SELECT p.payout_id, p.account_id, s.presented_token AS token, p.claimed_by, format('rail_submission %s', s.submission_id) AS what
      FROM rail_submission s JOIN payout p USING (payout_id)
    UNION ALL
    SELECT p.payout_id, p.account_id, l.fence, p.claimed_by, format('ledger_entry %s', l.entry_id) FROM ledger_entry l JOIN payout p USING (payout_id) WHERE NOT ` + opening + `
    UNION ALL
    SELECT p.payout_id, p.account_id, p.claim_token, p.claimed_by, format('payout %s', p.payout_id) FROM payout p WHERE p.claim_token IS NOT NULL AND NOT ` + opening + `
    UNION ALL
    SELECT NULL, h.account_id, h.highest_token, NULL, format('rail_high_water %s', h.account_id) FROM rail_high_water h
     WHERE NOT EXISTS (SELECT FROM granted b WHERE b.key = 'payout:' || h.account_id::text AND b.token = h.highest_token + 1)
)
SELECT coalesce(payout_id::text, ''), account_id::text, ARRAY[token], ARRAY_REMOVE(ARRAY[claimed_by], NULL), ARRAY[what], format('token %s was never granted for payout:%s', token, account_id)
  FROM presented
 WHERE NOT EXISTS (SELECT FROM granted g WHERE g.key = 'payout:' || account_id::text AND g.token = presented.token)
 ORDER BY what`

// INV-08: terminal stays terminal.
const terminalStaysTerminal = `
SELECT h.payout_id::text, h.account_id::text, ARRAY_REMOVE(ARRAY[h.token, p.claim_token], NULL), ARRAY_REMOVE(ARRAY[h.holder], NULL),
       ARRAY[format('payout_history %s: %s payout', h.seq, h.operation)], format('the payout left %s for %s', h.old_state, coalesce(h.new_state, 'nothing'))
  FROM payout_history h LEFT JOIN payout p USING (payout_id)
 WHERE h.source = 'payout' AND h.old_state = ANY (@terminal) AND h.new_state IS DISTINCT FROM h.old_state
 ORDER BY h.seq`
