package pgmark

import (
	"fmt"

	"fenceline/sidecar/config"
)

// The statements of one group of registrations, in the order in which they run, all in one transaction and one round trip. Parameters are arrays with
// one element for each entry.
//
// Each statement is a step of its own because in READ COMMITTED a statement sees what was committed before it began, and the order of seeing is what the gate stands
// on: lock, then raise and register, and only then look. A look that came before would miss whoever registers in between; a look within the
// same statement as the raise would miss whoever that raise waited for.
type effectStatements struct {
	// lock takes the keys' locks that are free; lockWaiting waits for one.
	lock, lockWaiting string
	// free locks the marks' rows that are to be raised, without waiting; waiting waits.
	free, waiting string
	raise         string
	look          string
	see           string // for a later look: the mark alone
}

// lockKeys takes an advisory lock on each key for the transaction, and notes which ones it got. Shared where the mark is believed to be the token already: holders of
// one token don't exclude each other. Whoever raises the mark needs it alone. So between the raise and the commit nobody else registers for the key, and
// whoever registered before has committed: without the lock an equal token, which writes nothing to the mark, could commit after a higher one has looked.
//
// A group never waits for it: what isn't free goes alone.
const lockKeys = `
SELECT set_config('fence.got', COALESCE(array_agg(g.i)::text, '{}'), true)
  FROM unnest($1::int[], $2::text[], $3::bool[]) AS g (i, key, shared)
 WHERE CASE WHEN g.shared THEN pg_try_advisory_xact_lock_shared(hashtextextended($4::text || '/' || g.key, 0))
            ELSE pg_try_advisory_xact_lock(hashtextextended($4::text || '/' || g.key, 0)) END`

// lockKeyWaiting is the same for an entry that goes alone: it waits, for lock_timeout at most. The lock is always exclusive here: this is also the way of those whose
// belief was wrong.
const lockKeyWaiting = `
SELECT set_config('fence.got', $1::int[]::text, true)
  FROM (SELECT pg_advisory_xact_lock(hashtextextended($4::text || '/' || k, 0)) FROM unnest($2::text[]) AS k WHERE NOT ($3::bool[])[1]) AS locked`

// readCommitted holds for one transaction, whatever default the database or the role has: with one snapshot for all statements the look would see the register as it
// was before the wait for the key's lock, and miss whoever registered meanwhile. It must be the pipeline's first statement, since the isolation can't be changed after the
// first snapshot. It isn't SET LOCAL or SET TRANSACTION, which the server answers with a warning here; the server begins each transaction with its
// default, so nothing stays behind in the session.
const readCommitted = `SET transaction_isolation TO 'read committed'`

// entries makes a table of the parameters from $1 on.
const entries = `unnest($1::int[], $2::text[], $3::bool[], $4::bigint[], $5::bigint[], $6::bool[], $7::text[], $8::text[]) AS g (i, key, shared, token, raise, newer, route, owner)`

const got = `current_setting('fence.got')::int[]`

