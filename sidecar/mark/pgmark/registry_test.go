package pgmark_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
	"fenceline/internal/postgres/statementtest"
	"fenceline/sidecar/mark/pgmark"
)

// The checksum that the program carries covers every statement: a new one must be registered.
func TestEveryStatementIsRegistered(t *testing.T) {
	t.Parallel()
	statementtest.Registered(t, os.DirFS("."), pgmark.Statements())
	require.Equal(t, postgres.Checksum(pgmark.Statements()), postgres.Checksum(pgmark.Statements()), "the order doesn't matter")
	for _, s := range pgmark.Statements() {
		require.NotEmpty(t, s.SQL, s.Name)
	}
}
