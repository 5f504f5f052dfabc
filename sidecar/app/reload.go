package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/sidecar/config"
)

// watchInterval paces the looks at the configuration file. A change is taken up when two looks in a row have seen the same, so that a
// half-written file isn't.
const watchInterval = time.Second

// reloadMetrics say which configuration is in use.
type reloadMetrics struct {
	info    *prometheus.GaugeVec
	success prometheus.Gauge
	reloads *prometheus.CounterVec
}

func newReloadMetrics(registry prometheus.Registerer, hash string) *reloadMetrics {
	m := &reloadMetrics{
		info:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fence_config_info", Help: "The configuration in use."}, []string{"hash"}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fence_config_reload_success", Help: "Whether the last configuration that was read is in use: 1, or 0 when it was rejected."}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fence_config_reloads_total", Help: "Configurations read while running."}, []string{"outcome"}),
	}
	registry.MustRegister(m.info, m.success, m.reloads)
	m.success.Set(1)
	m.inUse(hash)
	for _, outcome := range []string{"reloaded", "rejected"} {
		m.reloads.WithLabelValues(outcome)
	}
	return m
}

func (m *reloadMetrics) inUse(hash string) {
	m.info.Reset()
	m.info.WithLabelValues(hash).Set(1)
}

// currentPool gives the numbers of the pool in use.
type currentPool struct{ *App }

// Stat is for the metrics.
func (c currentPool) Stat() *pgxpool.Stat { return c.generation().backing.pool.Stat() }

// catchHangups is to be called before anybody can know that the sidecar is there: a SIGHUP that nobody catches ends the process. One that comes before watch is kept for it.
func (a *App) catchHangups() (hangups chan os.Signal) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	a.cleanups.Push("SIGHUP", func(context.Context) error { signal.Stop(hangups); return nil })
	return hangups
}

// watch reloads on SIGHUP and when the configuration file, or a file with a secret, has changed.
func (a *App) watch(ctx context.Context, hangups <-chan os.Signal) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it ends with the process, not with the start
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		before := a.seen
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				a.seen = a.fingerprint()
				before = a.seen
				a.reload(ctx)
			case <-ticker.C:
				now := a.fingerprint()
				if now == before && now != a.seen {
					a.seen = now
					a.reload(ctx)
				}
				before = now
			}
		}
	})
	a.cleanups.Push("reloads", func(context.Context) error {
		cancel()
		watching.Wait()
		return nil
	})
}

