//go:build long

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-disk-full, as root: these mount a small file system.
func TestSidecarOnAFullDisk(t *testing.T) {
	for _, order := range []string{"effects", "admissions"} {
		t.Run(order, func(t *testing.T) {
			b, disk := deployment().OnSmallDisk(t)
			deployment().Meet(t, b, sidecarOn(t, b, order, "5s"), failuretest.Row{Fault: failuretest.DiskFull(disk), Call: order, Want: fenceUnavailable})
		})
	}
}

func TestSidecarWhoseServersLogFillsItsDisk(t *testing.T) {
	b, server, disk := deployment().WithLogOnSmallDisk(t)
	d := sidecarOn(t, b, "effects", "2s")
	require.NoError(t, b.RestartUnderLoad(t.Context(), d, "effects", server, failuretest.ByFullLog(disk), fenceUnavailable))
}
