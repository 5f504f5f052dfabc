//go:build long

package main

import (
	"testing"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-standby: a copy of the server takes its time.
func TestResourceWhoseDatabaseIsReplacedByAStandby(t *testing.T) {
	b, server := deployment().OwnServer(t)
	deployment().Meet(t, b, resourceOn(t, b, "--fencing-enabled", "--store-timeout", "2s"), failuretest.Row{Fault: failuretest.Standby(t, server), Call: "claim", Want: payNothing, During: "in recovery"})
}
