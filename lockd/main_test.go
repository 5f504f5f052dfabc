package main

import (
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// The environment file names every setting but the secret, with its default: loading it changes nothing.
func TestEnvironmentFileHoldsEverySettingWithItsDefault(t *testing.T) {
	data, err := os.ReadFile("../configs/lockd.env")
	require.NoError(t, err)
	given := map[string]string{}
	for line := range strings.SplitSeq(string(data), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		given[name] = value
	}
	parse := func() serveCmd {
		var c cli
		parser, err := kong.New(&c)
		require.NoError(t, err)
		_, err = parser.Parse([]string{"serve", "--database-url", "postgres://h/lockdb"})
		require.NoError(t, err)
		return c.Serve
	}
	before := parse()
	for name, value := range given {
		t.Setenv(name, value)
	}
	require.Equal(t, before, parse())

	var c cli
	parser, err := kong.New(&c)
	require.NoError(t, err)
	known := map[string]bool{}
	for _, node := range parser.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, flag := range node.Flags {
			for _, env := range flag.Envs {
				known[env] = true
			}
		}
	}
	delete(known, "LOCKD_DATABASE_URL")
	delete(known, "LOCKDB_URL")
	require.Len(t, given, len(known))
	for name := range given {
		require.True(t, known[name], "lockd doesn't know %s", name)
	}
}
