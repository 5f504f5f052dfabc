package proxy

import (
	"net/http"
	"time"

	"fenceline/internal/httperr"
)

// headerDecision is on every answer that the sidecar decided, so that its 409 can be told from the resource's own.
const headerDecision = "X-Fence-Decision"

// decision is a value of the metric's label and of the header.
type decision string

const (
	passed      decision = "passed"
	admitted    decision = "admitted"
	fencedOut   decision = "fenced_out"
	busy        decision = "busy"
	invalid     decision = "invalid"
	unmatched   decision = "unmatched"
	unavailable decision = "unavailable"
)

var allDecisions = []decision{passed, admitted, fencedOut, busy, invalid, unmatched, unavailable} //nolint:gochecknoglobals // a constant list

// answer is one row of the table of answers.
type answer struct {
	status    int
	retrySafe bool // as a rule; two rows depend on the request and are set where they are given
	decision  decision
}

// answers is every answer that the sidecar gives by itself.
var answers = map[string]answer{ //nolint:gochecknoglobals // the constant table
	"INVALID_TOKEN":         {http.StatusBadRequest, false, invalid},
	"TOKEN_IMPLAUSIBLE":     {http.StatusBadRequest, false, invalid},
	"KEY_INVALID":           {http.StatusBadRequest, false, invalid},
	"KEY_NOT_FOUND":         {http.StatusNotFound, true, invalid},
	"MALFORMED_REQUEST":     {http.StatusBadRequest, false, invalid},
	"ROUTE_NOT_ALLOWED":     {http.StatusForbidden, true, unmatched},
	"METHOD_NOT_ALLOWED":    {http.StatusMethodNotAllowed, true, unmatched},
	"REQUEST_TIMEOUT":       {http.StatusRequestTimeout, true, invalid},
	"FENCED_OUT":            {http.StatusConflict, false, fencedOut},
	"BODY_TOO_LARGE":        {http.StatusRequestEntityTooLarge, false, invalid},
	"EXPECTATION_FAILED":    {http.StatusExpectationFailed, false, invalid},
	"HEAD_TOO_LARGE":        {http.StatusRequestHeaderFieldsTooLarge, false, invalid},
	"INTERNAL":              {http.StatusInternalServerError, false, unavailable},
	"UPGRADE_NOT_SUPPORTED": {http.StatusNotImplemented, false, invalid},
	"UPSTREAM_FAILED":       {http.StatusBadGateway, false, admitted},
	"FENCE_BUSY":            {http.StatusServiceUnavailable, true, busy},
	"FENCE_UNAVAILABLE":     {http.StatusServiceUnavailable, true, unavailable},
	"OVERLOADED":            {http.StatusServiceUnavailable, true, unavailable},
	"UPSTREAM_TIMEOUT":      {http.StatusGatewayTimeout, false, admitted},
	"VERSION_NOT_SUPPORTED": {http.StatusHTTPVersionNotSupported, false, invalid},
}

// retryAfter is when a client may sensibly try again what can be tried again.
const retryAfter = time.Second

// refusal is an answer on its way, with the decision that the metrics count.
type refusal struct {
	*httperr.Error
	decision decision
}

// refuse builds an answer of the table.
func refuse(code, format string, args ...any) *refusal {
	row, ok := answers[code]
	if !ok {
		row = answers["INTERNAL"]
	}
	r := &refusal{Error: httperr.New(row.status, code, format, args...), decision: row.decision}
	if row.retrySafe {
		r.Safe(0)
	}
	if row.status == http.StatusServiceUnavailable {
		r.Safe(retryAfter)
	}
	return r
}
