package resource

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"fenceline/internal/httperr"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

const (
	defaultLimit = 100
	maxLimit     = 500
)

// listPayouts is P1.
func (a *API) listPayouts(c *call) error {
	values, err := c.query("state", "accountId", "limit", "cursor")
	if err != nil {
		return err
	}
	q, err := payoutQuery(values)
	if err != nil {
		return err
	}
	payouts, more, err := a.store.Payouts(c.ctx, q)
	if err != nil {
		return err
	}
	page := payapi.PayoutPage{Payouts: make([]payapi.Payout, 0, len(payouts))}
	for _, p := range payouts {
		page.Payouts = append(page.Payouts, wirePayout(p))
	}
	if more {
		last := payouts[len(payouts)-1]
		page.NextCursor = encodeCursor(payout.Position{CreatedAt: last.CreatedAt, ID: last.ID})
	}
	return httperr.WriteJSON(c.RequestCtx, 200, page)
}

func payoutQuery(values url.Values) (payout.Query, error) {
	q := payout.Query{Limit: defaultLimit}
	var err error
	if text := values.Get("state"); text != "" {
		if q.State, err = payout.ParseState(text); err != nil {
			return q, err
		}
	}
	if text := values.Get("accountId"); text != "" {
		id, err := payout.ParseID("accountId", text)
		if err != nil {
			return q, err
		}
		q.AccountID = uuid.NullUUID{UUID: id, Valid: true}
	}
	if text := values.Get("limit"); text != "" {
		q.Limit, err = strconv.Atoi(text)
		if err != nil || q.Limit < 1 || q.Limit > maxLimit {
			return q, fmt.Errorf("%w: limit: want a whole number from 1 to %d", payout.ErrInvalid, maxLimit)
		}
	}
	if text := values.Get("cursor"); text != "" {
		position, err := decodeCursor(text)
		if err != nil {
			return q, err
		}
		q.After = &position
	}
	return q, nil
}

// getPayout is P4.
func (a *API) getPayout(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	id, err := c.pathID("payoutId")
	if err != nil {
		return err
	}
	p, err := a.store.Payout(c.ctx, id)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 200, wirePayout(p))
}

// getAccount is P5.
func (a *API) getAccount(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	id, err := c.pathID("accountId")
	if err != nil {
		return err
	}
	account, err := a.store.Account(c.ctx, id)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 200, payapi.Account{
		AccountID: account.ID.String(), Currency: string(account.Balance.Currency), BalanceMinor: int64(account.Balance.Minor),
		LedgerSumMinor: int64(account.LedgerSum), UpdatedAt: payapi.Time{Time: account.UpdatedAt},
	})
}

func wirePayout(p payout.Payout) payapi.Payout {
	return payapi.Payout{
		PayoutID: p.ID.String(), AccountID: p.AccountID.String(), AmountMinor: int64(p.Money.Minor), Currency: string(p.Money.Currency),
		State: string(p.State), ClaimedBy: p.ClaimedBy, ClaimToken: int64(p.ClaimToken), IdempotencyKey: p.IdempotencyKey,
		AttemptCount: p.AttemptCount, CreatedAt: payapi.Time{Time: p.CreatedAt}, UpdatedAt: payapi.Time{Time: p.UpdatedAt},
	}
}
