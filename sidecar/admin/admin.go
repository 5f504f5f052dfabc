// Package admin adds the sidecar's own pages to its admin listener: what it is configured to do, and what stands in its marks.
package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

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

// Register adds GET /config (secrets redacted), /routes and /marks?guard=&key=.
func Register(a *daemon.Admin, cfg *config.Config, hash string, rules *policy.Policy, store mark.Store) {
	a.Handle("GET /config", answer(func(*http.Request) (int, any) {
		return http.StatusOK, map[string]any{"hash": hash, "config": cfg}
	}))
	a.Handle("GET /routes", answer(func(*http.Request) (int, any) {
		routes := []map[string]any{}
		for _, r := range rules.Routes() {
			routes = append(routes, map[string]any{
				"name": r.Name, "methods": r.Methods, "path": r.Path, "pass": r.Pass, "guard": r.Route.Guard, "admit": r.Admit, "mode": r.Mode,
			})
		}
		return http.StatusOK, map[string]any{"routes": routes, "unmatched": cfg.Unmatched}
	}))
	a.Handle("GET /marks", answer(func(r *http.Request) (int, any) {
		return readMark(r, rules, store)
	}))
}

// readMark answers GET /marks. It tells a guard that there isn't from a store that is down.
func readMark(r *http.Request, rules *policy.Policy, store mark.Store) (int, any) {
	message := func(format string, args ...any) map[string]string {
		return map[string]string{"message": fmt.Sprintf(format, args...)}
	}
	guard, text := r.URL.Query().Get("guard"), r.URL.Query().Get("key")
	if guard == "" || text == "" {
		return http.StatusBadRequest, message("want /marks?guard=NAME&key=KEY")
	}
	routes := rules.Routes()
	i := slices.IndexFunc(routes, func(route *policy.Route) bool { return route.Guard != nil && route.Guard.Name == guard })
	if i < 0 {
		return http.StatusNotFound, message("there is no guard %q; /routes lists them", guard)
	}
	key, err := routes[i].Canonical(text)
	if err != nil {
		return http.StatusBadRequest, message("guard %s: %s", guard, err)
	}
	token, found, err := store.Read(r.Context(), guard, key)
	if err != nil {
		return http.StatusServiceUnavailable, message("the mark store can't be read now; /readyz says why")
	}
	return http.StatusOK, map[string]any{"guard": guard, "key": key, "found": found, "token": int64(token)}
}

func answer(build func(*http.Request) (int, any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := build(r)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may be gone; there is nobody to tell
	})
}
