package pgstore

// statements are those whose rule a negative control breaks. A store runs the constants below.
type statements struct {
	order, durable, session, endDead, acquire, renew, release, floor string
}

func normative() statements {
	return statements{
		order: orderGrants, durable: durable, session: lockSession, endDead: endDeadHolder,
		acquire: acquire, renew: renew, release: release, floor: drawToken,
	}
}

// The statements of C1 §1.3 and §1.4 as they stand there; only the parameters are written $1, $2, ….

// acquire is C1 §1.3. Drawing nextval again in DO UPDATE is essential (C1, warning 1): without it a takeover hands out the dead holder's token.
//
// By itself the statement has a hole. nextval in VALUES is drawn before the statement waits for a conflicting row: A draws 2 and
// waits for B's uncommitted release; C draws 3, is granted, writes and releases; then A's insert succeeds with 2. A was
// granted later and has the lower token, so the resource fences out the rightful holder. Therefore orderGrants
// runs before it in the same transaction: only one transaction at a time draws a token for a key, and holds on until it has committed.
const acquire = `
INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, acquired_at, expires_at)
VALUES ($1, $2, $3, nextval('fencing_token_seq'),
        now(), now() + make_interval(secs => $4))
ON CONFLICT (lock_key) DO UPDATE
   SET owner_id      = EXCLUDED.owner_id,
       session_id    = EXCLUDED.session_id,
       fencing_token = nextval('fencing_token_seq'),
       acquired_at   = now(),
       expires_at    = now() + make_interval(secs => $4)
 WHERE lock_entry.expires_at <= now()
    OR (lock_entry.owner_id = EXCLUDED.owner_id AND lock_entry.session_id = EXCLUDED.session_id)
RETURNING fencing_token, owner_id, session_id, acquired_at, expires_at`

// orderGrants makes the order of tokens of one key the order of its grants (see acquire). It is
// transaction-scoped, so a transaction-mode pooler may stand in between. Two keys with one hash only wait for each other.
//
// A release, a renewal and the end of a session don't take this lock. They draw no token, so they can't upset the order; and
// each statement after the wait has a snapshot of its own (READ COMMITTED) and sees what they have committed meanwhile.
//
// now() was fixed before this wait, at the start of the transaction. That errs on the safe side everywhere: expires_at <= now() is judged by an
// earlier instant, so nothing is judged expired too soon, and the new lease counts from an earlier instant, so it ends sooner. A session that ends
// during the wait was alive at that instant; its grant is one that the next acquire takes over, with a higher token.
const orderGrants = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`

// renew is C1 §1.4. It takes no ordering lock, since it draws no token. Should it wait for the row, now() stays the instant at which the
// transaction began: a lease that was alive then is prolonged from then, if the row still has its token, that is, if nobody took the key meanwhile.
const renew = `
UPDATE lock_entry
   SET expires_at = now() + make_interval(secs => $3)
 WHERE lock_key      = $1
   AND fencing_token = $2
   AND expires_at    > now()
RETURNING fencing_token, expires_at`

// release is C1 §1.4: key and token and nothing else.
const release = `
DELETE FROM lock_entry
 WHERE lock_key      = $1
   AND fencing_token = $2
RETURNING fencing_token`

// heartbeat is C1 §1.4.
const heartbeat = `
UPDATE lock_session
   SET expires_at = now() + make_interval(secs => $2)
 WHERE session_id = $1 AND expires_at > now()
RETURNING expires_at`

// Statements of ours around C1's.

// durable says whether the server keeps what it confirms. It is asked in the transaction that hands out a token: both settings can change under
// a running server, or with a restart behind a pool that mends itself. (synchronous_commit is fixed by the transaction itself.) One row.
const durable = `SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'`

// readEnded reads the key's grant if it is over by its time or its session's: the one that the acquire after it takes the place of. It
// serves the log and a counter, so it takes no lock. No row or one.
const readEnded = `
SELECT e.fencing_token, extract(epoch FROM now() - least(e.expires_at, s.expires_at))::float8
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1 AND (e.expires_at <= now() OR s.expires_at <= now())`

