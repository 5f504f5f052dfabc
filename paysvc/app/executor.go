package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
	"fenceline/paysvc/executor"
	"fenceline/paysvc/payout"
)

// Executor is the command executor.
type Executor struct {
	Process        `embed:""`
	Lockd          string        `help:"The lock service." env:"LOCKD_URL" default:"http://127.0.0.1:7400" placeholder:"URL"`
	LockdTokenFile string        `help:"File with the bearer token for the lock service." env:"LOCKD_TOKEN_FILE" placeholder:"FILE"`
	LockBackend    string        `help:"What the lock service runs on, ${enum}; only a label of the metric lock_session_lost_total." env:"PAYSVC_LOCK_BACKEND" enum:"pg,etcd" default:"pg"`
	Resource       string        `help:"The payment-resource, or the sidecar before it." env:"PAYSVC_RESOURCE_URL" default:"http://127.0.0.1:8081" placeholder:"URL"`
	RailProxy      string        `help:"The rail-proxy, or the sidecar before it." env:"PAYSVC_RAIL_PROXY_URL" default:"http://127.0.0.1:8083" placeholder:"URL"`
	Barrier        []string      `help:"A guard whose sidecar orders effects, as GUARD=URL; once for each. Its barrier is passed after the lock is taken and before anything is read: what a former holder still has under way is over then." placeholder:"GUARD=URL" sep:"none"`
	Owner          string        `help:"Name of this worker, 1 to 64 characters. Default: executor-<host>-<pid>." env:"PAYSVC_OWNER"`
	SessionTTL     time.Duration `help:"Time to live of the session at the lock service, 1s to 60s." env:"PAYSVC_SESSION_TTL" default:"15s"`
	LockTTL        time.Duration `help:"Time to live of a lease, 100ms to 300s. It is renewed while the work lasts." env:"PAYSVC_LOCK_TTL" default:"30s"`
	AcquireWait    time.Duration `help:"How long to try to get a lock that another worker holds, before the payout is skipped." env:"PAYSVC_ACQUIRE_WAIT" default:"1s"`
	Account        string        `help:"Work on the payouts of this account only." placeholder:"UUID"`
	Payout         string        `help:"Work on this payout only." placeholder:"UUID"`
	Once           bool          `help:"Work once on the payout, or on every payout with something left to do, and exit."`
	PollInterval   time.Duration `help:"Pause between two looks at the backlog." env:"PAYSVC_POLL_INTERVAL" default:"1s"`
	Timeout        time.Duration `help:"Time limit for one request; above a sidecar's wait, connect and response times together." env:"PAYSVC_REQUEST_TIMEOUT" default:"20s"`
	AdminListen    string        `help:"Address of health and metrics; none when left out." env:"PAYSVC_ADMIN_LISTEN" placeholder:"ADDRESS"`
	SkipLockCheck  bool          `help:"For experiments only: write without asking the lock service, and whatever it says."`
	PauseBefore    string        `help:"For experiments: before the request of that step is sent, log event pause_point and wait for a line on standard input: claim=stdin, submit=stdin or post=stdin." placeholder:"STEP=stdin"`
}

// Help is shown by --help.
func (*Executor) Help() string {
	return `Takes the lock payout:<account>, reads the payout and what is on record at the rail-proxy, then claims, submits and posts
under the grant's fencing token. Every write is sent once. How work on each payout ended is the log event payout_outcome.

Exit codes with --once, the most serious outcome first:
  5  ambiguous: the outcome of a claim, submission or posting is unknown; a person must look
  3  fenced out: a guard had seen a newer token
  4  lock lost: the lease was over before the next step
  1  aborted by a fault or a refusal, or another error
  6  nothing acquired: other workers hold the locks
  0  done: posted, or nothing was left to do

Without --once it works until SIGINT or SIGTERM and exits with 0. A payout that ended fenced out, lock lost or ambiguous isn't
touched again by this process.`
}

// exitError is an outcome that isn't success.
type exitError struct {
	code    int
	summary executor.Summary
}

func (e *exitError) Error() string {
	return fmt.Sprintf("executor: not all work is done: %v", e.summary)
}

// ExitCode is the exit code of the process.
func (e *exitError) ExitCode() int { return e.code }

// lockTimeout bounds a call of the lock service. A check that takes longer is no better than none.
const lockTimeout = 5 * time.Second

// Run runs the role until a signal ends it, or to its end with --once.
func (c *Executor) Run() error {
	logger, err := daemon.NewLogger("executor", c.LogLevel, os.Stderr)
	if err != nil {
		return err
	}
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("host name for the default owner: %w", err)
		}
		c.Owner = fmt.Sprintf("executor-%.40s-%d", host, os.Getpid())
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	registry := daemon.NewRegistry()
	worker, err := c.build(options, logger.With("ownerId", c.Owner), newExecutorMetrics(registry, c.LockBackend))
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	stop, err := c.serveAdmin(ctx, registry, logger)
	if err != nil {
		return err
	}
	summary, err := c.work(ctx, worker)
	return errors.Join(err, stop(), exit(summary))
}

// exit is nil when everything is done.
func exit(summary executor.Summary) error {
	if code := summary.ExitCode(); code != executor.ExitDone {
		return &exitError{code: code, summary: summary}
	}
	return nil
}

