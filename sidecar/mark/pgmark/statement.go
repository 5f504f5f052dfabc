package pgmark

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"fenceline/sidecar/config"
)

// statements are a guard's, built once from the configuration. Identifiers are quoted.
type statements struct {
	newer, newerOrSame string // admissions; parameters: key, token, max_jump
	raise              string // as newer, for operators: it also makes a row where the table is the sidecar's own
	read               string // parameter: key; no row or one
}

// own is the sidecar's own table of marks (migrations/fence/V1).
var own = location{table: `"fence"."mark"`, key: "key", token: "token", keyType: "text", stamp: "updated_at"} //nolint:gochecknoglobals // a constant

// location is where a guard's marks are, with quoted identifiers.
type location struct {
	table, key, token, keyType string
	stamp                      string // "" for none
	guard                      string // the guard's name as a literal, where the table holds several guards' marks; else ""
}

func locate(g config.Guard) location {
	m := g.Mark
	if m.Own() {
		at := own
		at.guard = "'" + strings.ReplaceAll(g.Name, "'", "''") + "'" // the configuration allows letters, digits, _ and - only
		return at
	}
	at := location{
		table: pgx.Identifier(m.Table).Sanitize(), key: pgx.Identifier{m.Key}.Sanitize(), token: pgx.Identifier{m.Token}.Sanitize(),
		keyType: map[config.KeyType]string{config.KeyUUID: "uuid", config.KeyInt: "bigint", config.KeyText: "text"}[m.KeyType],
	}
	if m.UpdatedAt != "" {
		at.stamp = pgx.Identifier{m.UpdatedAt}.Sanitize()
	}
	return at
}

// is is the condition that finds the key's row in the table known as alias.
func (l location) is(alias string) string {
	condition := alias + "." + l.key + " = $1::text::" + l.keyType
	if l.guard != "" {
		condition = alias + ".guard = " + l.guard + " AND " + condition
	}
	return condition
}

// durable says, in the very row that admits, whether the server keeps what it commits. A check at some earlier time isn't enough: the pool replaces
// connections silently, so the server that answers now may be another one, or the same with other settings. synchronous_commit isn't asked
// for, since the transaction sets it.
const durable = `current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'`

// build makes a guard's statements.
//
// Each admission is one conditional statement, never a read followed by a write: between those two another sidecar could admit a higher token. PostgreSQL
// evaluates the condition again on the newest version of a row that it had to wait for (READ COMMITTED), so of two concurrent admissions
// the lower one sees the higher mark. No row returned means "not admitted", whatever the reason.
//
// The token's distance from the mark is compared as token - mark, so nothing is added to a number that may be the largest. Both are at least 0; should
// somebody have written a mark below 0, the subtraction can overflow, which is an error and hence no admission.
func build(g config.Guard) statements {
	at := locate(g)
	insert := g.Mark.Missing == config.MissingInsert
	return statements{
		newer:       at.admit("<", insert),
		newerOrSame: at.admit("<=", insert),
		raise:       at.admit("<", insert || g.Mark.Own()),
		read:        fmt.Sprintf("SELECT m.%s FROM %s AS m WHERE %s", at.token, at.table, at.is("m")),
	}
}

func (l location) admit(compare string, insert bool) string {
	var stamp, columns, values, conflict string
	if l.stamp != "" {
		stamp, columns, values = ", "+l.stamp+" = now()", ", "+l.stamp, ", now()"
	}
	conflict = l.key
	if l.guard != "" {
		conflict, columns, values = "guard, "+l.key, columns+", guard", values+", "+l.guard
	}
	if !insert {
		return fmt.Sprintf(`
UPDATE %[1]s AS m
   SET %[2]s = $2::bigint%[3]s
 WHERE %[4]s AND m.%[2]s %[5]s $2::bigint AND $2::bigint - m.%[2]s <= $3::bigint
RETURNING m.%[2]s, `+durable, l.table, l.token, stamp, l.is("m"), compare)
	}
	// A key without a mark counts as having 0. The source row is left out when the token is implausible for a missing mark; when there is one, the
	// condition of DO UPDATE decides.
	return fmt.Sprintf(`
INSERT INTO %[1]s AS m (%[6]s, %[2]s%[7]s)
SELECT $1::text::%[9]s, $2::bigint%[8]s
 WHERE $2::bigint <= $3::bigint OR EXISTS (SELECT FROM %[1]s e WHERE %[4]s)
ON CONFLICT (%[10]s) DO UPDATE
   SET %[2]s = EXCLUDED.%[2]s%[3]s
 WHERE m.%[2]s %[5]s EXCLUDED.%[2]s AND EXCLUDED.%[2]s - m.%[2]s <= $3::bigint
RETURNING m.%[2]s, `+durable, l.table, l.token, stamp, l.is("e"), compare, l.key, columns, values, l.keyType, conflict)
}
