// Package statementtest proves what a store says of its statements: that each of them is registered, and that it gives as many rows
// as it is registered with, under the role that runs it.
package statementtest

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
)

// Case runs a statement once and says how many rows must come.
type Case struct {
	Setup string // what the owner does before, in the same transaction; nothing of it stays
	Role  string // who runs the statement; the owner when empty
	Args  []any
	Rows  int
}

var begins = regexp.MustCompile(`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ANALYZE|LISTEN|TRUNCATE|LOCK|CALL)\s`)

// Declared returns the names of the package's constants that are statements, from the sources in fsys. Tests' files don't count.
func Declared(t testing.TB, fsys fs.FS) []string {
	t.Helper()
	values := map[string]ast.Expr{}
	files, err := fs.Glob(fsys, "*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(fsys, file)
		require.NoError(t, err)
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
		require.NoError(t, err)
		collect(parsed, values)
	}
	var names []string
	for name := range values {
		if begins.MatchString(beginning(values, values[name])) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func collect(file *ast.File, values map[string]ast.Expr) {
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST {
			continue
		}
		for _, spec := range general.Specs {
			value, ok := spec.(*ast.ValueSpec)
			for i := 0; ok && i < len(value.Values); i++ {
				values[value.Names[i].Name] = value.Values[i]
			}
		}
	}
}

// beginning is the text that a constant begins with: of a sum its first part, of another constant that one's.
func beginning(values map[string]ast.Expr, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strings.Trim(e.Value, "`\"")
	case *ast.BinaryExpr:
		return beginning(values, e.X)
	case *ast.Ident:
		if other, ok := values[e.Name]; ok && other != ast.Expr(e) {
			return beginning(values, other)
		}
	}
	return ""
}

// Registered demands that every constant that is a statement is in the registry, once. Missing is what it found wrong, for negative controls.
func Registered(t testing.TB, fsys fs.FS, statements []postgres.Statement) {
	t.Helper()
	require.Empty(t, Missing(t, fsys, statements))
}

// Missing names the constants that aren't in the registry, and the entries that are there twice.
func Missing(t testing.TB, fsys fs.FS, statements []postgres.Statement) []string {
	t.Helper()
	count := map[string]int{}
	for _, s := range statements {
		count[s.Name]++
	}
	var wrong []string
	for _, name := range Declared(t, fsys) {
		if count[name] == 0 {
			wrong = append(wrong, name+" isn't registered: add it to the package's Statements and to the cases of its cardinality")
		}
	}
	for _, s := range statements {
		if count[s.Name] > 1 {
			wrong = append(wrong, s.Name+" is registered twice")
		}
	}
	return wrong
}

// Uncovered names what the cases leave open: a statement of 0..1 wants both, one of 0..n none, one and two.
func Uncovered(statements []postgres.Statement, cases map[string][]Case) []string {
	wanted := map[postgres.Cardinality][]int{postgres.One: {1}, postgres.ZeroOrOne: {0, 1}, postgres.Many: {0, 1, 2}, postgres.Effect: {0}}
	var open []string
	for _, s := range statements {
		for _, rows := range wanted[s.Rows] {
			if !slices.ContainsFunc(cases[s.Name], func(c Case) bool { return c.Rows == rows }) {
				open = append(open, s.Name+" ("+string(s.Rows)+") has no case of "+[]string{"no row", "one row", "two rows"}[rows])
			}
		}
	}
	return open
}

// Run runs every case on the connection, which is the owner's, each in a transaction that is rolled back.
func Run(t *testing.T, conn *pgx.Conn, statements []postgres.Statement, cases map[string][]Case) {
	t.Helper()
	require.Empty(t, Uncovered(statements, cases))
	texts := map[string]string{}
	for _, s := range statements {
		texts[s.Name] = s.SQL
	}
	for name, list := range cases {
		require.Contains(t, texts, name, "a case of a statement that there isn't")
		for i, c := range list {
			rows, err := count(t.Context(), conn, texts[name], c)
			require.NoError(t, err, "%s, case %d", name, i)
			require.Equal(t, c.Rows, rows, "%s, case %d", name, i)
		}
	}
}

func count(ctx context.Context, conn *pgx.Conn, sql string, c Case) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, c.Setup, pgx.QueryExecModeSimpleProtocol); err != nil {
		return 0, err
	}
	if c.Role != "" {
		if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+pgx.Identifier{c.Role}.Sanitize()); err != nil {
			return 0, err
		}
	}
	rows, err := tx.Query(ctx, sql, c.Args...)
	if err != nil {
		return 0, err
	}
	returned := 0
	for rows.Next() {
		returned++
	}
	rows.Close()
	if len(rows.FieldDescriptions()) == 0 { // it gives nothing back: what it wrote counts
		returned = int(rows.CommandTag().RowsAffected())
	}
	return returned, rows.Err()
}
