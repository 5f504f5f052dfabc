//go:build long

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-disk-full, as root: these mount a small file system.
func TestResourceOnAFullDisk(t *testing.T) {
	b, disk := deployment().OnSmallDisk(t)
	d := resourceOn(t, b, "--fencing-enabled", "--store-timeout", "5s")
	for _, call := range []string{"claim", "post"} {
		deployment().Meet(t, b, d, failuretest.Row{Fault: failuretest.DiskFull(disk), Call: call, Want: payNothing})
	}
}

func TestResourceWhoseServersLogFillsItsDisk(t *testing.T) {
	b, server, disk := deployment().WithLogOnSmallDisk(t)
	d := resourceOn(t, b, "--fencing-enabled", "--store-timeout", "2s")
	require.NoError(t, b.RestartUnderLoad(t.Context(), d, "post", server, failuretest.ByFullLog(disk), payNothing, payUnknown))
}
