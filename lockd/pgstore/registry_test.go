package pgstore_test

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/internal/postgres/statementtest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

const (
	sessionA = "00000000-0000-4000-8000-00000000000a"
	sessionB = "00000000-0000-4000-8000-00000000000b"
	nobodys  = "00000000-0000-4000-8000-00000000000c"

	sessions = `INSERT INTO lock_session (session_id, owner_id, expires_at) VALUES ('` + sessionA + `', 'w1', now() + '1 h'), ('` + sessionB + `', 'w2', now() + '1 h');`
	oneGrant = sessions + `INSERT INTO lock_entry VALUES ('k1', 'w1', '` + sessionA + `', 1, now(), now() + '1 h');`
	twoGrant = oneGrant + `INSERT INTO lock_entry VALUES ('k2', 'w1', '` + sessionA + `', 2, now(), now() + '1 h');`
	expire1  = `UPDATE lock_entry SET acquired_at = now() - interval '2 h', expires_at = now() - interval '1 h' WHERE lock_key = 'k1';`
	expire   = `UPDATE lock_entry SET acquired_at = now() - interval '2 h', expires_at = now() - interval '1 h';`
	die      = `UPDATE lock_session SET created_at = now() - interval '2 h', expires_at = now() - interval '1 h'`
	dieA     = die + ` WHERE session_id = '` + sessionA + `';`
	revoked  = `INSERT INTO lock_revocation (lock_key, prev_owner, prev_token, operator, reason) VALUES ('k', 'w', 1, 'o', 'r');`
)

func cases() map[string][]statementtest.Case {
	type list = []statementtest.Case
	all := map[string]list{
		"checkRole": {{Rows: 1}},
		"heartbeat": {
			{Args: []any{nobodys, 15.0}, Rows: 0},
			{Setup: sessions + dieA, Args: []any{sessionA, 15.0}, Rows: 0},
			{Setup: sessions, Args: []any{sessionA, 15.0}, Rows: 1},
		},
		"readEntry": {
			{Args: []any{"k1"}, Rows: 0},
			{Setup: oneGrant + expire, Args: []any{"k1"}, Rows: 0},
			{Setup: oneGrant + dieA, Args: []any{"k1"}, Rows: 0},
			{Setup: twoGrant, Args: []any{"k1"}, Rows: 1},
		},
		"openSession":     {{Args: []any{nobodys, "w", 15.0, 15000}, Rows: 1}},
		"readSession":     {{Args: []any{nobodys}, Rows: 0}, {Setup: sessions, Args: []any{sessionA}, Rows: 1}, {Setup: sessions + dieA, Args: []any{sessionA}, Rows: 1}},
		"countSession":    {{Args: []any{nobodys}, Rows: 1}, {Setup: twoGrant, Args: []any{sessionA}, Rows: 1}},
		"holdSession":     {{Args: []any{nobodys}, Rows: 0}, {Setup: sessions, Args: []any{sessionA}, Rows: 1}},
		"grantsOfSession": {{Args: []any{nobodys}, Rows: 0}, {Setup: oneGrant, Args: []any{sessionA}, Rows: 1}, {Setup: twoGrant, Args: []any{sessionA}, Rows: 2}},
		"closeSession":    {{Args: []any{nobodys}, Rows: 0}, {Setup: twoGrant, Args: []any{sessionA}, Rows: 1}},
		"orderDraws":      {{Args: []any{"k"}, Rows: 1}},
		"demandSource":    {{Rows: 1}},
		"holdEntry":       {{Args: []any{"k1"}, Rows: 0}, {Setup: oneGrant + dieA, Args: []any{"k1"}, Rows: 1}, {Setup: twoGrant, Args: []any{"k1"}, Rows: 1}},
		"lockEntry":       {{Args: []any{"k1"}, Rows: 0}, {Setup: oneGrant + dieA, Args: []any{"k1"}, Rows: 0}, {Setup: twoGrant, Args: []any{"k1"}, Rows: 1}},
		"release": {
			{Setup: twoGrant, Args: []any{"k1", 2}, Rows: 0}, // another grant's token
			{Setup: twoGrant, Args: []any{"k1", 1}, Rows: 1},
		},
		"recordRevocation": {{Args: []any{"k", "w", 1, "o", "r"}, Rows: 1}},
		"drawToken":        {{Rows: 1}},
		"reapEntries":      {{Setup: twoGrant, Args: []any{10}, Rows: 0}, {Setup: twoGrant + expire1, Args: []any{10}, Rows: 1}, {Setup: twoGrant + expire, Args: []any{10}, Rows: 2}, {Setup: twoGrant + expire, Args: []any{1}, Rows: 1}},
		"listDoomed": {
			{Setup: twoGrant, Args: []any{10}, Rows: 0},
			{Setup: sessions + dieA, Args: []any{10}, Rows: 1}, // a session without grants has a row of its own
			{Setup: twoGrant + dieA, Args: []any{10}, Rows: 2},
		},
		"reapSessions": {
			{Setup: sessions, Args: []any{[]string{}}, Rows: 0}, {Setup: sessions, Args: []any{[]string{sessionA, nobodys}}, Rows: 1}, {Setup: sessions, Args: []any{[]string{sessionA, sessionB}}, Rows: 2},
		},
		"countHeld":       {{Rows: 1}, {Setup: twoGrant, Rows: 1}},
		"sendNotice":      {{Args: []any{"c", []string{}}, Rows: 0}, {Args: []any{"c", []string{"a"}}, Rows: 1}, {Args: []any{"c", []string{"a", "b"}}, Rows: 2}},
		"listGrants":      {{Args: []any{"", "", 10}, Rows: 0}, {Setup: oneGrant, Args: []any{"", "", 10}, Rows: 1}, {Setup: twoGrant, Args: []any{"k", "", 10}, Rows: 2}, {Setup: twoGrant, Args: []any{"", "k1", 10}, Rows: 1}, {Setup: twoGrant, Args: []any{"", "", 1}, Rows: 1}},
		"listRevocations": {{Args: []any{0, 10}, Rows: 0}, {Setup: revoked, Args: []any{0, 10}, Rows: 1}, {Setup: revoked + revoked, Args: []any{0, 10}, Rows: 2}, {Setup: revoked + revoked, Args: []any{0, 1}, Rows: 1}},
		"adoptSource":     {{Args: []any{"test"}, Rows: 0}, {Setup: "UPDATE token_source SET timeline = timeline + 1", Args: []any{"test"}, Rows: 1}},
		"highestToken":    {{Rows: 1}},
		"fastForward":     {{Args: []any{int64(2_000_000_000_000), "o", "r"}, Rows: 1}},
		"changeLocks": {
			{Args: []any{[]string{}, []*int64{}, []string{}, []*string{}, []float64{}, "1s", "1s"}, Rows: 0},
			{Args: []any{[]string{"k1"}, []*int64{nil}, []string{"w1"}, []*string{new(nobodys)}, []float64{9}, "1s", "1s"}, Rows: 1}, // a refusal is a row too
			{Setup: oneGrant, Args: []any{[]string{"k1", "k2"}, []*int64{nil, nil}, []string{"w2", "w2"}, []*string{new(sessionB), new(sessionB)}, []float64{9, 9}, "1s", "1s"}, Rows: 2},
			{Setup: twoGrant, Args: []any{[]string{"k1", "k2", "k3"}, []*int64{new(int64(1)), new(int64(9)), nil}, []string{"", "", "w2"}, []*string{nil, nil, new(sessionB)}, []float64{0, 0, 9}, "1s", "1s"}, Rows: 3},
		},
		"renewLocks": {
			{Args: []any{[]string{}, []int64{}, []float64{}}, Rows: 0},
			{Args: []any{[]string{"k1"}, []int64{1}, []float64{9}}, Rows: 1},
			{Setup: twoGrant, Args: []any{[]string{"k1", "k2"}, []int64{1, 9}, []float64{9, 9}}, Rows: 2},
		},
	}
	for _, list := range all {
		for i := range list {
			list[i].Role = "lockapp"
		}
	}
	return all
}

