// Package invariant checks INV-01 to INV-08 of the payment system with SQL, over its tables and over what was recorded: a history that
// triggers write (InstallHistory, for test databases only), lockd's grant log and the rail's own log. The final state alone can't show
// INV-01, 04, 06, 07 and 08.
package invariant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/paysvc/payout"
)

// Invariants, as they are named everywhere.
const (
	TokenOrder      = "INV-01" // successful mutations of a payout are ordered by non-decreasing token
	OneSubmission   = "INV-02" // at most one submission of a payout ever succeeds
	MoneyAddsUp     = "INV-03" // legs balance, and each balance is the sum of its entries
	TokensGrow      = "INV-04" // tokens never repeat or go back for a key
	AboveTheMark    = "INV-05" // no write at or below the stored fence
	OneGrant        = "INV-06" // at most one live grant a key
	TokensGranted   = "INV-07" // every submission and fenced write presents a token that was granted
	TerminalForGood = "INV-08" // terminal stays terminal
)

// Evidence is what the database can't know.
type Evidence struct {
	// Grants is lockd's grant log. Without it (nil) INV-04, 06 and 07 aren't checked.
	Grants []Grant
	// Transfers are those that the rail carried out. Without them (nil) INV-02 sees the tables only.
	Transfers []Transfer
	// FencedResource and FencedRail say that the payment-resource or the rail-proxy compares tokens itself, which makes INV-05 stricter.
	FencedResource, FencedRail bool
}

// Violation is one broken invariant, with everything to find it by.
type Violation struct {
	Invariant string
	PayoutID  string // "" where it isn't about one payout
	Account   string // the account's id, or the lock's key
	Tokens    []int64
	Holders   []string
	Rows      []string // table or log, and which row of it
	What      string
}

// String is the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s (payout %s, account or key %s, tokens %v, holders %v, rows: %s)",
		v.Invariant, v.What, orNone(v.PayoutID), orNone(v.Account), v.Tokens, v.Holders, strings.Join(v.Rows, "; "))
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// Report is what a check found.
type Report struct {
	Checked    []string // the invariants that could be checked with the evidence at hand
	Violations []Violation
}

// Err is nil when nothing is violated, else an error that lists everything.
func (r Report) Err() error {
	var all []error
	for _, v := range r.Violations {
		all = append(all, errors.New(v.String()))
	}
	return errors.Join(all...)
}

// Broken are the violated invariants, each once, in order.
func (r Report) Broken() []string {
	var names []string
	for _, v := range r.Violations {
		if len(names) == 0 || names[len(names)-1] != v.Invariant {
			names = append(names, v.Invariant)
		}
	}
	return names
}

// Database is a connection or a pool. It needs the right to read the payment system's tables, and the history if there is one.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// slack is by how much a line of the grant log may be later than what it tells.
const slack = 2 * time.Second

// check is one invariant with what it needs.
type check struct {
	name            string
	sql             string
	history, grants bool
}

func checks() []check {
	return []check{
		{name: TokenOrder, sql: mutationsInTokenOrder, history: true},
		{name: OneSubmission, sql: oneSuccessfulSubmission},
		{name: MoneyAddsUp, sql: moneyAddsUp},
		{name: TokensGrow, sql: tokensOnlyGrow, grants: true},
		{name: AboveTheMark, sql: noWriteBelowTheMark, history: true},
		{name: OneGrant, sql: oneLiveGrant, grants: true},
		{name: TokensGranted, sql: tokensWereGranted, grants: true},
		{name: TerminalForGood, sql: terminalStaysTerminal, history: true},
	}
}

// Check looks at one instant of the database. The error means that it couldn't look.
func Check(ctx context.Context, db Database, e Evidence) (Report, error) {
	report, err := checkAll(ctx, db, e)
	if err != nil {
		return report, fmt.Errorf("check invariants: %w", err)
	}
	return report, nil
}

func checkAll(ctx context.Context, db Database, e Evidence) (Report, error) {
	var report Report
	args, err := e.arguments()
	if err != nil {
		return report, err
	}
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return report, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var history bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('payout_history') IS NOT NULL").Scan(&history); err != nil {
		return report, err
	}
	for _, c := range checks() {
		if c.history && !history || c.grants && e.Grants == nil {
			continue
		}
		rows, err := tx.Query(ctx, c.sql, args)
		if err != nil {
			return report, fmt.Errorf("%s: %w", c.name, err)
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Violation, error) {
			v := Violation{Invariant: c.name}
			var payoutID, account *string
			err := row.Scan(&payoutID, &account, &v.Tokens, &v.Holders, &v.Rows, &v.What)
			v.PayoutID, v.Account = deref(payoutID), deref(account)
			return v, err
		})
		if err != nil {
			return report, fmt.Errorf("%s: %w", c.name, err)
		}
		report.Checked = append(report.Checked, c.name)
		report.Violations = append(report.Violations, found...)
	}
	return report, nil
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// arguments are the parameters of all checks.
func (e Evidence) arguments() (pgx.NamedArgs, error) {
	grants, err := jsonRows(e.Grants)
	if err != nil {
		return nil, err
	}
	transfers, err := jsonRows(e.Transfers)
	if err != nil {
		return nil, err
	}
	var terminal []string
	for _, state := range payout.States() {
		if state.Terminal() {
			terminal = append(terminal, string(state))
		}
	}
	return pgx.NamedArgs{
		"grants": grants, "transfers": transfers, "terminal": terminal,
		"fenced_account": e.FencedResource, "fenced_rail": e.FencedRail, "slack_millis": slack.Milliseconds(),
	}, nil
}

// jsonRows is a list as a JSON array, never null.
func jsonRows[T any](list []T) (string, error) {
	if list == nil {
		list = []T{}
	}
	text, err := json.Marshal(list)
	return string(text), err
}
