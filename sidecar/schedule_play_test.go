package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/faultnet"
	"fenceline/internal/pgserver/pgtest"
)

// play is one schedule on its way.
type play struct {
	*stage
	schedule
	id       string
	victim   *sidecar
	login    string // the victim's
	pipeline *faultnet.Pipeline
	owner    *pgx.Conn
	account  string
	raced    bool // 6 may have come before
}

// send sends a request through a sidecar and returns its answer; again while the store is too slow for it.
func (p *play) send(t *testing.T, s *sidecar, token string) (status int, body string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, body = ask(t, http.MethodPost, "http://"+s.api+"/accounts/"+p.account, token)
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "FENCE_UNAVAILABLE") || time.Now().After(deadline) {
			return status, body
		}
		wait(t, pollPause)
	}
}

// expect sends through the other sidecar until the answer is the wanted one.
func (p *play) expect(t *testing.T, token string, want int) error {
	t.Helper()
	var status int
	var body string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if status, body = p.send(t, p.other, token); status == want {
			return nil
		}
		if status != http.StatusServiceUnavailable {
			break
		}
		wait(t, pollPause)
	}
	return fmt.Errorf("token %s was answered %d %s, want %d", token, status, body, want)
}

// until polls a question to the database.
func (p *play) until(t *testing.T, what, question string, args ...any) error {
	t.Helper()
	var yes bool
	err := errors.New("there was no time")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err = p.owner.QueryRow(t.Context(), question, args...).Scan(&yes); err == nil && yes {
			return nil
		}
		wait(t, pollPause)
	}
	if err != nil {
		return fmt.Errorf("ask whether it is %s: %w", what, err)
	}
	return fmt.Errorf("never %s", what)
}

func (p *play) standing(t *testing.T) (row int64, err error) {
	t.Helper()
	err = p.owner.QueryRow(t.Context(), "SELECT COALESCE(max(id), 0) FROM fence.inflight WHERE key = $1 AND token = 5", p.account).Scan(&row)
	return row, err
}

func (p *play) run(t *testing.T) error {
	t.Helper()
	p.login, p.account = prepare(t, p.database)
	parsed, err := url.Parse(p.login)
	if err != nil {
		return err
	}
	p.pipeline = faultnet.NewPipeline(t, parsed.Host)
	parsed.Host = p.pipeline.Addr()
	p.owner = pgtest.Connect(t, p.database)
	p.victim = p.start(t, p.id, parsed.String())
	if err := p.expect(t, "3", http.StatusOK); err != nil {
		return err
	}

	reached, release, err := p.prepareMoment(t)
	if err != nil {
		return err
	}
	defer release()
	old := make(chan int, 1)
	go func() {
		status, _ := ask(t, http.MethodPost, "http://"+p.victim.api+"/accounts/"+p.account, "5")
		old <- status
	}()
	select {
	case <-reached:
	case <-time.After(patience):
		return fmt.Errorf("the moment never came:\n%s", p.victim.Tail())
	}
	if p.behind != nil && !p.blocked { // the answers are lost, but what was asked for is done
		if err := p.until(t, "committed", "SELECT EXISTS (SELECT FROM fence.inflight WHERE key = $1 AND token = 5) = $2", p.account, !p.settled); err != nil {
			return err
		}
	}
	next := make(chan int, 1)
	if p.meanwhile {
		go func() {
			status, _ := ask(t, http.MethodPost, "http://"+p.other.api+"/accounts/"+p.account, "6")
			next <- status
		}()
	}
	switch p.act {
	case killed:
		return p.kill(t, release, next)
	case cut:
		return p.cutOff(t, release, old, next)
	case stopped:
		return p.stop(t, release, old, next)
	}
	return nil
}

// prepareMoment sets the trap; reached is closed when the moment has come.
func (p *play) prepareMoment(t *testing.T) (reached <-chan struct{}, release func(), err error) {
	t.Helper()
	if p.inside != 0 {
		hold := p.resource.hold(p.account, "5", p.inside)
		return hold.reached, hold.release, nil
	}
	var trap *faultnet.Trap
	if p.before != nil {
		trap = p.pipeline.StopBefore(p.before)
	} else {
		trap = p.pipeline.MuteFrom(p.behind)
	}
	release = trap.Release
	if p.blocked {
		conn := pgtest.Connect(t, p.database)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			return nil, nil, err
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM account WHERE account_id = $1 FOR UPDATE", p.account); err != nil {
			return nil, nil, err
		}
		release = func() {
			_ = tx.Rollback(context.WithoutCancel(t.Context())) // nothing when it is over already
			trap.Release()
		}
	}
	return trap.Sprung(), release, nil
}

// sessions waits until the server has none of the victim's that is so: whatever it was still to do is done.
func (p *play) sessions(t *testing.T, what, condition string) error {
	t.Helper()
	parsed, err := url.Parse(p.login)
	if err != nil {
		return err
	}
	return p.until(t, what, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND "+condition+")", parsed.User.Username())
}

// check compares what stands in the register with the moment's.
func (p *play) check(t *testing.T) (registered bool, err error) {
	t.Helper()
	row, err := p.standing(t)
	if err != nil {
		return false, err
	}
	registered = row != 0
	if want := p.registered && !p.settled; registered != want && !p.blocked && !p.raced { // a held row may have been given up before
		return registered, fmt.Errorf("registered: %t, want %t", registered, want)
	}
	return registered, nil
}

