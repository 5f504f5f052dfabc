package failuretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fenceline/internal/pgserver"
)

const (
	clients = 4
	// enough successes before the server ends and after it is back.
	enough = 20
	// reserve is what is sent while nothing can be prepared.
	reserve = 40
	// pause is between two requests of a client that was refused.
	pause = 100 * time.Millisecond
)

// load is clients that ask for changes without a break, and what they were told.
type load struct {
	b    *Bench
	call Call

	reserve chan int
	mu      sync.Mutex
	sent    []sent
	good    int
}

// End is a way in which a server ends under load; mend is what it needs before it can start again.
type End func(ctx context.Context, b *Bench, server *pgserver.Server) (mend func() error, err error)

// Cleanly ends all sessions (57P01), as for maintenance; the server is back at once.
func Cleanly(context.Context, *Bench, *pgserver.Server) (func() error, error) { return nil, nil } //nolint:nilnil // Restart does it all

// ByCrash ends the server without any word to anybody.
func ByCrash(ctx context.Context, _ *Bench, server *pgserver.Server) (func() error, error) {
	return func() error { return nil }, server.Crash(ctx)
}

// RestartUnderLoad ends the server and starts it again while clients ask for changes, and says what the daemon does wrong: clients are told of success, or
// one of the refusals; each change is there as they were told; readiness follows; and in the end everybody is served again.
func (b *Bench) RestartUnderLoad(ctx context.Context, d Daemon, call string, server *pgserver.Server, end End, refusals ...Answer) error {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	l := &load{b: b, call: d.Calls[call], reserve: make(chan int, reserve)}
	numbers, err := b.prepare(ctx, l.call, reserve)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		l.reserve <- n
	}
	clientsCtx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for range clients {
		group.Go(func() { l.run(clientsCtx) })
	}
	err = l.restart(ctx, d, server, end)
	stop()
	group.Wait()
	if err := errors.Join(err, b.quiet(ctx)); err != nil {
		return err
	}
	refused := 0
	for _, s := range l.sent {
		switch {
		case s.err != nil:
			return fmt.Errorf("no answer: %w", s.err)
		case !s.answer.ok() && !slices.Contains(refusals, s.answer):
			return fmt.Errorf("the answer was %s, want success or one of %s", s.answer, refusals)
		case !s.answer.ok():
			refused++
		}
		if err := b.judge(ctx, l.call, s); err != nil {
			return err
		}
	}
	if refused == 0 {
		return errors.New("nobody was refused: the restart was not under load")
	}
	return nil
}

// restart ends the server once the clients are served, and waits until they are served again.
func (l *load) restart(ctx context.Context, d Daemon, server *pgserver.Server, end End) error {
	if err := l.awaitSuccesses(ctx, enough); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	mend, err := end(ctx, l.b, server)
	if err != nil {
		return fmt.Errorf("end the server: %w", err)
	}
	if mend != nil {
		if err := l.b.awaitReadiness(ctx, d, "database unavailable"); err != nil {
			return fmt.Errorf("while it is away: %w", errors.Join(err, mend()))
		}
		if err := mend(); err != nil {
			return err
		}
	}
	if err := server.Restart(ctx); err != nil {
		return err
	}
	l.b.owner.Reset()
	if err := l.b.awaitReadiness(ctx, d, ""); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	l.mu.Lock()
	served := l.good
	l.mu.Unlock()
	if err := l.awaitSuccesses(ctx, served+enough); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}

func (l *load) awaitSuccesses(ctx context.Context, count int) error {
	err := l.b.await(ctx, func(context.Context) (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.good >= count, nil
	})
	if err != nil {
		return fmt.Errorf("clients aren't served: %w", err)
	}
	return nil
}

// run is one client. A request that is under way when ctx ends is waited for.
func (l *load) run(ctx context.Context) {
	for ctx.Err() == nil {
		n, prepared := l.next(ctx)
		if prepared {
			answer, err := l.call.Send(context.WithoutCancel(ctx), n)
			l.mu.Lock()
			l.sent = append(l.sent, sent{n, answer, err})
			if err == nil && answer.ok() {
				l.good++
			}
			l.mu.Unlock()
			if answer.ok() {
				continue
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// next is a change that is prepared: a new one, or one of the reserve while the database is away.
func (l *load) next(ctx context.Context) (int, bool) {
	n := l.b.Next()
	if l.call.Prepare == nil || l.call.Prepare(context.WithoutCancel(ctx), n) == nil {
		return n, true
	}
	select {
	case n := <-l.reserve:
		return n, true
	default:
		return 0, false
	}
}
