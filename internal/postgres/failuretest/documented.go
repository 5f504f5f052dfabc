package failuretest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cells are those of a row as it stands in the document: failure, calls, answer, effect, readiness.
func (r Row) cells() []string {
	effect := "nothing"
	switch {
	case r.Want.ok():
		effect = "all, once"
	case r.Want.Outcome == outcomeUnknown:
		effect = "all or nothing"
	}
	ready := "yes"
	if r.During != "" {
		ready = "no: " + r.During
	}
	return []string{"`" + r.Fault.Name + "`", r.Call, r.Want.String(), effect, ready}
}

// Documented wants each row of a test's table in a section of the document, with the test's name: what is said there is what is shown here.
func Documented(t testing.TB, path, section string, table []Row) {
	t.Helper()
	data, err := os.ReadFile(path) //nolint:gosec // the document
	require.NoError(t, err)
	_, text, found := strings.Cut(string(data), "\n## "+section+"\n")
	require.True(t, found, "%s has no section %s", path, section)
	text, _, _ = strings.Cut(text, "\n## ")
	name, _, _ := strings.Cut(t.Name(), "/")
	for _, row := range table {
		want := row.cells()
		there := slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
			return len(cells) == len(want)+1 && cells[0] == want[0] && slices.Contains(strings.Split(cells[1], ", "), want[1]) &&
				slices.Equal(cells[2:5], want[2:5]) && strings.Contains(cells[5], "`"+name+"`")
		})
		require.True(t, there, "%s, section %s, lacks the row | %s | `%s` |", path, section, strings.Join(want, " | "), name)
	}
}