// lower: where 5 was admitted nothing lower is; where it wasn't, it left no trace.
func (p *play) lower(t *testing.T, raised bool) error {
	t.Helper()
	if raised {
		return p.expect(t, "4", http.StatusConflict)
	}
	return p.expect(t, "4", http.StatusOK)
}

// behindIt is what 6 meets at the other sidecar while 5's outcome isn't known.
func (p *play) behindIt(t *testing.T, next chan int, busy bool) error {
	t.Helper()
	var status int
	if p.meanwhile {
		status = <-next
	} else {
		status, _ = p.send(t, p.other, "6")
	}
	if busy && status != http.StatusServiceUnavailable {
		return fmt.Errorf("6 was answered %d while 5 may take effect", status)
	}
	if status != http.StatusServiceUnavailable && status != http.StatusOK {
		return fmt.Errorf("6 was answered %d", status)
	}
	return nil
}

// settle is the operator's, once the request is called unsettled and the resource has come to its end.
func (p *play) settle(t *testing.T, release func()) error {
	t.Helper()
	if err := p.until(t, "unsettled", "SELECT EXISTS (SELECT FROM fence.inflight WHERE key = $1 AND token = 5 AND unsettled_at IS NOT NULL)", p.account); err != nil {
		return err
	}
	if _, body := p.send(t, p.other, "6"); !strings.Contains(body, "FENCE_BUSY") {
		return fmt.Errorf("6 was answered %s before anybody settled 5", body)
	}
	release()
	if err := p.resource.idle(t, p.account); err != nil {
		return err
	}
	row, err := p.standing(t)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s/inflight/%d/settle", p.other.admin, row)
	status, body := post(t, url, `{"operator":"carol","reason":"the resource's log shows its end"}`)
	if status != http.StatusOK {
		return fmt.Errorf("settled by an operator: %d %s", status, body)
	}
	return nil
}

// kill: what was committed blocks until an operator settles it; what wasn't is as if it had never been.
func (p *play) kill(t *testing.T, release func(), next chan int) error {
	t.Helper()
	if err := p.victim.Kill(t.Context()); err != nil {
		return err
	}
	p.pipeline.Cut() // as the kernel does
	if p.inside == 0 {
		release()
	}
	if err := p.sessions(t, "gone", "true"); err != nil {
		return err
	}
	return p.afterwards(t, release, next, nil)
}

// afterwards is what others meet when the sidecar was killed or stopped. Last comes before what the resource saw is counted.
func (p *play) afterwards(t *testing.T, release func(), next chan int, last func() error) error {
	t.Helper()
	registered, err := p.check(t)
	if err != nil {
		return err
	}
	if !p.meanwhile {
		if err := p.lower(t, registered || p.settled); err != nil {
			return err
		}
	}
	if err := p.behindIt(t, next, registered); err != nil {
		return err
	}
	if registered {
		if err := p.settle(t, release); err != nil {
			return err
		}
	}
	if err := p.expect(t, "7", http.StatusOK); err != nil {
		return err
	}
	if last != nil {
		if err := last(); err != nil {
			return err
		}
	}
	return p.resource.saw(p.account, p.forwarded)
}

// cutOff: the sidecar lives on, and finds out by itself what became of its request.
func (p *play) cutOff(t *testing.T, release func(), old, next chan int) error {
	t.Helper()
	p.pipeline.Cut()
	if p.inside == 0 {
		release()
	}
	p.pipeline.Mend()
	if p.forwarded {
		if err := p.behindIt(t, next, p.inside != 0); err != nil {
			return err
		}
		release()
		if status := <-old; status != http.StatusOK {
			return fmt.Errorf("5 was answered %d", status)
		}
	} else {
		if err := p.behindIt(t, next, false); err != nil {
			return err
		}
		if status := <-old; status != http.StatusServiceUnavailable && status != http.StatusConflict {
			return fmt.Errorf("5 was answered %d", status)
		}
	}
	if err := p.expect(t, "7", http.StatusOK); err != nil { // nobody settles anything by hand
		return err
	}
	if status, body := p.send(t, p.victim, "8"); status != http.StatusOK {
		return fmt.Errorf("8 through the victim was answered %d %s", status, body)
	}
	return p.resource.saw(p.account, p.forwarded)
}

// stop: everything that the sidecar had asked for happens while it stands still, and others call it dead. When it goes on it sends nothing that it hadn't begun.
func (p *play) stop(t *testing.T, release func(), old, next chan int) error {
	t.Helper()
	if err := p.victim.Suspend(t.Context()); err != nil {
		return err
	}
	if p.inside == 0 {
		release()
	}
	wanted := p.moment
	p.registered = true // its pipeline was sent whole
	if p.before != nil && p.forwarded {
		p.settled = true
	}
	p.raced = p.meanwhile && p.before != nil && !p.forwarded
	if err := p.sessions(t, "idle", "state <> 'idle'"); err != nil {
		return err
	}
	return p.afterwards(t, release, next, func() error {
		if err := p.victim.Resume(); err != nil {
			return err
		}
		if status := <-old; !wanted.forwarded && status == http.StatusOK {
			return fmt.Errorf("5 was answered %d", status)
		}
		if status, body := p.send(t, p.victim, "8"); status != http.StatusOK {
			return fmt.Errorf("8 through the victim was answered %d %s", status, body)
		}
		return nil
	})
}