// fingerprint changes with the text of the file and of the files that hold secrets.
func (a *App) fingerprint() [sha256.Size]byte {
	hash := sha256.New()
	for _, path := range append([]string{a.path}, a.Config().SecretFiles...) {
		data, err := config.ReadFile(path)
		fmt.Fprintf(hash, "%d %t\n", len(data), err == nil)
		_, _ = hash.Write(data) // a hash takes everything
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// reload is called by one goroutine. It does everything that can fail first; then one pointer changes. What can't be used leaves everything as it was.
func (a *App) reload(ctx context.Context) {
	old := a.generation()
	next, err := a.prepare(ctx, old)
	if err != nil {
		a.metrics.success.Set(0)
		a.metrics.reloads.WithLabelValues("rejected").Inc()
		logFaults(a.logger, err)
		return
	}
	a.useGate(old, next)
	data := a.data.Current().Next(next.parts())
	data.UseGate(a.gate)
	drained := a.data.Swap(data)
	a.mu.Lock()
	a.current = next
	a.mu.Unlock()
	if a.recorder != nil {
		a.recorder.Keep(next.cfg.RejectionsKept)
	}
	a.metrics.inUse(next.hash)
	a.metrics.success.Set(1)
	a.metrics.reloads.WithLabelValues("reloaded").Inc()
	a.logger.Info("the configuration was reloaded", "event", "config_reloaded", "hash", next.hash, "before", old.hash)
	a.announce(next.cfg)
	a.retire(old, next, drained)
}

// retire closes what only the old configuration used, when its last request has ended.
func (a *App) retire(old, next *generation, drained func()) {
	a.retiring.Go(func() {
		drained()
		if old.backing != next.backing {
			if err := old.backing.close(); err != nil {
				a.logger.Warn("closing the store of the former configuration failed", "event", "store_close_failed", "error", err)
			}
		}
	})
}

func (a *App) waitRetired(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.retiring.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("requests still under way: %w", context.Cause(ctx))
	}
}

// prepare reads the file and builds everything for it, and asks the store whether it fits.
func (a *App) prepare(ctx context.Context, old *generation) (*generation, error) {
	cfg, hash, err := load(a.path)
	if err != nil {
		return nil, err
	}
	if err := needsRestart(old.cfg, cfg); err != nil {
		return nil, err
	}
	next := &generation{cfg: cfg, hash: hash}
	var on *backing
	if old.backing.file != nil || old.cfg.Store == cfg.Store {
		on = old.backing // a file is open once; its path is the same
	}
	if err := next.complete(ctx, on); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()
	if err := next.store.Check(ctx); err != nil {
		err = fmt.Errorf("the mark store can't be asked whether it fits this configuration: %w", err)
		if on == nil {
			err = errors.Join(err, next.backing.close())
		}
		return nil, err
	}
	return next, nil
}

// needsRestart names every difference that can't be taken up while running. Marks are among them: requests of the old configuration and of the new
// one would be ordered by two marks.
func needsRestart(old, next *config.Config) error {
	var errs []error
	differs := func(key string, same bool) {
		if !same {
			errs = append(errs, fmt.Errorf("%s: this change needs a restart", key))
		}
	}
	differs("id", old.ID == next.ID)
	differs("listen", old.Listen == next.Listen)
	differs("listen_tls (on or off)", old.ListenTLS.On() == next.ListenTLS.On())
	differs("admin.listen", old.Admin.Listen == next.Admin.Listen)
	differs("upstream.readiness", old.Upstream.Readiness == next.Upstream.Readiness)
	differs("tracing.endpoint", reflect.DeepEqual(old.Tracing, next.Tracing))
	differs("limits.head", old.Limits.Head == next.Limits.Head)
	differs("limits.connections", old.Limits.Connections == next.Limits.Connections)
	differs("store.file.path", old.Store.File.Path == next.Store.File.Path)
	if next.Store.File.Path == "" && old.Store.File.Path == "" {
		differs("store.postgres.url (another database)", sameDatabase(old.Store.Postgres.URL, next.Store.Postgres.URL))
	}
	for _, g := range next.Guards {
		i := slices.IndexFunc(old.Guards, func(o config.Guard) bool { return o.Name == g.Name })
		differs("guard "+g.Name+": mark and order", i < 0 || reflect.DeepEqual(old.Guards[i].Mark, g.Mark) && old.Guards[i].Order == g.Order && old.Guards[i].Advance == g.Advance &&
			reflect.DeepEqual(old.Guards[i].Effects, g.Effects))
		// The first guard that orders effects brings the register with it; further ones have to be announced in it.
		differs("guard "+g.Name+": a new guard that orders effects", i >= 0 || !g.OrdersEffects())
	}
	for _, g := range old.Guards {
		gone := !slices.ContainsFunc(next.Guards, func(n config.Guard) bool { return n.Name == g.Name })
		differs("guard "+g.Name+": removing a guard that orders effects", !g.OrdersEffects() || !gone)
	}
	return errors.Join(errs...)
}

// logFaults writes a line for each thing that is wrong.
func logFaults(logger hclog.Logger, err error) {
	const message = "the configuration can't be used; the one before stays in use"
	if faults, ok := errors.AsType[*config.Faults](err); ok {
		for _, f := range faults.List() {
			logger.Error(message, "event", "config_rejected", "file", f.File, "line", f.Line, "column", f.Column, "key", f.Key, "error", f.Message)
		}
		return
	}
	logger.Error(message, "event", "config_rejected", "error", err)
}
