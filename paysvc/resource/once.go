package resource

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"fenceline/internal/httperr"
	"fenceline/paysvc/payout"
)

// request is the call as the ledger of requests knows it: a write to the payout that asks for content.
func (a *API) request(c *call, operation payout.Operation, id uuid.UUID, content ...string) *payout.Request {
	return &payout.Request{
		Operation: operation, Key: c.key, Subject: id.String(), Token: c.holder.Token, Content: content,
		Render: func(result any) (payout.Answer, error) { return a.render(c, result) },
	}
}

func (a *API) createRequest(c *call, d payout.Draft) *payout.Request {
	return &payout.Request{
		Operation: payout.OperationCreate, Key: d.IdempotencyKey,
		Content: []string{d.AccountID.String(), strconv.FormatInt(int64(d.Money.Minor), 10), string(d.Money.Currency)},
		Render: func(result any) (payout.Answer, error) {
			answer, err := a.render(c, result)
			if p, ok := result.(payout.Payout); ok && p.ID == d.ID {
				answer.Status = 201
			}
			return answer, err
		},
	}
}

// render makes the bytes that are kept in the effect's transaction; the handlers make the same ones of the same result.
func (a *API) render(c *call, result any) (payout.Answer, error) {
	var wire any
	switch r := result.(type) {
	case payout.Payout:
		wire = wirePayout(r)
	case payout.Posting:
		wire = wirePosting(r)
	case *payout.InsufficientFundsError:
		refusal := a.catalogue(c, r)
		return payout.Answer{Status: refusal.Status, Body: refusal.Body(c.traceID)}, nil
	default:
		return payout.Answer{}, fmt.Errorf("no answer for a %T", result)
	}
	body, err := json.Marshal(wire)
	return payout.Answer{Status: 200, Body: body}, err
}

// replayed answers a request that had its effect before, with its first answer byte for byte.
func (a *API) replayed(c *call, r *payout.Request) bool {
	if r.Replayed == nil {
		return false
	}
	a.metrics.replayed.Inc()
	a.logger.Info("request answered from the ledger of requests", "event", "request_replayed", "operation", string(r.Operation),
		"payoutId", r.Subject, "status", r.Replayed.Status, "ownerId", c.holder.Owner, "traceId", c.traceID)
	httperr.WriteBody(c.RequestCtx, r.Replayed.Status, r.Replayed.Body)
	return true
}
