// Package admin adds the sidecar's own pages to its admin listener: what it is configured to do, and what stands in its marks.
package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"

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
		guard, key := r.URL.Query().Get("guard"), r.URL.Query().Get("key")
		if guard == "" || key == "" {
			return http.StatusBadRequest, map[string]string{"message": "want /marks?guard=NAME&key=KEY"}
		}
		token, found, err := store.Read(r.Context(), guard, key)
		if err != nil {
			return http.StatusServiceUnavailable, map[string]string{"message": "the mark can't be read now; is the guard's name right and the store up? (see /readyz)"}
		}
		return http.StatusOK, map[string]any{"guard": guard, "key": key, "found": found, "token": int64(token)}
	}))
}

func answer(build func(*http.Request) (int, any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := build(r)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may be gone; there is nobody to tell
	})
}