func (c *Executor) work(ctx context.Context, worker *executor.Executor) (executor.Summary, error) {
	if c.Once {
		return worker.Once(ctx)
	}
	worker.Run(ctx)
	return nil, nil //nolint:nilnil // stopped by a signal, which is the way to end it
}

func (c *Executor) options() (executor.Options, error) {
	options := executor.Options{
		Owner: c.Owner, SessionTTL: c.SessionTTL, LockTTL: c.LockTTL, AcquireWait: c.AcquireWait, PollInterval: c.PollInterval,
		SkipLockCheck: c.SkipLockCheck,
	}
	errs := []error{
		lock.ValidDuration("session-ttl in milliseconds", c.SessionTTL, lock.MinSessionTTL, lock.MaxSessionTTL),
		lock.ValidDuration("lock-ttl in milliseconds", c.LockTTL, lock.MinLockTTL, lock.MaxLockTTL),
	}
	if c.AcquireWait < 0 || c.PollInterval <= 0 || c.Timeout <= 0 {
		errs = append(errs, errors.New("acquire-wait: want 0 or more; poll-interval and timeout: want more than 0"))
	}
	for _, id := range []struct {
		name, text string
		into       *string
	}{{"account", c.Account, &options.AccountID}, {"payout", c.Payout, &options.PayoutID}} {
		if id.text != "" {
			parsed, err := payout.ParseID(id.name, id.text)
			errs = append(errs, err)
			*id.into = parsed.String()
		}
	}
	for _, text := range c.Barrier {
		b, err := executor.ParseBarrier(text)
		errs = append(errs, err)
		options.Barriers = append(options.Barriers, b)
	}
	if c.PauseBefore != "" {
		step, err := executor.ParsePause(c.PauseBefore)
		errs = append(errs, err)
		options.PauseBefore, options.PauseInput = step, os.Stdin
	}
	return options, errors.Join(errs...)
}

func (c *Executor) build(options executor.Options, logger hclog.Logger, metrics *executorMetrics) (*executor.Executor, error) {
	if options.SkipLockCheck {
		logger.Warn("LOCK CHECKS ARE OFF: this worker writes whether or not it holds its lock; for experiments only", "event", "lock_check_skipped")
	}
	locks := lockclient.Options{URL: c.Lockd, TokenFile: c.LockdTokenFile, Timeout: lockTimeout}
	if _, err := lockclient.Connect(options.Owner, locks); err != nil { // checked now rather than at the first payout
		return nil, err
	}
	resource, err := executor.NewClient("resource", c.Resource, c.Timeout)
	if err != nil {
		return nil, err
	}
	rail, err := executor.NewClient("rail-proxy", c.RailProxy, c.Timeout)
	if err != nil {
		return nil, err
	}
	return executor.New(options, locks, resource, rail, logger, metrics), nil
}

// serveAdmin serves health and metrics if an address is given.
func (c *Executor) serveAdmin(ctx context.Context, registry *prometheus.Registry, logger hclog.Logger) (stop func() error, err error) {
	if c.AdminListen == "" {
		return func() error { return nil }, nil
	}
	if err := checkBind(c.AdminListen, false); err != nil {
		return nil, err
	}
	listener, err := daemon.Listen(ctx, c.AdminListen)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	admin := daemon.NewAdmin(registry, logger)
	admin.Serve(listener, make(chan error, 1)) // without it the work goes on; scrapes show that it is gone
	return func() error {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Grace)
		defer cancel()
		return admin.Stop(stopCtx)
	}, nil
}

// executorMetrics implements executor.Recorder.
type executorMetrics struct {
	execute *prometheus.HistogramVec
	backlog prometheus.Gauge
	lost    prometheus.Counter
}

func newExecutorMetrics(registry prometheus.Registerer, lockBackend string) *executorMetrics {
	m := &executorMetrics{
		execute: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "payout_execute_seconds", Help: "Time of the work on one payout.", Buckets: daemon.LatencyBuckets(),
		}, []string{"outcome"}),
		backlog: prometheus.NewGauge(prometheus.GaugeOpts{Name: "payout_backlog_age_seconds", Help: "Age of the oldest pending payout."}),
	}
	lost := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lock_session_lost_total", Help: "Locks that were lost while they were held.",
	}, []string{"backend"})
	m.lost = lost.WithLabelValues(lockBackend)
	registry.MustRegister(m.execute, m.backlog, lost)
	for _, outcome := range []string{labelPosted, labelFailed, labelAbandoned, labelAmbiguous} {
		m.execute.WithLabelValues(outcome) // every series is there from the start
	}
	return m
}

// Values of the label outcome. abandoned: the worker gave the payout up, for whatever reason.
const (
	labelPosted    = "posted"
	labelFailed    = "failed"
	labelAbandoned = "abandoned"
	labelAmbiguous = "ambiguous"
)

func (m *executorMetrics) Executed(outcome executor.Outcome, took time.Duration) {
	label := labelAbandoned
	switch outcome {
	case executor.Posted:
		label = labelPosted
	case executor.Failed:
		label = labelFailed
	case executor.Ambiguous:
		label = labelAmbiguous
	case executor.Abandoned, executor.FencedOut, executor.LockLost, executor.Aborted, executor.Skipped:
	}
	m.execute.WithLabelValues(label).Observe(took.Seconds())
}

// LockLost implements executor.Recorder.
func (m *executorMetrics) LockLost() { m.lost.Inc() }

func (m *executorMetrics) BacklogAge(age time.Duration) { m.backlog.Set(age.Seconds()) }
