// Package failuretest puts a daemon through what a database does to it: a table of faults on a real server, each met by a call in the middle of its
// work. It looks at what the client is told, at what is left in the tables, at readiness before, during and after, and at whether the daemon goes
// on by itself once the fault is over.
package failuretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// patience bounds every wait for something that must come, also on a machine that is busy with other things.
const patience = 60 * time.Second

const pollEvery = 5 * time.Millisecond

// Effect is how much of a change is in the tables, and wherever else it belongs.
type Effect int

// The effects.
const (
	Nothing Effect = iota
	Part           // some of what belongs together, or more than was asked for
	Whole
)

func (e Effect) String() string { return [...]string{"nothing", "a part", "all of it"}[e] }

// All is Whole when all of them hold, Nothing when none does, else Part.
func All(holds ...bool) Effect {
	held := 0
	for _, one := range holds {
		if one {
			held++
		}
	}
	switch held {
	case 0:
		return Nothing
	case len(holds):
		return Whole
	}
	return Part
}

// Answer is what a client was told.
type Answer struct {
	Status  int
	Code    string // the error's code; "" for success
	Outcome string // the detail "outcome" of an error, if it has one
}

// outcomeUnknown is the detail of an error that is neither success nor failure, with all daemons.
const outcomeUnknown = "unknown"

func (a Answer) ok() bool { return a.Status >= 200 && a.Status < 300 }

func (a Answer) String() string {
	text := fmt.Sprint(a.Status)
	if a.Code != "" {
		text += " `" + a.Code + "`"
	}
	if a.Outcome != "" {
		text += " outcome " + a.Outcome
	}
	return text
}

// Judge compares what a client was told with what is there. Success is all of it, an unknown outcome is all or nothing, any other answer is nothing.
func Judge(a Answer, e Effect) error {
	switch {
	case e == Part:
		return fmt.Errorf("a part of the change is there, and the answer was %s", a)
	case a.ok() && e != Whole:
		return fmt.Errorf("the answer was %s, yet the change isn't there", a)
	case !a.ok() && a.Outcome != outcomeUnknown && e != Nothing:
		return fmt.Errorf("the answer was %s, which says that nothing happened, yet the change is there", a)
	}
	return nil
}

// Call is one kind of change that clients ask a daemon for. Changes are numbered; each number is sent once.
type Call struct {
	// Table is one that the change writes to, as trigger definitions name it.
	Table string
	// Prepare makes what the n-th change needs; nil for nothing.
	Prepare func(ctx context.Context, n int) error
	// Send asks for the n-th change. The error is for a daemon that gives no answer, which is none of the faults' doing.
	Send func(ctx context.Context, n int) (Answer, error)
	// Effect looks at what there is of the n-th change, past the daemon.
	Effect func(ctx context.Context, n int) (Effect, error)
}

// Daemon is a running daemon with its database on a Bench.
type Daemon struct {
	Name string
	// Admin is the base URL of the listener with /readyz.
	Admin string
	// MaxConns is the size of its pool.
	MaxConns int
	Calls    map[string]Call
}

// Ready asks /readyz.
func (d Daemon) Ready(ctx context.Context) (ready bool, body string, err error) {
	status, data, err := do(ctx, http.MethodGet, d.Admin+"/readyz", "", nil)
	return status == http.StatusOK, string(data), err
}

// awaitReadiness waits until readiness is as wanted: reason is what /readyz must say, "" for ready.
func (b *Bench) awaitReadiness(ctx context.Context, d Daemon, reason string) error {
	var last string
	err := b.await(ctx, func(ctx context.Context) (bool, error) {
		ready, body, err := d.Ready(ctx)
		last = body
		return err == nil && ready == (reason == "") && strings.Contains(body, reason), err
	})
	if err != nil {
		return fmt.Errorf("want readiness %q, it says %s: %w", reason, last, err)
	}
	return nil
}

// Send sends a request and reads the answer, an error's envelope included. Headers are pairs of name and value.
func Send(ctx context.Context, method, url, body string, headers ...string) (Answer, []byte, error) {
	status, data, err := do(ctx, method, url, body, headers)
	if err != nil {
		return Answer{}, nil, err
	}
	a := Answer{Status: status}
	if a.ok() {
		return a, data, nil
	}
	var envelope struct {
		Code    string
		Details struct{ Outcome string }
	}
	if err := json.Unmarshal(data, &envelope); err != nil {
		return a, data, fmt.Errorf("%d with something that is no error envelope: %w: %s", status, err, data)
	}
	a.Code, a.Outcome = envelope.Code, envelope.Details.Outcome
	return a, data, nil
}

func do(ctx context.Context, method, url, body string, headers []string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, data, err
}

var errLate = errors.New("it didn't come in time")

// await polls until there is a yes. An error of the last look is told when the time is over.
func (b *Bench) await(ctx context.Context, look func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, b.Patience)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		yes, err := look(ctx)
		if yes {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(errLate, err)
		}
	}
}
