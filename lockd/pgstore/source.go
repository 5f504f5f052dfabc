package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// SQLSTATEs of move_token_source (lockdb/V6).
const (
	stateNotAbove     = "LK004"
	stateAboveCeiling = "LK005"
)

// adoptSource advances the token source of a database that isn't the one that handed out the tokens so far, and makes it the one. The
// function's own lock lets one replica do it. No row when another was faster, or one.
const adoptSource = `SELECT from_token, to_token, why FROM adopt_token_source($1)`

// adopt lets a database that was restored or failed over hand out tokens: far above all that the old one can have handed out.
func (s *Store) adopt(ctx context.Context) error {
	var from, to lock.Token
	var why string
	advanced := false
	err := s.inTx(ctx, "advance the token source", func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, adoptSource, "lockd").Scan(&from, &to, &why)
		advanced = err == nil
		return ignoreNoRows(err)
	})
	if err == nil && advanced {
		s.logger.Warn("token source advanced", "event", "token_source_advanced", "from", int64(from), "to", int64(to), "why", why)
	}
	return err
}

func ignoreNoRows(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// highestToken reads the last draw; a sequence that was never drawn from, or was set, names the value to come. One row.
const highestToken = `SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM fencing_token_seq`

// HighestToken implements lock.TokenSource.
func (s *Store) HighestToken(ctx context.Context) (lock.Token, error) {
	var highest lock.Token
	if err := s.pool.QueryRow(ctx, highestToken).Scan(&highest); err != nil {
		return 0, fmt.Errorf("read the token source: %w", identify(ctx, err))
	}
	return highest, nil
}

// fastForward moves the token source and records it, in one transaction that no draw can be between (lockdb/V6). One row.
const fastForward = `SELECT from_token, to_token FROM fast_forward_token_source($1, $2, $3)`

// FastForward implements lock.TokenSource. It waits for the draws that are under way, and later ones wait for it.
func (s *Store) FastForward(ctx context.Context, request lock.FastForwardRequest) (from, to lock.Token, err error) {
	err = s.inTx(ctx, "fast-forward", func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, fastForward, request.Above, request.Operator, request.Reason).Scan(&from, &to)
		switch postgres.State(err) {
		case stateNotAbove, stateAboveCeiling:
			return fmt.Errorf("%w: %w", lock.ErrInvalid, err)
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	s.logger.Warn("token source advanced", "event", "token_source_advanced", "from", int64(from), "to", int64(to),
		"why", "fast-forward by "+request.Operator+": "+request.Reason)
	return from, to, nil
}
