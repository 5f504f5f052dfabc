package app

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/submission"
)

// RailProxy is the command rail-proxy.
type RailProxy struct {
	Process            `embed:""`
	PayDB              `embed:""`
	Listen             string        `help:"Address of the API: host:port or unix:/path?mode=0660." env:"PAYSVC_LISTEN" default:"127.0.0.1:8082"`
	AdminListen        string        `help:"Address of health and metrics." env:"PAYSVC_ADMIN_LISTEN" default:"127.0.0.1:9082"`
	AllowAnyHost       bool          `help:"Bind to an address that others can reach, although the rail-proxy asks nobody who they are." env:"PAYSVC_ALLOW_ANY_HOST"`
	Rail               string        `help:"The rail." env:"PAYSVC_RAIL_URL" default:"http://127.0.0.1:8090" placeholder:"URL"`
	RailConnectTimeout time.Duration `help:"Time limit for connecting to the rail." env:"PAYSVC_RAIL_CONNECT_TIMEOUT" default:"1s"`
	RailTimeout        time.Duration `help:"Time limit for the rail's answer; after it the outcome is unknown for good. Together with twice the store's timeout it stays below a sidecar's response_timeout." env:"PAYSVC_RAIL_TIMEOUT" default:"3s"`
	FencingEnabled     bool          `help:"Fenced mode: admit a submission, with its token compared and its intent on record, before anything is presented (rail.proxy.fencing.enabled). A sidecar before it must only check." env:"RAIL_PROXY_FENCING_ENABLED"`
}

// Run runs the role until a signal ends it.
func (c *RailProxy) Run() error {
	return c.run("rail-proxy", func(logger hclog.Logger) (daemon.App, error) { return c.app(logger) })
}

// app prepares the role; nothing runs before Start.
func (c *RailProxy) app(logger hclog.Logger) (*railProxyApp, error) {
	if c.RailConnectTimeout <= 0 || c.RailTimeout <= 0 {
		return nil, errors.New("rail-connect-timeout and rail-timeout: want more than 0")
	}
	rail, err := railproxy.NewClient(c.Rail, c.RailConnectTimeout, c.RailTimeout)
	if err != nil {
		return nil, err
	}
	return &railProxyApp{service: newService(logger), flags: c, rail: rail}, nil
}

// railProxyApp implements daemon.App.
type railProxyApp struct {
	*service
	flags *RailProxy
	rail  *railproxy.Client
}

// Start implements daemon.App.
func (a *railProxyApp) Start(ctx context.Context) error {
	c := a.flags
	logFencing(a.logger, "rail.proxy.fencing.enabled", c.FencingEnabled)
	check := func(pool *pgxpool.Pool) daemon.Check { return paydb.NewRail(pool, c.StoreTimeout).Check }
	if c.FencingEnabled {
		check = func(pool *pgxpool.Pool) daemon.Check { return paydb.NewFencedRail(pool, c.StoreTimeout).Check }
	}
	pool, err := a.openPayDB(ctx, c.PayDB, "rail-proxy", check)
	if err != nil {
		return err
	}
	logger, metrics := a.logger.Named("rail"), newRailMetrics(a.registry)
	submissions := railproxy.NewService(paydb.NewRail(pool, c.StoreTimeout), a.rail, c.StoreTimeout, logger, metrics)
	if c.FencingEnabled {
		submissions = railproxy.NewFencedService(paydb.NewFencedRail(pool, c.StoreTimeout), a.rail, c.StoreTimeout, logger, metrics)
	}
	server := railproxy.NewServer(submissions, a.logger.Named("api"))
	return a.serve(ctx, Listeners{Listen: c.Listen, AdminListen: c.AdminListen, AllowAnyHost: c.AllowAnyHost},
		server, map[string]daemon.Check{"paydb": check(pool)})
}

// railMetrics implements railproxy.Recorder.
type railMetrics struct {
	submissions *prometheus.CounterVec
	duplicates  prometheus.Counter
	fenced      prometheus.Counter
	refused     prometheus.Counter
}

func newRailMetrics(registry prometheus.Registerer) *railMetrics {
	m := &railMetrics{
		submissions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rail_submission_total", Help: "Submissions by what came of them."}, []string{"outcome"}),
		duplicates:  prometheus.NewCounter(prometheus.CounterOpts{Name: "rail_duplicate_attempted_total", Help: "Submissions of a payout that had one already. Healthy at 0."}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lock_fenced_out_total", Help: "Writes refused because a newer token had been seen. Healthy at 0.",
			ConstLabels: prometheus.Labels{"resource": string(payout.GuardRail)},
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "payout_transition_refused_total", Help: "Transitions that the state machine doesn't have.",
		}),
	}
	registry.MustRegister(m.submissions, m.duplicates, m.fenced, m.refused)
	for _, outcome := range []submission.Outcome{submission.Acked, submission.Rejected, submission.Timeout, submission.Fenced} {
		m.submissions.WithLabelValues(outcomeLabel(outcome)) // every series is there from the start
	}
	return m
}

func (m *railMetrics) Submitted(outcome submission.Outcome) {
	m.submissions.WithLabelValues(outcomeLabel(outcome)).Inc()
}

// Duplicate implements railproxy.Recorder, as do the others.
func (m *railMetrics) Duplicate()         { m.duplicates.Inc() }
func (m *railMetrics) FencedOut()         { m.fenced.Inc() }
func (m *railMetrics) TransitionRefused() { m.refused.Inc() }

func outcomeLabel(outcome submission.Outcome) string { return strings.ToLower(string(outcome)) }
