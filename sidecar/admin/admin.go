// Package admin adds the sidecar's own pages to its admin listener: what it is configured to do, and what stands in its marks.
package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/hashicorp/go-hclog"

	"fenceline/internal/daemon"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// Hash identifies a configuration's text, for comparing what runs with what is in a repository.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16]
}

// State is what the sidecar runs with at a moment.
type State struct {
	Config *config.Config
	Hash   string
	Rules  *policy.Policy
	Store  Store
}

// Store is what operators look at and work on.
type Store interface {
	mark.OperatedStore
	mark.Register
}

// Register adds GET /config (secrets redacted), /routes, /marks?guard=&key=, /inflight and /log-level, and POST /marks/raise, /inflight/ROW/settle and
// /log-level. State gives what is in use when a request comes.
func Register(a *daemon.Admin, logger hclog.Logger, state func() State) {
	a.Handle("GET /config", answer(func(*http.Request) (int, any) {
		s := state()
		return http.StatusOK, map[string]any{"hash": s.Hash, "config": s.Config}
	}))
	a.Handle("GET /routes", answer(func(*http.Request) (int, any) {
		s := state()
		routes := []map[string]any{}
		for _, r := range s.Rules.Routes() {
			routes = append(routes, map[string]any{
				"name": r.Name, "methods": r.Methods, "path": r.Path, "pass": r.Pass, "guard": r.Route.Guard, "admit": r.Admit, "mode": r.Mode,
			})
		}
		return http.StatusOK, map[string]any{"routes": routes, "unmatched": s.Config.Unmatched}
	}))
	a.Handle("GET /log-level", answer(func(*http.Request) (int, any) {
		return http.StatusOK, map[string]string{"level": logger.GetLevel().String()}
	}))
	a.Handle("POST /log-level", answer(func(r *http.Request) (int, any) { return setLevel(r, logger) }))
	a.Handle("GET /marks", answer(func(r *http.Request) (int, any) { return readMark(r, state()) }))
	a.Handle("GET /inflight", answer(func(r *http.Request) (int, any) { return listInFlight(r, state()) }))
	a.Handle("POST /inflight/{row}/settle", answer(func(r *http.Request) (int, any) { return settleRow(r, state(), logger) }))
	a.Handle("POST /marks/raise", answer(func(r *http.Request) (int, any) { return raiseMark(r, state(), logger) }))
}

func message(format string, args ...any) map[string]string {
	return map[string]string{"message": fmt.Sprintf(format, args...)}
}

// readMark answers GET /marks. It tells a guard that there isn't from a store that is down.
func readMark(r *http.Request, s State) (int, any) {
	guard, text := r.URL.Query().Get("guard"), r.URL.Query().Get("key")
	if guard == "" || text == "" {
		return http.StatusBadRequest, message("want /marks?guard=NAME&key=KEY")
	}
	key, status, problem := s.key(guard, text)
	if status != 0 {
		return status, problem
	}
	token, found, err := s.Store.Read(r.Context(), guard, key)
	if err != nil {
		return http.StatusServiceUnavailable, message("the mark store can't be read now; /readyz says why")
	}
	return http.StatusOK, map[string]any{"guard": guard, "key": key, "found": found, "token": int64(token)}
}

// key gives the one spelling of a guard's key, or a status with what is wrong.
func (s State) key(guard, text string) (key string, status int, problem any) {
	routes := s.Rules.Routes()
	i := slices.IndexFunc(routes, func(route *policy.Route) bool { return route.Guard != nil && route.Guard.Name == guard })
	if i < 0 {
		return "", http.StatusNotFound, message("there is no guard %q; /routes lists them", guard)
	}
	key, err := routes[i].Canonical(text)
	if err != nil {
		return "", http.StatusBadRequest, message("guard %s: %s", guard, err)
	}
	return key, 0, nil
}

func answer(build func(*http.Request) (int, any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := build(r)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may be gone; there is nobody to tell
	})
}
