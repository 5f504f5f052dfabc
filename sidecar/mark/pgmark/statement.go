package pgmark

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/sidecar/config"
)

// statements are a guard's, built once from the configuration. Identifiers are quoted.
type statements struct {
	newer, newerOrSame string // admissions; parameters: key, token, max_jump
	read               string // parameter: key; no row or one
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
func build(m config.Mark) statements {
	table := pgx.Identifier(m.Table).Sanitize()
	key, token := pgx.Identifier{m.Key}.Sanitize(), pgx.Identifier{m.Token}.Sanitize()
	keyType := map[config.KeyType]string{config.KeyUUID: "uuid", config.KeyInt: "bigint", config.KeyText: "text"}[m.KeyType]
	var stamp, stampColumn, stampValue string
	if m.UpdatedAt != "" {
		stampColumn, stampValue = ", "+pgx.Identifier{m.UpdatedAt}.Sanitize(), ", now()"
		stamp = stampColumn + " = now()"
	}
	admit := func(compare string) string {
		if m.Missing == config.MissingInsert {
			// A key without a mark counts as having 0. The source row is left out when the token is implausible for a missing mark; when there is one, the
			// condition of DO UPDATE decides.
			return fmt.Sprintf(`
INSERT INTO %[1]s AS m (%[2]s, %[3]s%[7]s)
SELECT $1::text::%[4]s, $2::bigint%[8]s
 WHERE $2::bigint <= $3::bigint OR EXISTS (SELECT FROM %[1]s e WHERE e.%[2]s = $1::text::%[4]s)
ON CONFLICT (%[2]s) DO UPDATE
   SET %[3]s = EXCLUDED.%[3]s%[5]s
 WHERE m.%[3]s %[6]s EXCLUDED.%[3]s AND EXCLUDED.%[3]s - m.%[3]s <= $3::bigint
RETURNING %[3]s, `+durable, table, key, token, keyType, stamp, compare, stampColumn, stampValue)
		}
		return fmt.Sprintf(`
UPDATE %[1]s
   SET %[3]s = $2::bigint%[5]s
 WHERE %[2]s = $1::text::%[4]s AND %[3]s %[6]s $2::bigint AND $2::bigint - %[3]s <= $3::bigint
RETURNING %[3]s, `+durable, table, key, token, keyType, stamp, compare)
	}
	return statements{
		newer:       admit("<"),
		newerOrSame: admit("<="),
		read:        fmt.Sprintf("SELECT %[3]s FROM %[1]s WHERE %[2]s = $1::text::%[4]s", table, key, token, keyType),
	}
}
