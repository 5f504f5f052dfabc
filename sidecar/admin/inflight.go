package admin

import (
	"net/http"
	"strconv"

	"github.com/hashicorp/go-hclog"

	"fenceline/sidecar/mark"
)

// settlement is the body of POST /inflight/ROW/settle.
type settlement struct {
	Operator string `json:"operator"`
	Reason   string `json:"reason"`
}

// maxInFlight bounds one answer of GET /inflight.
const maxInFlight = 1000

// listInFlight answers GET /inflight: the requests of all sidecars on the store, the oldest first.
func listInFlight(r *http.Request, s State) (int, any) {
	list, err := s.Store.Standing(r.Context(), r.URL.Query().Get("guard"), maxInFlight)
	if err != nil {
		return http.StatusServiceUnavailable, message("the register can't be read now; /readyz says why")
	}
	out := []map[string]any{}
	for _, one := range list {
		row := map[string]any{
			"row": int64(one.Row), "guard": one.Guard, "key": one.Key, "token": int64(one.Token), "life": one.Life, "sidecar": one.Sidecar,
			"route": one.Route, "ownerId": one.Owner, "admittedAt": one.AdmittedAt.UTC(),
		}
		if !one.UnsettledAt.IsZero() {
			row["unsettledAt"] = one.UnsettledAt.UTC()
		}
		out = append(out, row)
	}
	return http.StatusOK, map[string]any{"inflight": out, "truncated": len(list) == maxInFlight}
}

// settleRow answers POST /inflight/ROW/settle: an operator says that a request whose outcome is unknown can have no further effect. One that is still under way is
// left alone.
func settleRow(r *http.Request, s State, logger hclog.Logger) (int, any) {
	var in settlement
	if status, problem := decode(r, &in); status != 0 {
		return status, problem
	}
	row, err := strconv.ParseInt(r.PathValue("row"), 10, 64)
	if err != nil || row < 1 || in.Operator == "" || in.Reason == "" {
		return http.StatusBadRequest, message("want the row of a request (GET /inflight), operator and reason")
	}
	found, err := s.Store.SettleUnsettled(r.Context(), mark.Row(row), in.Operator, in.Reason)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, message("the register can't be used now (/readyz says why); whether the request was settled isn't known")
	case !found:
		return http.StatusConflict, message("there is no such request, or its outcome isn't called unknown: it is under way")
	}
	logger.Warn("an operator settled a request", "event", "request_settled", "by", in.Operator, "reason", in.Reason, "row", row)
	return http.StatusOK, map[string]any{"row": row, "settled": true}
}
