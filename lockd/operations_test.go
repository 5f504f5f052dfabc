package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// snippets are the blocks of docs/operations.md that are marked with the kind.
func snippets(t *testing.T, kind string) []string {
	t.Helper()
	data, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	var found []string
	for _, match := range regexp.MustCompile("(?s)<!-- run by a test: "+kind+" -->\n```[a-z]+\n(.*?)```").FindAllStringSubmatch(string(data), -1) {
		found = append(found, match[1])
	}
	require.NotEmpty(t, found)
	return found
}

// The documented steps after a restore, as they stand: a copy of the disk that nothing can tell from the server hands out no token twice.
func TestRestoreAsDocumentedHandsOutNoTokenTwice(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	lockdb := pgtest.DatabaseOn(t, server, migrations.LockDB())
	_, err := pgtest.Connect(t, lockdb).Exec(t.Context(), "SELECT adopt_token_source('test')")
	require.NoError(t, err)
	replica, err := server.BaseBackup(t.Context(), pgserver.Restore{Name: t.Name()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop(context.Background())) })

	draw := func(database string) (token int64) {
		require.NoError(t, pgtest.Connect(t, database).QueryRow(t.Context(), "SELECT max(nextval('fencing_token_seq')) FROM generate_series(1, 100)").Scan(&token))
		return token
	}
	highest := draw(lockdb)
	paydb := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	_, err = pgtest.Connect(t, paydb).Exec(t.Context(), "UPDATE account SET fence = $1", highest)
	require.NoError(t, err)

	require.NoError(t, replica.Restart(t.Context()))
	restored := strings.Replace(lockdb, server.Addr(), replica.Addr(), 1)
	bin := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "lockd"), []byte("#!/bin/sh\n"+runMain+"=1 exec '"+self+"' \"$@\"\n"), 0o700))
	for range 2 { // the second time there is nothing to do
		command := exec.CommandContext(t.Context(), "bash", "-c", snippets(t, "restore")[0])
		command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LOCKD_DATABASE_URL="+restored, "PAYDB_URL="+paydb)
		output, err := command.CombinedOutput()
		require.NoError(t, err, string(output))
	}
	require.Greater(t, draw(restored), highest)
	require.LessOrEqual(t, draw(lockdb), highest+100, "the other one knows nothing of it")
}

// What an operator is told to look at can be asked of each database.
func TestDocumentedQueriesRun(t *testing.T) {
	t.Parallel()
	for _, database := range []string{pgtest.Database(t, migrations.LockDB()), pgtest.Database(t, migrations.PayDB(), migrations.Fence())} {
		conn := pgtest.Connect(t, database)
		for _, sql := range snippets(t, "sql") {
			_, err := conn.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
	}
}
