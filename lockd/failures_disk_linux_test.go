package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres/failuretest"
	"fenceline/migrations"
)

// These are run by make test-disk-full, which sets the variable: they mount a small file system, and only root can.
func TestLockdOnAFullDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	disk := failuretest.SmallDisk(t, "48m")
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	failuretest.MoveTo(t, disk, server, owner)
	b := failuretest.New(t, owner, pgtest.Login(t, owner, "lockapp"))
	d := lockdOn(t, b, "5s")
	for _, call := range []string{"acquire", "revoke"} {
		row := failuretest.Row{Fault: failuretest.DiskFull(disk), Call: call, Want: lockNothing}
		failuretest.Documented(t, "../docs/failures.md", "lockd", []failuretest.Row{row})
		require.NoError(t, b.Meet(t.Context(), d, row))
	}
}

func TestLockdWhoseServersLogFillsItsDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	disk := failuretest.SmallDisk(t, "128m")
	server := pgtest.Server(t, nil)
	failuretest.MoveLogTo(t, disk, server)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	b := failuretest.New(t, owner, pgtest.Login(t, owner, "lockapp"))
	require.NoError(t, b.RestartUnderLoad(t.Context(), lockdOn(t, b, "2s"), "acquire", server, failuretest.ByFullLog(disk), lockNothing, lockUnknown))
}
