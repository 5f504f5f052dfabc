package resource

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"fenceline/internal/httperr"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// createPayout is P6. It needs no token: a payout that nobody has claimed is under no grant. The same request again is given the first answer.
// 201 says that the payout is new, 200 that it was made before there was a ledger of requests.
func (a *API) createPayout(c *call) error {
	if err := c.readOwner(); err != nil {
		return err
	}
	key, err := c.text(payapi.HeaderIdempotencyKey, payout.ValidText)
	if err != nil {
		return err
	}
	var request payapi.CreatePayoutRequest
	if err := c.decode(&request); err != nil {
		return err
	}
	draft, err := newDraft(request, key)
	if err != nil {
		return err
	}
	draft.Request = a.createRequest(c, draft)
	p, created, err := a.store.Create(c.ctx, draft)
	if err != nil {
		return err
	}
	if a.replayed(c, draft.Request) {
		return nil
	}
	status := 200
	if created {
		status = 201
	}
	return httperr.WriteJSON(c.RequestCtx, status, wirePayout(p))
}

func newDraft(request payapi.CreatePayoutRequest, key string) (payout.Draft, error) {
	d := payout.Draft{ID: uuid.New(), IdempotencyKey: key}
	if strings.HasPrefix(key, payout.OpeningKeyPrefix) {
		return d, fmt.Errorf("%w: %s: the prefix %q is kept for opening balances", payout.ErrInvalid, payapi.HeaderIdempotencyKey, payout.OpeningKeyPrefix)
	}
	var err error
	if d.AccountID, err = payout.ParseID("accountId", request.AccountID); err != nil {
		return d, err
	}
	if d.Money.Currency, err = payout.ParseCurrency(request.Currency); err != nil {
		return d, err
	}
	d.Money.Minor = payout.Minor(request.AmountMinor)
	return d, d.Money.Payable()
}

// claim is P2.
func (a *API) claim(c *call) error {
	if err := c.readWrite(); err != nil {
		return err
	}
	id, err := c.pathID("payoutId")
	if err != nil {
		return err
	}
	var request payapi.ClaimRequest
	if err := c.decode(&request); err != nil {
		return err
	}
	expected, err := payout.ParseState(request.ExpectedState)
	if err != nil {
		return err
	}
	c.holder.Request = a.request(c, payout.OperationClaim, id, string(expected))
	p, err := a.store.Claim(c.ctx, id, expected, c.holder)
	if err != nil {
		a.rejected(c, id.String(), payout.Claim, err)
		return err
	}
	if a.replayed(c, c.holder.Request) {
		return nil
	}
	a.logger.Info("payout claimed", "event", "payout_claimed", "payoutId", id.String(), "accountId", p.AccountID.String(),
		"token", int64(p.ClaimToken), "attemptCount", p.AttemptCount, "ownerId", p.ClaimedBy, "traceId", c.traceID)
	return httperr.WriteJSON(c.RequestCtx, 200, wirePayout(p))
}

// post is P3. Rail reference and submission id are logged with the posting; the rail-proxy keeps them.
func (a *API) post(c *call) error {
	if err := c.readWrite(); err != nil {
		return err
	}
	id, err := c.pathID("payoutId")
	if err != nil {
		return err
	}
	var request payapi.PostRequest
	if err := c.decode(&request); err != nil {
		return err
	}
	submissionID, err := payout.ParseID("submissionId", request.SubmissionID)
	if err != nil {
		return err
	}
	if err := payout.ValidText("railReference", request.RailReference); err != nil {
		return err
	}
	c.holder.Request = a.request(c, payout.OperationPost, id, request.RailReference, submissionID.String())
	posting, err := a.store.Post(c.ctx, id, c.holder)
	if err != nil {
		a.rejected(c, id.String(), payout.Post, err)
		return err
	}
	switch {
	case a.replayed(c, c.holder.Request):
		return nil
	case posting.Already:
		a.logger.Info("payout was posted by another holder; nothing was done", "event", "payout_already_posted", "payoutId", id.String(),
			"token", int64(c.holder.Token), "ownerId", c.holder.Owner, "traceId", c.traceID)
		return httperr.WriteJSON(c.RequestCtx, 200, wirePosting(posting))
	}
	a.logger.Info("payout posted", "event", "payout_posted", "payoutId", id.String(), "accountId", posting.Payout.AccountID.String(),
		"amountMinor", int64(posting.Payout.Money.Minor), "currency", string(posting.Payout.Money.Currency),
		"submissionId", submissionID.String(), "railReference", request.RailReference,
		"token", int64(c.holder.Token), "ownerId", c.holder.Owner, "traceId", c.traceID)
	return httperr.WriteJSON(c.RequestCtx, 200, wirePosting(posting))
}

func wirePosting(p payout.Posting) payapi.Posting {
	answer := payapi.Posting{
		PayoutID: p.Payout.ID.String(), State: string(p.Payout.State), BalanceMinor: int64(p.Balance),
		Entries: make([]payapi.LedgerEntry, 0, len(p.Entries)),
	}
	for _, e := range p.Entries {
		answer.Entries = append(answer.Entries, payapi.LedgerEntry{
			EntryID: e.ID.String(), AccountID: e.AccountID.String(), Direction: string(e.Direction), AmountMinor: int64(e.Minor),
			FencingToken: int64(e.Fence), CreatedAt: payapi.Time{Time: e.CreatedAt},
		})
	}
	return answer
}
