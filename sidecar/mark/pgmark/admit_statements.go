package pgmark

import (
	"fmt"

	"fenceline/sidecar/config"
)

// admitStatements are those of a group of admissions where only their order counts. They run in one transaction and one round trip, in this order.
type admitStatements struct {
	// free locks the marks' rows that are to be written and that nobody holds, in the order of their keys, and notes which ones.
	free string
	// raise admits: parameters i, key, token, newer (arrays), max_jump, guard.
	raise string
}

// asking makes a table of the parameters.
const asking = `unnest($1::int[], $2::text[], $3::bigint[], $4::bool[]) AS g (i, key, token, newer)`

// buildAdmit makes a guard's statements.
//
// Order: no lower token is admitted after a higher one, since a token is admitted only by the row that its own statement wrote: the condition is compared with
// the newest version of the row, which nobody else can write until the commit. Two statements and not one, so that the comparison has a snapshot that is newer than the
// row's lock. (READ COMMITTED; the transaction asks for it.)
//
// An equal token is written again although it changes nothing. Only so does the admission wait for the disk with the mark that it stands on: that mark may be another
// program's, whose commit was not waited for.
//
// A group never waits. Rows that somebody holds are skipped. A key without a mark gets one only under an advisory lock that is tried, and that those that go alone
// take, too: without it the unique index would have two groups wait for each other's rows. (Another program that inserts the very key at the same moment is waited for,
// for lock_timeout at most.)
//
// What wasn't admitted is told the mark as the statement saw it. Marks only grow, so a mark that refuses is reason enough. One that would admit was held or has
// changed: the entry goes alone.
func buildAdmit(g config.Guard) admitStatements {
	at := locate(g)
	joined := at.joined("m", "g")
	const lower = "(m.%[1]s < g.token OR m.%[1]s = g.token AND NOT g.newer)"
	compare := fmt.Sprintf(lower, at.token)
	stamp, columns, values, conflict := "", "", "", at.key
	if at.stamp != "" {
		stamp, columns, values = ", "+at.stamp+" = now()", ", "+at.stamp, ", now()"
	}
	if at.guard != "" {
		conflict, columns, values = "guard, "+at.key, columns+", guard", values+", "+at.guard
	}
	insert, inserted := "", ""
	if g.Mark.Missing == config.MissingInsert {
		insert = fmt.Sprintf(`,
n AS (INSERT INTO %[1]s AS m (%[2]s, %[3]s%[4]s)
      SELECT g.key::%[5]s, g.token%[6]s FROM g
       WHERE CASE WHEN g.token > $5::bigint OR EXISTS (SELECT FROM %[1]s AS m WHERE %[7]s) THEN false
                  ELSE pg_try_advisory_xact_lock(hashtextextended($6::text || '/' || g.key, 0)) END
      ON CONFLICT (%[8]s) DO NOTHING RETURNING m.%[2]s::text AS key)`, at.table, at.key, at.token, columns, at.keyType, values, joined, conflict)
		inserted = " UNION ALL SELECT g.i FROM g JOIN n ON n.key = g.key"
	}
	return admitStatements{
		free: fmt.Sprintf(`
SELECT set_config('fence.free', COALESCE((SELECT array_agg(x.i)::text
         FROM (SELECT g.i FROM %[1]s JOIN %[2]s AS m ON %[3]s
                WHERE %[4]s
                ORDER BY m.%[5]s FOR NO KEY UPDATE OF m SKIP LOCKED) AS x), '{}'), true)`, asking, at.table, joined, compare, at.key),
		raise: fmt.Sprintf(`
WITH g AS (SELECT * FROM %[1]s),
r AS (UPDATE %[2]s AS m SET %[3]s = g.token%[4]s FROM g
       WHERE %[5]s AND g.i = ANY ((SELECT current_setting('fence.free')::int[])::int[]) AND %[6]s AND g.token - m.%[3]s <= $5::bigint
      RETURNING g.i)%[7]s,
a AS (SELECT i FROM r%[8]s)
SELECT g.i, a.i IS NOT NULL, m.%[3]s, `+durable+` AND $6::text IS NOT NULL
  FROM g LEFT JOIN a ON a.i = g.i LEFT JOIN %[2]s AS m ON %[5]s`, asking, at.table, at.token, stamp, joined, compare, insert, inserted),
	}
}
