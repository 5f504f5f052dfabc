//go:build long

package main

import (
	"testing"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-standby: a copy of the server takes its time.
func TestSidecarWhoseDatabaseIsReplacedByAStandby(t *testing.T) {
	b, server := deployment().OwnServer(t)
	deployment().Meet(t, b, sidecarOn(t, b, "effects", "2s"), failuretest.Row{Fault: failuretest.Standby(t, server), Call: "effects", Want: fenceUnavailable, During: "in recovery"})
}