// buildEffects makes a guard's statements.
//
// raise: a mark is raised where it is lower than the entry wants; an entry whose token is the mark already (or that asks for less, a barrier) writes nothing
// to the mark: where marks live in the resource's own row that write would queue behind the resource's transaction. Only what was raised or found so is registered, in the same
// statement, and only under a life that wasn't declared dead: rows of a dead one are unsettled by whoever declared it so, or by the next heartbeat of anybody.
func buildEffects(g config.Guard) effectStatements {
	at := locate(g)
	joined := at.joined("m", "g")
	stamp := ""
	if at.stamp != "" {
		stamp = ", " + at.stamp + " = now()"
	}
	rows := func(skip string) string {
		return fmt.Sprintf(`
SELECT set_config('fence.free', COALESCE((SELECT array_agg(x.i)::text
         FROM (SELECT g.i FROM unnest($1::int[], $2::text[], $3::bool[], $4::bigint[]) AS g (i, key, shared, raise) JOIN %[1]s AS m ON %[2]s
                WHERE g.i = ANY (%[3]s) AND NOT g.shared AND m.%[4]s < g.raise
                ORDER BY m.%[5]s FOR NO KEY UPDATE OF m%[6]s) AS x), '{}'), true)`, at.table, joined, got, at.token, at.key, skip)
	}
	insert, inserted := "", ""
	if g.Mark.Missing == config.MissingInsert {
		conflict, columns, values := at.key, "", ""
		if at.stamp != "" {
			columns, values = ", "+at.stamp, ", now()"
		}
		if at.guard != "" {
			conflict, columns, values = "guard, "+at.key, columns+", guard", values+", "+at.guard
		}
		insert = fmt.Sprintf(`,
n AS (INSERT INTO %[1]s AS m (%[2]s, %[3]s%[4]s)
      SELECT g.key::%[5]s, g.raise%[6]s FROM g
       WHERE NOT g.shared AND g.raise > 0 AND g.token <= $9::bigint AND NOT EXISTS (SELECT FROM %[1]s AS m WHERE %[7]s)
      ON CONFLICT (%[8]s) DO NOTHING RETURNING m.%[2]s::text AS key)`, at.table, at.key, at.token, columns, at.keyType, values, joined, conflict)
		// A barrier of the lowest token raises nothing, so it needs no mark.
		inserted = fmt.Sprintf(" UNION ALL SELECT g.i FROM g JOIN n ON n.key = g.key"+
			" UNION ALL SELECT g.i FROM g WHERE g.raise = 0 AND NOT EXISTS (SELECT FROM %s AS m WHERE %s)", at.table, joined)
	}
	tail := registeringRows
	if g.Exclusive() {
		tail = owning
	}
	return effectStatements{
		lock: lockKeys, lockWaiting: lockKeyWaiting,
		free: rows(" SKIP LOCKED"), waiting: rows(""),
		raise: fmt.Sprintf(`
WITH g AS (SELECT * FROM `+entries+` WHERE g.i = ANY (`+got+`)%[7]s),
r AS (UPDATE %[1]s AS m SET %[2]s = g.raise%[3]s FROM g
       WHERE %[4]s AND g.i = ANY (current_setting('fence.free')::int[]) AND m.%[2]s < g.raise AND g.token - m.%[2]s <= $9::bigint
      RETURNING g.i)%[5]s,
e AS (SELECT g.i FROM g JOIN %[1]s AS m ON %[4]s WHERE m.%[2]s >= g.raise AND m.%[2]s <= g.token AND NOT (g.newer AND m.%[2]s = g.token) AND g.token - m.%[2]s <= $9::bigint),
a AS (SELECT i FROM r UNION ALL SELECT i FROM e%[6]s)
%[8]s`+durable+`%[9]s`, at.table, at.token, stamp, joined, insert, inserted, tail.condition, tail.result, tail.from),
		look: fmt.Sprintf(`
SELECT g.i, m.%[2]s,
       ARRAY(SELECT f.id FROM fence.inflight AS f WHERE f.guard = $3::text AND f.key = g.key AND f.token < g.token),
       %[4]s
  FROM unnest($1::int[], $2::text[], $4::bigint[]) AS g (i, key, token) LEFT JOIN %[1]s AS m ON %[3]s`, at.table, at.token, joined, tail.alive),
		see: fmt.Sprintf("SELECT m.%s FROM %s AS m WHERE %s", at.token, at.table, at.is("m")),
	}
}

// raising is what a raise stands on, and what comes of it.
type raising struct{ condition, result, from, alive string }

var (
	// registeringRows: what was raised is registered under a life that is alive.
	registeringRows = raising{ //nolint:gochecknoglobals // constant texts
		result: `
INSERT INTO fence.inflight (guard, key, token, life, route, owner_id)
SELECT $10::text, g.key, g.token, s.life, g.route, g.owner
  FROM a JOIN g ON g.i = a.i
  JOIN fence.sidecar AS s ON s.life = $11::uuid AND s.ended_at IS NULL
RETURNING key, id, `,
		alive: `EXISTS (SELECT FROM fence.sidecar AS s WHERE s.life = $5::uuid AND s.ended_at IS NULL)`,
	}
	// owning: nothing is raised but under this life's claim on the guard. The rows are in its memory.
	owning = raising{ //nolint:gochecknoglobals // constant texts
		condition: " AND " + fmt.Sprintf(claimed, "$10", "$11"),
		result: `
SELECT g.key, 1::bigint, `,
		from: `
  FROM a JOIN g ON g.i = a.i`,
		alive: fmt.Sprintf(claimed, "$3", "$5"),
	}
)

const claimed = `EXISTS (SELECT FROM fence.claim AS c JOIN fence.sidecar AS s ON s.life = c.life WHERE c.guard = %s::text AND c.life = %s::uuid AND s.ended_at IS NULL)`

// joined is the condition that finds the row of a parameter's key.
func (l location) joined(table, parameter string) string {
	condition := table + "." + l.key + " = " + parameter + ".key::" + l.keyType
	if l.guard != "" {
		condition = table + ".guard = " + l.guard + " AND " + condition
	}
	return condition
}
