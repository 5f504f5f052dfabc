package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fenceline/internal/credential"
)

// readyTimeout bounds one answer of /readyz: a probe that hangs tells less than
// one that says "not ready".
const readyTimeout = 2 * time.Second

// Check says whether one thing that readiness needs is in order. Its error is shown to
// whoever may see /readyz, so it must hold no secret.
type Check func(ctx context.Context) error

// Admin is the listener for health and metrics, apart from the data port. It
// serves /livez (the process runs; asks nothing), /readyz (every check, as JSON)
// and /metrics, and what a daemon adds with Handle.
type Admin struct {
	mux      *http.ServeMux
	server   *http.Server
	logger   hclog.Logger
	draining atomic.Bool
	tokens   func() *credential.Tokens
	refused  *prometheus.CounterVec

	mu     sync.Mutex
	checks map[string]Check
}

// NewAdmin returns an admin server that exposes the registry's metrics.
func NewAdmin(registry *prometheus.Registry, logger hclog.Logger) *Admin {
	a := &Admin{mux: http.NewServeMux(), logger: logger, checks: map[string]Check{}}
	a.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, map[string]bool{"ok": true}) })
	a.mux.HandleFunc("GET /readyz", a.readyz)
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	return a
}

// Protect asks for a bearer token on everything but /livez and /readyz, which balancers and supervisors ask without one. Tokens gives those that
// are known when a request comes; nil: nobody is asked then.
func (a *Admin) Protect(registry prometheus.Registerer, tokens func() *credential.Tokens) {
	a.tokens = tokens
	a.refused = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "admin_requests_refused_total", Help: "Requests to the admin listener without a token that is known."}, []string{"reason"})
	registry.MustRegister(a.refused)
	for _, reason := range []string{reasonNoToken, reasonMalformed, reasonWrongToken} {
		a.refused.WithLabelValues(reason)
	}
}

// Why a request was refused.
const (
	reasonNoToken    = "token_missing"
	reasonMalformed  = "token_malformed"
	reasonWrongToken = "token_wrong"
)

// ServeHTTP implements http.Handler.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reason := a.whyRefused(r)
	if reason == "" {
		a.mux.ServeHTTP(w, r)
		return
	}
	a.refused.WithLabelValues(reason).Inc()
	a.logger.Warn("caller refused", "event", "caller_refused", "reason", reason, "call", fmt.Sprintf("%s %.200s", r.Method, r.URL.Path), "remote", r.RemoteAddr)
	w.Header().Set("WWW-Authenticate", "Bearer")
	writeJSON(w, http.StatusUnauthorized, map[string]string{"message": "send a token of admin.token_file as Authorization: Bearer TOKEN (" + reason + ")"})
}

// whyRefused is empty for a request that may be answered.
func (a *Admin) whyRefused(r *http.Request) string {
	if a.tokens == nil || r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
		return ""
	}
	tokens, values := a.tokens(), r.Header.Values("Authorization")
	switch {
	case tokens == nil:
		return ""
	case len(values) == 0:
		return reasonNoToken
	case len(values) > 1:
		return reasonMalformed
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer") || !credential.ValidToken(token):
		return reasonMalformed
	case !tokens.Has(token):
		return reasonWrongToken
	}
	return ""
}

// AddCheck adds a readiness check under a name that appears in the answer.
func (a *Admin) AddCheck(name string, check Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks[name] = check
}

// Handle adds an endpoint (a net/http pattern, such as "GET /routes").
func (a *Admin) Handle(pattern string, handler http.Handler) { a.mux.Handle(pattern, handler) }

// Drain makes /readyz fail from now on, so that a balancer sends no new work.
func (a *Admin) Drain() { a.draining.Store(true) }

// Serve answers on the listener until Stop. It returns at once; a failure later is
// reported to failed.
func (a *Admin) Serve(l net.Listener, failed chan<- error) {
	a.logger.Info("listening", "event", "listening", "listener", "admin", "address", l.Addr().String())
	go func() {
		if err := a.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			report(failed, fmt.Errorf("admin listener: %w", err))
		}
	}()
}

// Stop closes the listener and waits for answers under way.
func (a *Admin) Stop(ctx context.Context) error {
	if err := a.server.Shutdown(ctx); err != nil {
		return errors.Join(err, a.server.Close())
	}
	return nil
}

// checkResult is one line of the /readyz answer.
type checkResult struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

func (a *Admin) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	results := a.runChecks(ctx)
	status := http.StatusOK
	for _, res := range results {
		if !res.OK {
			status = http.StatusServiceUnavailable
		}
	}
	writeJSON(w, status, map[string]any{"ok": status == http.StatusOK, "checks": results})
}

// Ready runs every check and returns nil when all hold, else an error that
// names each failing check and its reason.
func (a *Admin) Ready(ctx context.Context) error {
	results := a.runChecks(ctx)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if !results[name].OK {
			errs = append(errs, fmt.Errorf("%s: %s", name, results[name].Reason))
		}
	}
	return errors.Join(errs...)
}

// runChecks runs all checks side by side, so that one slow check doesn't hide
// the state of the others.
func (a *Admin) runChecks(ctx context.Context) map[string]checkResult {
	a.mu.Lock()
	checks := maps.Clone(a.checks)
	a.mu.Unlock()
	checks["draining"] = func(context.Context) error {
		if a.draining.Load() {
			return errors.New("the process is stopping")
		}
		return nil
	}

	var mu sync.Mutex
	var wg sync.WaitGroup
	results := make(map[string]checkResult, len(checks))
	for name, check := range checks {
		wg.Go(func() {
			res := checkResult{OK: true}
			if err := check(ctx); err != nil {
				res = checkResult{Reason: err.Error()}
			}
			mu.Lock()
			defer mu.Unlock()
			results[name] = res
		})
	}
	wg.Wait()
	return results
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone; there is nobody to tell
}

// report hands over the first failure; later ones are consequences of it.
func report(failed chan<- error, err error) {
	select {
	case failed <- err:
	default:
	}
}
