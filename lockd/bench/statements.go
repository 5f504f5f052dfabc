package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The two statements of C1 §1.3 and §1.4, one round trip and one commit each: what a program would send that had no lock service. They check no
// session, and without the ordering lock their tokens can go back on a contended key.
const (
	bareAcquire = `
INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, acquired_at, expires_at)
VALUES ($1, $2, $3, nextval('fencing_token_seq'),
        now(), now() + make_interval(secs => $4))
ON CONFLICT (lock_key) DO UPDATE
   SET owner_id      = EXCLUDED.owner_id,
       session_id    = EXCLUDED.session_id,
       fencing_token = nextval('fencing_token_seq'),
       acquired_at   = now(),
       expires_at    = now() + make_interval(secs => $4)
 WHERE lock_entry.expires_at <= now()
    OR (lock_entry.owner_id = EXCLUDED.owner_id AND lock_entry.session_id = EXCLUDED.session_id)
RETURNING fencing_token, owner_id, session_id, acquired_at, expires_at`
	bareRelease = `
DELETE FROM lock_entry
 WHERE lock_key      = $1
   AND fencing_token = $2
RETURNING fencing_token`
)

// statements is the contestant: pgx with its defaults (named prepared statements), a connection for each client.
type statements struct {
	pool     *pgxpool.Pool
	sessions []uuid.UUID
	uses     processes
}

func newStatements(ctx context.Context, databaseURL string, clients int) (*statements, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns, config.MinConns = int32(clients), int32(clients) //nolint:gosec // tens
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to lockdb: %w", err)
	}
	s := &statements{pool: pool}
	for range clients {
		session := uuid.New()
		// ttl_millis is lockd's own column; the session outlives the run.
		_, err = pool.Exec(ctx, "INSERT INTO lock_session (session_id, owner_id, expires_at, ttl_millis) VALUES ($1, 'bare', now() + interval '1 hour', 60000)", session)
		if err != nil {
			return nil, fmt.Errorf("open session: %w", err)
		}
		s.sessions = append(s.sessions, session)
	}
	return s, nil
}

func (s *statements) name() string { return "C1's bare statements, pgx" }

func (s *statements) processes() processes { return s.uses }

var errNotGranted = errors.New("not granted")

func (s *statements) worker(i int) pair {
	key := "bare:" + strconv.Itoa(i)
	return func(ctx context.Context) error {
		var token int64
		rows, err := s.pool.Query(ctx, bareAcquire, key, "bare", s.sessions[i], float64(lockSeconds))
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		if rows.Next() {
			err = rows.Scan(&token, nil, nil, nil, nil)
		}
		rows.Close()
		if err = errors.Join(err, rows.Err()); err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		if token == 0 {
			return errNotGranted
		}
		tag, err := s.pool.Exec(ctx, bareRelease, key, token)
		if err != nil || tag.RowsAffected() != 1 {
			return fmt.Errorf("release (%d rows): %w", tag.RowsAffected(), err)
		}
		return nil
	}
}
