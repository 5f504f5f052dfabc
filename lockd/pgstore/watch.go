package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

const (
	// listenCheck is how often a silent connection is asked whether it is still there.
	listenCheck   = 10 * time.Second
	listenTimeout = 5 * time.Second
)

// Watch implements lock.Watcher with LISTEN on a connection of its own, which leads to the server itself (see WithDirectURL).
func (s *Store) Watch(ctx context.Context, ready func(), freed func(key string, token lock.Token)) error {
	conn, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("watch for freed locks: %w", postgres.Classify(ctx, err))
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closeCtx)
	}()
	hello := s.listening(freed)
	defer s.listening(nil)
	defer s.sayHello(ctx, hello)()
	ready()
	for {
		if err := s.hear(ctx, conn, freed); err != nil {
			return fmt.Errorf("watch for freed locks: %w", postgres.Classify(ctx, err))
		}
	}
}

func (s *Store) listen(ctx context.Context) (*pgx.Conn, error) {
	config := s.pool.Config().ConnConfig
	if s.direct != "" {
		var err error
		if config, err = pgx.ParseConfig(s.direct); err != nil {
			return nil, err // pgx redacts the password
		}
	}
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// hear waits for one notice. After a silence it makes sure that somebody is there: a connection can end without a word.
func (s *Store) hear(ctx context.Context, conn *pgx.Conn, freed func(key string, token lock.Token)) error {
	waitCtx, cancel := context.WithTimeout(ctx, listenCheck)
	defer cancel()
	notice, err := conn.WaitForNotification(waitCtx)
	if err == nil {
		if !s.heard(notice.Payload) {
			deliver(notice.Payload, freed)
		}
		return nil
	}
	if ctx.Err() != nil || waitCtx.Err() == nil {
		return err
	}
	pingCtx, cancelPing := context.WithTimeout(ctx, listenTimeout)
	defer cancelPing()
	return conn.Ping(pingCtx)
}

// deliver reads a notice: grants as key=token with a space between two, or nothing at all for "any".
func deliver(payload string, freed func(key string, token lock.Token)) {
	for grant := range strings.SplitSeq(payload, " ") {
		key, text, _ := strings.Cut(grant, "=")
		token, err := lock.ParseToken(text)
		if err != nil {
			token = 0 // not known
		}
		freed(key, token)
	}
}