// endDeadHolder frees a key whose holder's session has expired, so that a takeover needs no reaper: the
// cascade deletes the entry. An acquire under that very session, judged alive a moment ago, holds it (lockSession); then this waits, and judges
// it again by what is committed: a heartbeat meanwhile keeps it. No row or one.
const endDeadHolder = `
DELETE FROM lock_session s
 USING lock_entry e
 WHERE e.lock_key = $1 AND s.session_id = e.session_id AND s.expires_at <= now()`

// lockSession reads a session and keeps it from being deleted until the end of the transaction. No row or one.
const lockSession = `
SELECT owner_id, expires_at > now()
  FROM lock_session
 WHERE session_id = $1
   FOR KEY SHARE`

// readHolder reads who holds a key. After a contended acquire the row is still there: ON CONFLICT DO UPDATE has locked it, although it changed
// nothing. No row or one.
const readHolder = `SELECT owner_id, expires_at FROM lock_entry WHERE lock_key = $1`

// readEntry reads a live grant; a dead session's grant is over. No row or one.
const readEntry = `
SELECT e.owner_id, e.session_id, e.fencing_token, e.acquired_at, e.expires_at
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1 AND e.expires_at > now() AND s.expires_at > now()`

// readHeld reads how long a grant has been held, for the log alone. No row or one.
const readHeld = `SELECT extract(epoch FROM now() - acquired_at)::float8 FROM lock_entry WHERE lock_key = $1 AND fencing_token = $2`

// readRenewed reads the rest of a grant that was just renewed. One row.
const readRenewed = `SELECT owner_id, session_id, acquired_at FROM lock_entry WHERE lock_key = $1`

// openSession returns one row.
const openSession = `
INSERT INTO lock_session (session_id, owner_id, expires_at, ttl_millis)
VALUES ($1, $2, now() + make_interval(secs => $3), $4)
RETURNING expires_at`

// readSession returns no row or one.
const readSession = `
SELECT owner_id, ttl_millis, expires_at > now()
  FROM lock_session
 WHERE session_id = $1`

// countSession counts a session's live grants. One row.
const countSession = `SELECT count(*), now() FROM lock_entry WHERE session_id = $1 AND expires_at > now()`

// closeSession deletes a session; the cascade ends its grants (C1 §1.2). No row or one.
const closeSession = `DELETE FROM lock_session WHERE session_id = $1`

// lockEntry reads the holder for a revocation and keeps the row. No row or one.
const lockEntry = `
SELECT e.fencing_token, e.owner_id
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1 AND e.expires_at > now() AND s.expires_at > now()
   FOR UPDATE OF e`

// recordRevocation is append-only. One row.
const recordRevocation = `
INSERT INTO lock_revocation (lock_key, prev_owner, prev_token, operator, reason)
VALUES ($1, $2, $3, $4, $5)
RETURNING id`

// drawToken draws a token that no grant will have: the floor of a revocation. One row.
const drawToken = `SELECT nextval('fencing_token_seq')`

// reapEntries removes expired grants, a batch at a time. Locked rows belong to somebody who is busy with them: another
// replica's reaper or an acquire. The CTE is evaluated once, since it locks rows; in a sub-select LIMIT might count anew for every outer row. Many rows.
const reapEntries = `
WITH doomed AS (
    SELECT lock_key FROM lock_entry WHERE expires_at <= now()
     ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM lock_entry e
 USING doomed d
 WHERE e.lock_key = d.lock_key
RETURNING e.lock_key, e.fencing_token, extract(epoch FROM now() - e.expires_at)::float8`

// listDoomed lists the grants that end with the sessions that reapSessions is about to delete. The
// sessions are locked here, so that the same ones are deleted then. Many rows.
const listDoomed = `
WITH doomed AS (
    SELECT session_id, expires_at FROM lock_session WHERE expires_at <= now()
     ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
SELECT d.session_id, e.lock_key, e.fencing_token, extract(epoch FROM now() - d.expires_at)::float8
  FROM doomed d
  LEFT JOIN lock_entry e USING (session_id)`

// reapSessions deletes them. Many rows.
const reapSessions = `DELETE FROM lock_session WHERE session_id = ANY ($1)`

// countHeld returns one row.
const countHeld = `
SELECT count(*)
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.expires_at > now() AND s.expires_at > now()`
