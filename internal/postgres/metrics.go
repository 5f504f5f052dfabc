package postgres

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Statter is a pool, or something that knows which pool is in use.
type Statter interface{ Stat() *pgxpool.Stat }

// RegisterPoolMetrics exports the pool's size, its connections in use, and how often and how long
// callers waited. The pool label tells several pools of one process apart.
func RegisterPoolMetrics(reg prometheus.Registerer, name string, pool Statter) {
	labels := prometheus.Labels{"pool": name}
	gauge := func(metric, help string, value func(*pgxpool.Stat) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metric, Help: help, ConstLabels: labels},
			func() float64 { return value(pool.Stat()) }))
	}
	counter := func(metric, help string, value func(*pgxpool.Stat) float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: metric, Help: help, ConstLabels: labels},
			func() float64 { return value(pool.Stat()) }))
	}
	gauge("db_pool_max_connections", "Upper bound of the pool.", func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) })
	gauge("db_pool_connections", "Connections open.", func(s *pgxpool.Stat) float64 { return float64(s.TotalConns()) })
	gauge("db_pool_acquired_connections", "Connections in use.", func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) })
	counter("db_pool_empty_acquire_total", "Acquires that had to wait for a connection.", func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) })
	counter("db_pool_acquire_seconds_total", "Time spent waiting for connections.", func(s *pgxpool.Stat) float64 { return s.AcquireDuration().Seconds() })
}
