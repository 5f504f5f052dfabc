package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	documentFile = "../../docs/configuration.md"
	updateDocs   = "FENCELINE_UPDATE_DOCS" // make docs sets it
)

const documentHead = `# The sidecar's configuration

Made by ` + "`make docs`" + ` from [` + "`configs/sidecar.reference.yaml`" + `](../configs/sidecar.reference.yaml) and the schema in ` + "`sidecar/config`" + `; a test keeps it up to date. The
reference file shows the same keys in place, with what they mean together.

The file is strict: an unknown key, a wrong type or a value out of range stops the start, with every fault at once, each with file, line, column and key. Times are
written 500ms, 10s, 1m; sizes 512, 16KiB, 1MiB, 1GiB. ` + "`${NAME}`" + ` takes an environment variable, ` + "`${NAME:-text}`" + ` with a default. ` + "`[]`" + ` stands for the elements of
a list, ` + "`*`" + ` for a name that you choose. The value is the default where there is one, else an example.

A running sidecar reads the file again on SIGHUP and when it, or a file with a secret, changes. What can't be taken up then, and why, is said in the log; the
configuration before stays in use.
`

// row is one key of the document.
type row struct{ key, value, text string }

var (
	commentLine = regexp.MustCompile(`^\s*(?:- )?# ?(.*)$`)
	inline      = regexp.MustCompile(`\s# (.*)$`)
	// Keys that stand in comments, because they would exclude others.
	commented = regexp.MustCompile(`(?m)^  (  )?# (url_file:|file:|  path:|  timeout:|  # )`)
)

// document makes the page from the reference's text.
func document(t *testing.T, text string) string {
	t.Helper()
	text = commented.ReplaceAllString(text, "  $1$2")
	faults := &Faults{}
	root := parse([]byte(text), faults)
	require.NoError(t, faults.err())
	lines := strings.Split(text, "\n")
	described := map[string]bool{}
	out := documentHead
	for _, f := range root.fields {
		var rows []row
		describe(newSchema(), &node{kind: mappingNode, fields: []field{f}}, "", lines, described, &rows)
		out += "\n## " + f.name + "\n\n| key | value | |\n|---|---|---|\n"
		for _, r := range rows {
			out += fmt.Sprintf("| `%s` | %s | %s |\n", r.key, r.value, r.text)
		}
	}
	for line := range strings.FieldsSeq(schema) {
		require.True(t, described[strings.TrimSuffix(line, "!")], "the document says nothing of %s", line)
	}
	return out
}

// describe adds a row for each key that has none yet.
func describe(s *keySchema, n *node, path string, lines []string, described map[string]bool, rows *[]row) {
	for _, item := range n.items {
		if child := s.children["[]"]; child != nil {
			describe(child, item, path+"[]", lines, described, rows)
		}
	}
	for _, f := range n.fields {
		name := f.name
		if s.children[name] == nil {
			name = "*"
		}
		child := s.children[name]
		if child == nil {
			continue
		}
		key := join(path, name)
		if !described[key] {
			described[key] = true
			r := row{key: key, text: comment(lines, f.at.line)}
			if f.value.kind == scalarNode && !strings.Contains(f.value.text, "\n") {
				r.value = "`" + strings.ReplaceAll(f.value.text, "|", `\|`) + "`"
			}
			if child.unsupported {
				r.text = strings.TrimSpace("Not in this version. " + strings.TrimSpace(strings.ReplaceAll(r.text, "(refused in this version)", "")))
			}
			if r.text != "" || r.value != "" || len(child.children) == 0 {
				*rows = append(*rows, r)
			}
		}
		describe(child, f.value, key, lines, described, rows)
	}
}

// comment is what stands above a line, or at its end.
func comment(lines []string, at int) string {
	var above []string
	for i := at - 2; i >= 0; i-- {
		m := commentLine.FindStringSubmatch(lines[i])
		if m == nil {
			break
		}
		above = append([]string{m[1]}, above...)
	}
	if len(above) == 0 {
		if m := inline.FindStringSubmatch(lines[at-1]); m != nil {
			above = []string{m[1]}
		}
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(above, " ")), "|", `\|`)
}

func TestConfigurationDocumentIsUpToDate(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	want := document(t, string(reference))
	if os.Getenv(updateDocs) != "" {
		require.NoError(t, os.WriteFile(documentFile, []byte(want), 0o600))
	}
	got, err := os.ReadFile(documentFile)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run: make docs")
}
