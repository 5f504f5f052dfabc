package gate

import (
	"context"
	"errors"
	"time"

	"fenceline/sidecar/mark"
)

// Alive says why this sidecar isn't called alive by the store, so that nothing is admitted; nil when it is.
func (g *Gate) Alive() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.machine.live && g.lifeErr != nil:
		return g.lifeErr
	case !g.machine.live:
		return mark.ErrNoLife
	case g.now().Since(g.machine.beat) >= g.options.Silence:
		return errSilent
	}
	return nil
}

var errSilent = errors.New("the store took no heartbeat of this sidecar for too long; nothing is sent")

// Hint says that something of a key was settled by somebody else.
func (g *Gate) Hint(guard, key string) { g.step(Hinted{guard, key}) }

// Start begins a life and keeps it. A store that can't be used yet is tried again; until then nothing is admitted. ErrSameID and ErrOtherDefinition are
// returned, and tried again too: they end when the other sidecar, or its requests, do.
func (g *Gate) Start(ctx context.Context) error {
	err := g.begin(ctx)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = cancel
	g.done.Go(func() { g.keepAlive(running, err == nil) })
	g.done.Go(func() { g.tidy(running) })
	store, _ := g.store()
	g.done.Go(func() { store.Hints(running, g.Hint) })
	return err
}

func (g *Gate) begin(ctx context.Context) error {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 4*options.Ask)
	defer cancel()
	asked := g.now()
	err := store.Begin(ctx)
	g.mu.Lock()
	changed := err == nil || g.lifeErr == nil || g.lifeErr.Error() != err.Error()
	g.lifeErr = err
	if err == nil {
		g.dispatch(g.machine.Step(LifeBegan{Asked: asked}))
	}
	g.mu.Unlock()
	if changed {
		g.observe.Life(err == nil, err)
	}
	return err
}

// keepAlive sends heartbeats, and begins another life when one is lost.
func (g *Gate) keepAlive(ctx context.Context, alive bool) {
	_, options := g.store()
	ticker := time.NewTicker(options.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !alive {
			alive = g.begin(ctx) == nil
			continue
		}
		alive = g.heartbeat(ctx)
	}
}

// heartbeat says whether the life goes on.
func (g *Gate) heartbeat(ctx context.Context) bool {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 2*options.Ask)
	defer cancel()
	asked := g.now()
	pulse, err := store.Beat(ctx)
	switch {
	case errors.Is(err, mark.ErrNoLife):
		pulse.Lost = true
	case err != nil:
		g.observe.Fault("heartbeat", err)
		return true // it may live; the machine sends nothing when the heartbeats stay away
	}
	g.mu.Lock()
	before := len(g.settle)
	g.dispatch(g.machine.Step(Beaten{Pulse: pulse, Asked: asked}))
	swept := append([]mark.Row(nil), g.settle[before:]...)
	g.mu.Unlock()
	for _, row := range swept {
		g.observe.Swept(row)
	}
	if pulse.Lost {
		g.observe.Life(false, mark.ErrNoLife)
	}
	return !pulse.Lost
}

// retry is the pause after the store failed.
const retry = 200 * time.Millisecond

// tidy tells the store what was settled and what is unsettled, together, and again until it has taken it. Nothing depends on its haste but the patience of
// other sidecars' requests: a row that stands too long only lets others wait.
func (g *Gate) tidy(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.work:
		}
		for !g.flush(ctx) {
			timer := time.NewTimer(retry)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}
}

// flush says whether everything was taken.
func (g *Gate) flush(ctx context.Context) bool {
	g.mu.Lock()
	unsettle, settle := g.unsettle, g.settle
	g.unsettle, g.settle = nil, nil
	g.mu.Unlock()
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 2*options.Ask)
	defer cancel()
	var errUnsettle, errSettle error
	if len(unsettle) > 0 {
		if errUnsettle = store.Unsettle(ctx, unsettle); errUnsettle != nil {
			g.observe.Fault("record that outcomes are unknown", errUnsettle)
		}
	}
	if len(settle) > 0 {
		if errSettle = store.Settle(ctx, settle); errSettle != nil {
			g.observe.Fault("remove settled requests from the register", errSettle)
		} else {
			g.step(Removed{Rows: settle})
		}
	}
	if errUnsettle == nil && errSettle == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if errUnsettle != nil {
		g.unsettle = append(unsettle, g.unsettle...)
	}
	if errSettle != nil {
		g.settle = append(settle, g.settle...)
	}
	return false
}

// Stop ends the life in order: what is still under way is unsettled from then on.
func (g *Gate) Stop(ctx context.Context) error {
	if g.stop != nil {
		g.stop()
		g.done.Wait()
	}
	g.flush(ctx)
	store, _ := g.store()
	return store.End(ctx)
}
