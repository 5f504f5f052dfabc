//go:build long

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-disk-full, as root: these mount a small file system.
func TestLockdOnAFullDisk(t *testing.T) {
	b, disk := deployment().OnSmallDisk(t)
	d := lockdOn(t, b, "5s")
	for _, call := range []string{"acquire", "revoke"} {
		deployment().Meet(t, b, d, failuretest.Row{Fault: failuretest.DiskFull(disk), Call: call, Want: lockNothing})
	}
}

func TestLockdWhoseServersLogFillsItsDisk(t *testing.T) {
	b, server, disk := deployment().WithLogOnSmallDisk(t)
	require.NoError(t, b.RestartUnderLoad(t.Context(), lockdOn(t, b, "2s"), "acquire", server, failuretest.ByFullLog(disk), lockNothing, lockUnknown))
}
