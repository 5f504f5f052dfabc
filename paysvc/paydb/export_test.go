package paydb

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Broken returns the store with one of its statements changed, for negative controls: old must stand in it exactly once.
func (s *Fenced) Broken(t *testing.T, statement, old, changed string) *Fenced {
	t.Helper()
	broken := *s
	text, ok := map[string]*string{
		"raise": &broken.sql.raise, "claim": &broken.sql.claim, "debit": &broken.sql.debit, "leg": &broken.sql.leg, "transition": &broken.sql.transition,
		"replay": &broken.sql.replay,
	}[statement]
	require.True(t, ok, statement)
	require.Equal(t, 1, strings.Count(*text, old), "%q in %s", old, statement)
	*text = strings.Replace(*text, old, changed, 1)
	return &broken
}

// Broken is the same for the rail-proxy's store.
func (r *FencedRail) Broken(t *testing.T, statement, old, changed string) *FencedRail {
	t.Helper()
	broken := *r
	text, ok := map[string]*string{"advance": &broken.sql.advance, "earlier": &broken.sql.earlier}[statement]
	require.True(t, ok, statement)
	require.Equal(t, 1, strings.Count(*text, old), "%q in %s", old, statement)
	*text = strings.Replace(*text, old, changed, 1)
	return &broken
}
