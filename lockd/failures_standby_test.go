//go:build long

package main

import (
	"testing"

	"fenceline/internal/postgres/failuretest"
)

// Run by make test-standby: a copy of the server takes its time.
func TestLockdWhoseDatabaseIsReplacedByAStandby(t *testing.T) {
	b, server := deployment().OwnServer(t)
	deployment().Meet(t, b, lockdOn(t, b, "2s"), failuretest.Row{Fault: failuretest.Standby(t, server), Call: "acquire", Want: lockNothing, During: "in recovery"})
}
