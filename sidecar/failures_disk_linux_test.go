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
func TestSidecarOnAFullDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	for _, order := range []string{"effects", "admissions"} {
		t.Run(order, func(t *testing.T) {
			disk := failuretest.SmallDisk(t, "48m")
			server := pgtest.Server(t, nil)
			owner := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence())
			failuretest.MoveTo(t, disk, server, owner)
			b := failuretest.New(t, owner, pgtest.Login(t, owner, "fence_account"))
			d := sidecarOn(t, b, order, "5s")
			row := failuretest.Row{Fault: failuretest.DiskFull(disk), Call: order, Want: fenceUnavailable}
			failuretest.Documented(t, "../docs/failures.md", "sidecar", []failuretest.Row{row})
			require.NoError(t, b.Meet(t.Context(), d, row))
		})
	}
}

func TestSidecarWhoseServersLogFillsItsDisk(t *testing.T) {
	if os.Getenv("FENCELINE_DISK_FULL") == "" {
		return
	}
	disk := failuretest.SmallDisk(t, "128m")
	server := pgtest.Server(t, nil)
	failuretest.MoveLogTo(t, disk, server)
	owner := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence())
	b := failuretest.New(t, owner, pgtest.Login(t, owner, "fence_account"))
	d := sidecarOn(t, b, "effects", "2s")
	require.NoError(t, b.RestartUnderLoad(t.Context(), d, "effects", server, failuretest.ByFullLog(disk), fenceUnavailable))
}
