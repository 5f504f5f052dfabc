package resource

import (
	"errors"
	"strings"
	"time"

	"fenceline/internal/httperr"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// retryAfter is when a client may sensibly ask an unavailable store again.
const retryAfter = 500 * time.Millisecond

// refuse answers with the error's place in the catalogue.
func (a *API) refuse(c *call, err error) {
	var answer *httperr.Error
	if !errors.As(err, &answer) {
		answer = a.catalogue(c, err)
	}
	answer.Write(c.RequestCtx, c.traceID)
}

func (a *API) catalogue(c *call, err error) *httperr.Error {
	var notClaimable *payout.NotClaimableError
	var funds *payout.InsufficientFundsError
	var fenced *payout.FencedOutError
	var wrongState *payout.WrongStateError
	switch {
	// First of all: after a debit nothing is a plain refusal any more.
	case errors.Is(err, postgres.ErrOutcomeUnknown), errors.Is(err, payout.ErrPostingIncomplete):
		return a.halfDone(c, err)
	case errors.Is(err, lock.ErrInvalidToken):
		return httperr.New(400, payapi.CodeInvalidToken, "%s: %s", payapi.HeaderToken, reason(err, lock.ErrInvalidToken))
	case errors.Is(err, payout.ErrInvalid):
		return httperr.New(400, payapi.CodeValidationFailed, "%s", reason(err, payout.ErrInvalid))
	case errors.Is(err, payout.ErrPayoutNotFound):
		return httperr.New(404, payapi.CodePayoutNotFound, "no payout has this id")
	case errors.Is(err, payout.ErrAccountNotFound):
		return httperr.New(404, payapi.CodeAccountNotFound, "no account has this id")
	case errors.Is(err, payout.ErrIdempotencyConflict):
		return httperr.New(409, payapi.CodeIdempotencyConflict, "%s was used before, for another request; a new payout needs a new key", payapi.HeaderIdempotencyKey)
	case errors.As(err, &fenced):
		return fencedOut(c, fenced)
	case errors.As(err, &wrongState):
		return httperr.New(409, payapi.CodePayoutNotPostable, "the payout is %s and nothing was posted; read it again and decide again", wrongState.Payout.State).
			With("state", string(wrongState.Payout.State))
	case errors.As(err, &notClaimable):
		return httperr.New(409, payapi.CodePayoutNotClaimable, "%s; read it again and decide again", notClaimable).
			With("state", string(notClaimable.Payout.State)).With("expectedState", string(notClaimable.Expected))
	case errors.As(err, &funds):
		return httperr.New(422, payapi.CodeInsufficientFunds, "the account can't cover the payout; the payout is %s", funds.Payout.State).
			With("state", string(funds.Payout.State)).With("balanceMinor", int64(funds.Balance)).With("amountMinor", int64(funds.Payout.Money.Minor))
	case errors.Is(err, payout.ErrInsufficientFunds):
		return httperr.New(422, payapi.CodeInsufficientFunds, "the account can't cover the payout; nothing was debited")
	case errors.Is(err, payout.ErrOverflow):
		return httperr.New(422, payapi.CodeAmountOutOfRange, "a sum would leave the range of 64 bits; nothing was changed")
	}
	return a.fault(c, err)
}

func fencedOut(c *call, refused *payout.FencedOutError) *httperr.Error {
	return httperr.New(409, payapi.CodeFencedOut, "a newer token has been seen for this account; stop working under this one").
		With(payapi.DetailPresentedToken, int64(refused.Presented)).With(payapi.DetailHighestToken, int64(refused.Highest)).
		With(payapi.DetailResourceType, string(refused.Guard)).With(payapi.DetailResourceID, refused.AccountID.String()).
		With(payapi.DetailOwnerID, c.holder.Owner)
}

// rejected logs and counts a write that the fence or the state machine refused. Anything else isn't its business.
func (a *API) rejected(c *call, payoutID string, event payout.Event, err error) {
	if fenced, is := errors.AsType[*payout.FencedOutError](err); is {
		a.metrics.fencedOut(fenced.Guard)
		a.logger.Error("fenced out", "event", "fenced_out", "resource", string(fenced.Guard), "resourceId", fenced.AccountID.String(),
			"presentedToken", int64(fenced.Presented), "highestToken", int64(fenced.Highest), "ownerId", c.holder.Owner, "route", c.route,
			"payoutId", payoutID, "traceId", c.traceID)
		return
	}
	state, event, refused := refusedTransition(event, err)
	if !refused {
		return
	}
	a.metrics.refused.Inc()
	fields := []any{
		"event", "transition_refused", "payoutId", payoutID, "transition", string(event), "state", string(state),
		"token", int64(c.holder.Token), "ownerId", c.holder.Owner, "traceId", c.traceID,
	}
	if notClaimable, is := errors.AsType[*payout.NotClaimableError](err); is {
		fields = append(fields, "expectedState", string(notClaimable.Expected))
	}
	a.logger.Warn("transition refused", fields...)
}

// refusedTransition says which arrow was asked for that the state machine doesn't have.
func refusedTransition(event payout.Event, err error) (payout.State, payout.Event, bool) {
	var notClaimable *payout.NotClaimableError
	var wrongState *payout.WrongStateError
	var funds *payout.InsufficientFundsError
	switch {
	case errors.As(err, &notClaimable):
		return notClaimable.Payout.State, event, true
	case errors.As(err, &wrongState):
		return wrongState.Payout.State, wrongState.Event, true
	case errors.As(err, &funds) && funds.Payout.State != payout.Failed:
		return funds.Payout.State, payout.RefuseFunds, true // no funds, and no way to FAILED either
	}
	return "", "", false
}

// halfDone answers what is neither success nor failure. A lost answer to a commit is 503, which tells a proxy that the effect may be
// still to come; a posting that ended between its two transactions is 500: what happened is known and over.
func (a *API) halfDone(c *call, err error) *httperr.Error {
	debited := errors.Is(err, payout.ErrPostingIncomplete)
	a.logFault(c, err)
	if !errors.Is(err, postgres.ErrOutcomeUnknown) {
		return httperr.New(500, payapi.CodePostingIncomplete, "the payer was debited, but the ledger entries aren't written; don't send this again").
			With("outcome", "incomplete").With("debited", debited)
	}
	answer := httperr.New(503, payapi.CodeOutcomeUnknown, "the database's answer was lost: the change may or may not have happened; read before doing anything").
		With("outcome", "unknown")
	if debited {
		answer.With("debited", true)
	}
	return answer
}

// fault answers what isn't the store's decision.
func (a *API) fault(c *call, err error) *httperr.Error {
	a.logFault(c, err)
	for _, transient := range []error{postgres.ErrUnavailable, postgres.ErrTimeout, postgres.ErrCanceled, postgres.ErrReadOnly, postgres.ErrSerialization} {
		if errors.Is(err, transient) {
			return httperr.New(503, payapi.CodeStoreUnavailable, "the payment database can't be used now; nothing has happened").Safe(retryAfter)
		}
	}
	return httperr.New(500, payapi.CodeInternal, "a defect of this deployment; the log of the resource has the details under this trace id")
}

func (a *API) logFault(c *call, err error) {
	a.logger.Error("request failed", "event", "request_failed", "path", string(c.Path()), "error", err,
		"traceId", c.traceID, "ownerId", c.holder.Owner)
}

// reason is the error's text from the sentinel's own words on, without them.
func reason(err, sentinel error) string {
	_, after, found := strings.Cut(err.Error(), sentinel.Error()+": ")
	if !found {
		return err.Error()
	}
	return after
}
