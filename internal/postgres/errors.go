package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Identities of a failed statement. Callers branch on these with errors.Is and
// never on a message, which changes with the server's version and language.
var (
	// ErrUnavailable means that the server can't be reached, went away, is starting, stopping or full.
	ErrUnavailable = errors.New("database unavailable")
	// ErrReadOnly means that the server is a standby or was made read-only (25006).
	ErrReadOnly = errors.New("database is read-only")
	// ErrTimeout means that a time limit ended the statement: ours, statement_timeout (57014)
	// or lock_timeout (55P03).
	ErrTimeout = errors.New("database timed out")
	// ErrCanceled means that our caller gave up before the answer.
	ErrCanceled = errors.New("database call canceled by the caller")
	// ErrPermission means that the role lacks a grant (42501). A defect of the deployment,
	// never the user's fault.
	ErrPermission = errors.New("database permission denied")
	// ErrSchema means that a table, column or function isn't there (42P01, 42703, 42883, 3F000).
	ErrSchema = errors.New("database schema is not the expected one")
	// ErrSerialization means that the whole transaction may be run again (40001, 40P01).
	ErrSerialization = errors.New("transaction lost against a concurrent one")
	// ErrConstraint means that a named constraint refused the row; Constraint gives the name.
	ErrConstraint = errors.New("database constraint violated")
	// ErrOutcomeUnknown means that the connection was lost while the commit was under way, so
	// the transaction may or may not have taken effect. Neither success nor failure.
	ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")
)

// SQLSTATE codes that callers compare against with Constraint.
const (
	UniqueViolation     = "23505"
	ForeignKeyViolation = "23503"
	CheckViolation      = "23514"
)

// Classify wraps err with the identity that its SQLSTATE or kind stands for,
// and keeps the original in the chain. pgx.ErrNoRows and unknown errors come back as they are;
// nil stays nil. ctx is the context that the call ran under: it tells our caller's cancel from
// a time limit.
func Classify(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	identity := identify(ctx, err)
	if identity == nil || errors.Is(err, identity) {
		return err
	}
	return fmt.Errorf("%w: %w", identity, err)
}

func identify(ctx context.Context, err error) error {
	// The context first: a cancelled pgx call also looks like a broken connection.
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ErrCanceled
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ErrTimeout
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return identifyState(pgErr.Code)
	}
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	switch {
	case errors.As(err, &netErr) && netErr.Timeout():
		return ErrTimeout
	case errors.As(err, &connectErr), errors.As(err, &netErr), pgconn.SafeToRetry(err), isBrokenConnection(err):
		return ErrUnavailable
	}
	return nil
}

func identifyState(code string) error {
	switch code {
	case "25006":
		return ErrReadOnly
	case "57014", "55P03", "25P03", "25P04":
		return ErrTimeout
	case "42501", "28000", "28P01":
		return ErrPermission
	case "42P01", "42703", "42883", "3F000", "3D000":
		return ErrSchema
	case "40001", "40P01":
		return ErrSerialization
	}
	switch {
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57P"), strings.HasPrefix(code, "58"):
		return ErrUnavailable
	case strings.HasPrefix(code, "23"):
		return ErrConstraint
	}
	return nil
}

// Constraint returns SQLSTATE and constraint name of a violated constraint, or
// two empty strings when err isn't one.
func Constraint(err error) (code, name string) {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pgErr.Code, "23") {
		return pgErr.Code, pgErr.ConstraintName
	}
	return "", ""
}

// State returns the SQLSTATE of a server's error, "" for any other error.
func State(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
