package lockapi_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/httpserver"
	"fenceline/lockd/lockapi"
)

// codes are the values of the constants Code… of this package.
func codes(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "lockapi.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Code") {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, value)
		}
		return true
	})
	return all
}

func TestCatalogueHasEveryCodeOnce(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, info := range lockapi.Catalogue() {
		listed = append(listed, info.Code)
		require.True(t, info.Status >= 400 && info.Status < 600, info.Code)
		require.NotEmpty(t, info.Meaning)
		found, ok := lockapi.Lookup(info.Code)
		require.True(t, ok)
		require.Equal(t, info, found)
	}
	require.ElementsMatch(t, codes(t), listed)
	require.True(t, slices.IsSortedFunc(lockapi.Catalogue(), func(a, b lockapi.CodeInfo) int { return a.Status - b.Status }))
	for _, code := range []string{
		httpserver.CodeMalformed, httpserver.CodeNotFound, httpserver.CodeMethodNotAllowed, httpserver.CodeRequestTimeout,
		httpserver.CodeBodyTooLarge, httpserver.CodeHeadTooLarge, httpserver.CodeOverloaded,
	} {
		require.Contains(t, listed, code, "what the server answers before any call is in the catalogue too")
	}
	_, ok := lockapi.Lookup("NOBODY")
	require.False(t, ok)
}

// The table in the docs is the catalogue, row by row.
func TestCatalogueStandsInTheDocs(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| code | status | retrySafe | meaning |\n|---|---|---|---|\n")
	for _, info := range lockapi.Catalogue() {
		fmt.Fprintf(&table, "| `%s` | %d | %t | %s |\n", info.Code, info.Status, info.RetrySafe, info.Meaning)
	}
	page, err := os.ReadFile("../../docs/lock-api.md")
	require.NoError(t, err)
	require.Contains(t, string(page), table.String(), "docs/lock-api.md wants this table:\n%s", table.String())
}
