package pgstore

// The statements of C1 §1.3 and §1.4 stand as they are in the functions of lockdb/V7 and V8, which run them for many keys in one transaction; the heartbeat and the end of a session
// stand here. Only the parameters are written $1, $2, ….

// heartbeat is C1 §1.4.
const heartbeat = `
UPDATE lock_session
   SET expires_at = now() + make_interval(secs => $2)
 WHERE session_id = $1 AND expires_at > now()
RETURNING expires_at`

// Statements of ours around C1's.

// readEntry reads a live grant; a dead session's grant is over. No row or one.
const readEntry = `
SELECT e.owner_id, e.session_id, e.fencing_token, e.acquired_at, e.expires_at
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1 AND e.expires_at > now() AND s.expires_at > now()`

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

// holdSession keeps a session that is about to be closed: it waits for acquires under it that are under way, and those that come later wait for it. No row or one.
const holdSession = `SELECT session_id FROM lock_session WHERE session_id = $1 FOR UPDATE`

// grantsOfSession lists what ends with a session, after holdSession, and keeps it: nothing is added, and what is released or taken over meanwhile isn't told twice. The
// rows are locked in the order in which all others lock them. No row, one or many.
const grantsOfSession = `
SELECT lock_key, fencing_token, owner_id,
       extract(epoch FROM clock_timestamp() - acquired_at)::float8, extract(epoch FROM clock_timestamp() - expires_at)::float8
  FROM lock_entry
 WHERE session_id = $1
 ORDER BY lock_key COLLATE "C"
   FOR UPDATE`

// closeSession deletes a session; the cascade ends its grants (C1 §1.2). No row or one.
const closeSession = `DELETE FROM lock_session WHERE session_id = $1`

// orderDraws makes a revocation's draw wait for the acquires of its key, as change_locks does. No row.
const orderDraws = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`

// demandSource ends the transaction unless its token will be the highest for good (lockdb/V7). One row.
const demandSource = `SELECT demand_token_source()`

// holdEntry keeps the key's grant and its session still for a revocation: it waits for a renewal or a heartbeat that is under way, whose new end isn't to be
// seen before its commit. What is dead by then stays dead, since nobody else can write it. No row or one.
const holdEntry = `
SELECT e.fencing_token
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1
   FOR UPDATE OF e, s`

// lockEntry reads the holder for a revocation, after holdEntry. It judges by the clock and not by the transaction's start, which was before the wait. No row or one.
const lockEntry = `
SELECT e.fencing_token, e.owner_id
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.lock_key = $1 AND e.expires_at > clock_timestamp() AND s.expires_at > clock_timestamp()
   FOR UPDATE OF e`

// release is C1 §1.4: key and token and nothing else.
const release = `
DELETE FROM lock_entry
 WHERE lock_key      = $1
   AND fencing_token = $2
RETURNING fencing_token`

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
RETURNING e.lock_key, e.fencing_token, e.owner_id, extract(epoch FROM now() - e.expires_at)::float8`

// listDoomed lists the grants that end with the sessions that reapSessions is about to delete. The
// sessions are locked here, so that the same ones are deleted then. Many rows.
const listDoomed = `
WITH doomed AS (
    SELECT session_id, expires_at FROM lock_session WHERE expires_at <= now()
     ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
SELECT d.session_id, e.lock_key, e.fencing_token, e.owner_id, extract(epoch FROM now() - d.expires_at)::float8
  FROM doomed d
  LEFT JOIN lock_entry e USING (session_id)`

// reapSessions deletes them. The ids come as text, since not every way of sending statements knows the parameter's type. Many rows.
const reapSessions = `DELETE FROM lock_session WHERE session_id = ANY ($1::text[]::uuid[])`

// countHeld returns one row.
const countHeld = `
SELECT count(*)
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE e.expires_at > now() AND s.expires_at > now()`
