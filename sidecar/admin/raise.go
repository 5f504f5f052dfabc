package admin

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"fenceline/internal/strictjson"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// raise is the body of POST /marks/raise.
type raise struct {
	Guard    string `json:"guard"`
	Key      string `json:"key"`
	Token    int64  `json:"token"`
	Operator string `json:"operator"`
	Reason   string `json:"reason"`
}

// maxBody bounds an operator's request, in bytes.
const maxBody = 16 << 10

// decode reads an operator's request; a status says that it can't be taken.
func decode(r *http.Request, into any) (status int, problem any) {
	// A page in somebody's browser can't send this type without asking first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType, message("want Content-Type: application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return http.StatusBadRequest, message("the body didn't arrive")
	}
	if err := strictjson.Decode(body, into); err != nil {
		return http.StatusBadRequest, message("%s", err)
	}
	return 0, nil
}

// raiseMark sets a mark to a higher token, whatever max_jump says: every token below is refused from then on. It never lowers.
func raiseMark(r *http.Request, s State, logger hclog.Logger) (int, any) {
	var in raise
	if status, problem := decode(r, &in); status != 0 {
		return status, problem
	}
	if strings.TrimSpace(in.Operator) == "" || strings.TrimSpace(in.Reason) == "" || in.Token < 1 {
		return http.StatusBadRequest, message("want guard, key, token (1 or more), operator and reason")
	}
	key, status, problem := s.key(in.Guard, in.Key)
	if status != 0 {
		return status, problem
	}
	if slices.ContainsFunc(s.Config.Guards, func(g config.Guard) bool { return g.Name == in.Guard && g.Advance == config.AdvanceResource }) {
		return http.StatusBadRequest, message("guard %s: the resource raises its marks, not the sidecar", in.Guard)
	}
	decision, err := s.Store.Raise(r.Context(), in.Guard, key, lock.Token(in.Token))
	switch {
	case errors.Is(err, mark.ErrStandby):
		return http.StatusConflict, message("%s; ask that sidecar", err)
	case err != nil:
		return http.StatusServiceUnavailable, message("the mark store can't be used now (/readyz says why); whether the mark was raised isn't known")
	case decision.Verdict == mark.FencedOut:
		return http.StatusConflict, map[string]any{"message": "the mark is that high already; it is never lowered here", "highestToken": int64(decision.Highest)}
	case decision.Verdict != mark.Admitted:
		return http.StatusNotFound, message("guard %s has no such key", in.Guard)
	}
	logger.Warn("an operator raised a mark", "event", "mark_raised", "resource", in.Guard, "resourceId", key, "token", in.Token, "by", in.Operator, "reason", in.Reason)
	return http.StatusOK, map[string]any{"guard": in.Guard, "key": key, "token": in.Token}
}
