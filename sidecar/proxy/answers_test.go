package proxy

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever meets a code finds it explained, with its status; and no code is explained that isn't given.
func TestEveryAnswerIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### ([A-Z_]+ \(\d+\))$`).FindAllStringSubmatch(string(page), -1) {
		explained[m[1]] = true
	}
	given := map[string]bool{}
	for code, row := range answers {
		given[fmt.Sprintf("%s (%d)", code, row.status)] = true
	}
	require.Equal(t, given, explained)
}
