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
func TestResourceOnAFullDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	disk := failuretest.SmallDisk(t, "48m")
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.SeedPayDB())
	failuretest.MoveTo(t, disk, server, owner)
	b := failuretest.New(t, owner, pgtest.Login(t, owner, "payapp_fenced"))
	d := resourceOn(t, b, "--fencing-enabled", "--store-timeout", "5s")
	for _, call := range []string{"claim", "post"} {
		row := failuretest.Row{Fault: failuretest.DiskFull(disk), Call: call, Want: payNothing}
		failuretest.Documented(t, "../docs/failures.md", "payment-resource", []failuretest.Row{row})
		require.NoError(t, b.Meet(t.Context(), d, row))
	}
}

func TestResourceWhoseServersLogFillsItsDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	disk := failuretest.SmallDisk(t, "128m")
	server := pgtest.Server(t, nil)
	failuretest.MoveLogTo(t, disk, server)
	owner := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.SeedPayDB())
	b := failuretest.New(t, owner, pgtest.Login(t, owner, "payapp_fenced"))
	d := resourceOn(t, b, "--fencing-enabled", "--store-timeout", "2s")
	require.NoError(t, b.RestartUnderLoad(t.Context(), d, "post", server, failuretest.ByFullLog(disk), payNothing, payUnknown))
}
