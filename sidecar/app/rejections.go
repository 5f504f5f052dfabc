package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

// recordRejections keeps fenced-out requests in fence.rejection, beside the marks. A database without that table is no fault: marks may live in the
// resource's own.
func (a *App) recordRejections(ctx context.Context, cfg *config.Config, registry prometheus.Registerer) {
	log := pgmark.NewRejections(cfg.ID, func() *pgmark.Store {
		store, _ := a.generation().store.(*pgmark.Store) // a file never takes a database's place
		return store
	})
	a.recorder = mark.NewRecorder(ctx, log, cfg.RejectionsKept, func(err error) {
		a.logger.Warn("rejections can't be recorded in fence.rejection; they are in the log (sidecar migrate makes the table)", "event", "rejections_unavailable", "error", err)
	})
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fence_rejections_dropped_total", Help: "Rejections that found no place on their way to fence.rejection."},
		func() float64 { return float64(a.recorder.Dropped()) }))
	a.cleanups.Push("rejections", func(ctx context.Context) error {
		if err := a.recorder.Stop(ctx); err != nil {
			a.logger.Warn("the last rejections weren't recorded", "event", "rejections_unavailable", "error", err)
		}
		return nil
	})
}