// Every statement gives the rows that it is registered with, as the role lockapp.
func TestStatementsGiveTheRowsThatTheyAreRegisteredWith(t *testing.T) {
	t.Parallel()
	statementtest.Registered(t, os.DirFS("."), pgstore.Statements())
	conn := pgtest.Connect(t, pgtest.Database(t, migrations.LockDB()))
	_, err := conn.Exec(t.Context(), "SELECT adopt_token_source('test')") // a test's database is a copy, and a copy hands out no token before that
	require.NoError(t, err)
	statementtest.Run(t, conn, pgstore.Statements(), cases())
}

// A new statement that nobody registered is found, and so is one without its cases.
func TestStatementWithoutATestIsFound(t *testing.T) {
	t.Parallel()
	sources := fstest.MapFS{
		"a.go":      {Data: []byte("package a\n\nconst columns = `a, b`\n\nconst readIt = `\nSELECT ` + columns + ` FROM t`\n\nconst holdIt = readIt + ` FOR UPDATE`\n\nconst limit = 7\n")},
		"a_test.go": {Data: []byte("package a\n\nconst inATest = `DELETE FROM t`\n")},
	}
	require.Equal(t, []string{"holdIt", "readIt"}, statementtest.Declared(t, sources))
	known := []postgres.Statement{{Name: "readIt", Rows: postgres.Many}, {Name: "readIt", Rows: postgres.Many}}
	require.Len(t, statementtest.Missing(t, sources, known), 3)
	require.Equal(t, []string{"readIt (0..n) has no case of two rows"},
		statementtest.Uncovered(known[:1], map[string][]statementtest.Case{"readIt": {{Rows: 0}, {Rows: 1}}}))
	require.NotEqual(t, postgres.Checksum(known[:1]), postgres.Checksum([]postgres.Statement{{Name: "readIt", SQL: "SELECT 1"}}))
}
