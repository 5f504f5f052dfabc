package fenceline_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/sidecar/config"
)

// pages are the texts that people follow.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	texts := map[string]string{}
	for _, file := range append(files, "README.md", "CONTRIBUTING.md", "SECURITY.md") {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		texts[file] = string(data)
	}
	return texts
}

var snippet = regexp.MustCompile("(?s)<!-- loaded by a test: sidecar -->\\s*```yaml\n(.*?)```")

// A configuration that the docs show can be loaded as it stands.
func TestConfigurationsInTheDocsLoad(t *testing.T) {
	t.Parallel()
	found := 0
	for file, text := range pages(t) {
		require.Equal(t, strings.Count(text, "```yaml"), len(snippet.FindAllString(text, -1)), "%s shows YAML that no test loads", file)
		for _, match := range snippet.FindAllStringSubmatch(text, -1) {
			found++
			// A snippet within a list item is indented as a whole.
			indent := match[1][:len(match[1])-len(strings.TrimLeft(match[1], " "))]
			data := strings.ReplaceAll("\n"+match[1], "\n"+indent, "\n")
			_, err := config.Load([]byte(data), file, func(string) (string, bool) { return "postgres://127.0.0.1/paydb", true })
			require.NoError(t, err)
		}
	}
	require.Positive(t, found)
}

var (
	makeCommand = regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z-]+):`)
	localLink   = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// Every make target and every file that the docs name is there.
func TestDocsNameOnlyWhatExists(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	targets := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	for file, text := range pages(t) {
		for _, code := range regexp.MustCompile("(?s)`[^`]+`|```.*?```").FindAllString(text, -1) {
			for _, match := range makeCommand.FindAllStringSubmatch(code, -1) {
				require.True(t, targets[match[1]], "%s: there is no target %s", file, match[1])
			}
		}
		for _, match := range localLink.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(file), match[1]))
			require.NoError(t, err, "%s links to %s", file, match[1])
		}
	}
}

var testName = regexp.MustCompile("`((?:Test[A-Z]|[a-z]+[A-Z])[A-Za-z0-9]*)`")

// sources are all Go files but this one, as one text.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && path != "docs_test.go" {
			text, readErr := os.ReadFile(path)
			all.Write(text)
			return readErr
		}
		return err
	}))
	return all.String()
}

// Every test that the tables of guarantees and of failures point to is there by that name, and every row of a table that has the column names one.
func TestGuaranteesPointToTestsThatExist(t *testing.T) {
	t.Parallel()
	code := sources(t)
	for file, most := range map[string]int{"docs/guarantees.md": 60, "docs/failures.md": 40, "docs/compatibility.md": 4} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		rows, shown := 0, false
		for line := range strings.SplitSeq(string(data), "\n") {
			cells := strings.Split(strings.TrimSuffix(line, " |"), " | ")
			switch {
			case !strings.HasPrefix(line, "| "):
				shown = shown && strings.HasPrefix(line, "|---")
			case cells[len(cells)-1] == "shown by":
				shown = true
			case shown:
				rows++
				require.Regexp(t, testName, cells[len(cells)-1], "every row names its test: %s", line)
			}
		}
		require.Greater(t, rows, most, "%s: the rows are found", file)
		for _, name := range testName.FindAllStringSubmatch(string(data), -1) {
			require.True(t, strings.Contains(code, "func "+name[1]+"(") || strings.Contains(code, `"`+name[1]+`"`), "%s: no test %s", file, name[1])
		}
	}
}

var pinned = regexp.MustCompile("`([A-Za-z0-9.-]+)`")

// Every limit of the sidecar's HTTP names tests, or raw cases, that are there.
func TestLimitsArePinnedByTestsThatExist(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("docs/limits.md")
	require.NoError(t, err)
	code, rows := sources(t), 0
	for line := range strings.SplitSeq(string(data), "\n") {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| limit") || strings.Contains(cells[len(cells)-1], "nothing is promised") {
			continue
		}
		rows++
		names := pinned.FindAllStringSubmatch(cells[len(cells)-1], -1)
		require.NotEmpty(t, names, line)
		for _, name := range names {
			_, err := os.Stat("sidecar/proxy/testdata/raw/" + name[1] + ".txt")
			require.True(t, err == nil || strings.Contains(code, "func "+name[1]+"("), "nothing is called %s", name[1])
		}
	}
	require.Greater(t, rows, 15)
}
