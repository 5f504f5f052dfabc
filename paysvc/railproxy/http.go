package railproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/internal/postgres"
	"fenceline/internal/strictjson"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
	"fenceline/paysvc/railproxy/submission"
)

const (
	maxConnections = 4096
	maxListed      = 100
)

// api answers requests with a service.
type api struct {
	service *Service
	logger  hclog.Logger
}

// NewServer returns the HTTP server, not yet listening. Head, body, time and number of connections are bounded.
func NewServer(service *Service, logger hclog.Logger) *httpserver.Server {
	a := &api{service: service, logger: logger}
	return httpserver.New(httpserver.Config{
		Handler: a.handle,
		// It can't be known how far the request had come, so this doesn't say that nothing happened.
		Panicked:       httperr.New(503, payapi.CodeOutcomeUnknown, "an internal fault; whether anything was presented to the rail is unknown"),
		Logger:         logger,
		MaxConnections: maxConnections,
	})
}

func (a *api) handle(ctx *fasthttp.RequestCtx) {
	traceID := httperr.TraceID(ctx)
	if err := a.dispatch(ctx); err != nil {
		a.refusal(err, traceID).Write(ctx, traceID)
	}
}

// dispatch matches the path as it was sent: an encoded or doubled slash is another path.
func (a *api) dispatch(ctx *fasthttp.RequestCtx) error {
	path, _, _ := strings.Cut(string(ctx.RequestURI()), "?")
	switch {
	case path != payapi.PathSubmissions:
		return httperr.New(404, payapi.CodeNotFound, "no such call")
	case ctx.IsPost():
		return a.submit(ctx)
	case ctx.IsGet():
		return a.list(ctx)
	}
	ctx.Response.Header.Set("Allow", "GET, POST")
	return httperr.New(405, payapi.CodeMethodNotAllowed, "want GET or POST")
}

func (a *api) submit(ctx *fasthttp.RequestCtx) error {
	in, err := readInstruction(ctx)
	if err != nil {
		return err
	}
	// Not the request's own context: it ends when a shutdown begins, and would cut off a submission under way.
	s, err := a.service.Submit(context.Background(), in)
	if refused, is := errors.AsType[*payout.FencedOutError](err); is {
		return fencedOut(refused, in.Holder.Owner)
	}
	if err != nil {
		return err
	}
	switch s.Outcome {
	case submission.Acked:
		return httperr.WriteJSON(ctx, 200, answer(s))
	case submission.Rejected:
		return about(httperr.New(422, railapi.CodeRailRejected, "the rail declined the transfer and did nothing"), "rejected", s)
	case submission.Timeout, submission.Fenced:
	}
	return about(httperr.New(409, payapi.CodeRailAmbiguous,
		"the submission was presented and the rail gave no answer that says what happened; it must not be submitted again"), "unknown", s)
}

func (a *api) list(ctx *fasthttp.RequestCtx) error {
	id, err := payout.ParseID("payoutId", string(ctx.QueryArgs().Peek("payoutId")))
	if err != nil {
		return err
	}
	found, err := a.service.Submissions(context.Background(), id, maxListed)
	if err != nil {
		return err
	}
	list := railapi.List{Submissions: make([]railapi.Record, 0, len(found))}
	for _, s := range found {
		list.Submissions = append(list.Submissions, record(s))
	}
	return httperr.WriteJSON(ctx, 200, list)
}

// refusal turns an error into an answer. An error about the store or the rail means that nothing was presented, except where
// it says otherwise.
func (a *api) refusal(err error, traceID string) *httperr.Error {
	var answer *httperr.Error
	var unrecorded *UnrecordedError
	var withdrawn *WithdrawnError
	var duplicate *DuplicateError
	var wrongState *payout.WrongStateError
	switch {
	case errors.As(err, &answer):
		return answer
	case errors.As(err, &duplicate):
		return submittedBefore(duplicate)
	case errors.As(err, &wrongState):
		return httperr.New(409, payapi.CodePayoutNotSubmittable, "the payout is %s and nothing was presented; read it again and decide again", wrongState.Payout.State).
			With("state", string(wrongState.Payout.State))
	case errors.As(err, &unrecorded):
		return about(httperr.New(503, payapi.CodeOutcomeUnknown,
			"the submission was presented to the rail, but its outcome may not be on record; it must not be submitted again"), "unknown", unrecorded.Submission)
	case errors.As(err, &withdrawn):
		return about(httperr.New(503, payapi.CodeRailUnavailable, "the rail went away before the submission was presented; nothing was, and the payout has failed"), "rejected", withdrawn.Submission)
	case errors.Is(err, postgres.ErrOutcomeUnknown):
		a.logger.Error("whether an intent is on record is unknown", "event", "request_failed", "traceId", traceID, "error", err)
		return httperr.New(503, payapi.CodeOutcomeUnknown, "nothing was presented to the rail, but the submission may be on record as if it had been; it can't be submitted again").
			With(railapi.DetailOutcome, "unknown")
	case errors.Is(err, payout.ErrPayoutNotFound):
		return httperr.New(404, payapi.CodePayoutNotFound, "no payout has this id")
	case errors.Is(err, ErrMismatch), errors.Is(err, payout.ErrInvalid):
		return invalid("%s", strings.TrimPrefix(err.Error(), payout.ErrInvalid.Error()+": "))
	case errors.Is(err, ErrRailUnavailable):
		return httperr.New(503, payapi.CodeRailUnavailable, "the rail can't be reached; nothing was presented to it").Safe(time.Second)
	case errors.Is(err, postgres.ErrUnavailable), errors.Is(err, postgres.ErrTimeout), errors.Is(err, postgres.ErrReadOnly):
		a.logger.Warn("paydb doesn't answer", "event", "database_unavailable", "traceId", traceID, "error", err)
		return httperr.New(503, payapi.CodeStoreUnavailable, "the payment database can't be reached; nothing was presented to the rail").Safe(time.Second)
	}
	a.logger.Error("request failed", "event", "request_failed", "traceId", traceID, "error", err)
	return httperr.New(500, payapi.CodeInternal, "an internal fault; nothing was presented to the rail")
}

// fencedOut and submittedBefore answer what only fenced mode refuses. Nothing was presented.
func fencedOut(refused *payout.FencedOutError, owner string) *httperr.Error {
	return httperr.New(409, payapi.CodeFencedOut, "a newer token has been seen for this account; stop working under this one").
		With(payapi.DetailPresentedToken, int64(refused.Presented)).With(payapi.DetailHighestToken, int64(refused.Highest)).
		With(payapi.DetailResourceType, string(refused.Guard)).With(payapi.DetailResourceID, refused.AccountID.String()).
		With(payapi.DetailOwnerID, owner)
}

func submittedBefore(duplicate *DuplicateError) *httperr.Error {
	if duplicate.Ambiguous() {
		return about(httperr.New(409, payapi.CodeRailAmbiguous,
			"the payout was submitted before and nobody knows what became of it; it must not be submitted again, under any token"), "unknown", duplicate.Earlier)
	}
	return about(httperr.New(409, payapi.CodeDuplicateSubmission, "the payout was submitted before; read its submissions and decide again"), "known", duplicate.Earlier)
}

func invalid(format string, args ...any) *httperr.Error {
	return httperr.New(400, payapi.CodeValidationFailed, format, args...)
}

// about adds what is known of a submission that was presented.
func about(e *httperr.Error, outcome string, s submission.Submission) *httperr.Error {
	e = e.With(railapi.DetailOutcome, outcome).With(railapi.DetailSubmissionID, s.ID.String()).With(railapi.DetailRailOutcome, string(s.Outcome))
	if s.RailReference != "" {
		e = e.With(railapi.DetailRailReference, s.RailReference)
	}
	return e
}

func answer(s submission.Submission) payapi.Submission {
	return payapi.Submission{SubmissionID: s.ID.String(), PayoutID: s.PayoutID.String(), Outcome: string(s.Outcome), RailReference: s.RailReference}
}

func record(s submission.Submission) railapi.Record {
	r := railapi.Record{Submission: answer(s), PresentedToken: int64(s.Token), SubmittedAt: payapi.Time{Time: s.SubmittedAt}}
	if !s.ResolvedAt.IsZero() {
		r.ResolvedAt = &payapi.Time{Time: s.ResolvedAt}
	}
	return r
}

// readInstruction checks everything before anything happens.
func readInstruction(ctx *fasthttp.RequestCtx) (Instruction, error) {
	var in Instruction
	text, err := oneHeader(ctx, payapi.HeaderToken)
	if err != nil {
		return in, httperr.New(400, payapi.CodeInvalidToken, "%s", err)
	}
	if in.Holder.Token, err = lock.ParseToken(text); err != nil {
		return in, httperr.New(400, payapi.CodeInvalidToken, "%s: %s", payapi.HeaderToken, err)
	}
	if in.Holder.Owner, err = oneHeader(ctx, payapi.HeaderOwner); err != nil {
		return in, err
	}
	if in.IdempotencyKey, err = oneHeader(ctx, payapi.HeaderIdempotencyKey); err != nil {
		return in, err
	}
	var body payapi.SubmissionRequest
	if err := strictjson.Decode(ctx.PostBody(), &body); err != nil {
		return in, invalid("%s", err)
	}
	if err := payout.ValidOwner(payapi.HeaderOwner, in.Holder.Owner); err != nil {
		return in, err
	}
	if err := payout.ValidText(payapi.HeaderIdempotencyKey, in.IdempotencyKey); err != nil {
		return in, err
	}
	err = in.fill(body)
	return in, err
}

func (in *Instruction) fill(body payapi.SubmissionRequest) error {
	var err error
	if in.PayoutID, err = payout.ParseID("payoutId", body.PayoutID); err != nil {
		return err
	}
	if in.AccountID, err = payout.ParseID("accountId", body.AccountID); err != nil {
		return err
	}
	currency, err := payout.ParseCurrency(body.Currency)
	if err != nil {
		return err
	}
	in.Money, in.BeneficiaryRef = payout.Money{Minor: payout.Minor(body.AmountMinor), Currency: currency}, body.BeneficiaryRef
	if err := in.Money.Payable(); err != nil {
		return err
	}
	return payout.ValidOwner("beneficiaryRef", in.BeneficiaryRef) // the rail takes 64 characters, like an owner
}

// oneHeader returns the header's value; a second line of it would be a second answer to the same question.
func oneHeader(ctx *fasthttp.RequestCtx, name string) (string, error) {
	values := ctx.Request.Header.PeekAll(name)
	switch len(values) {
	case 0:
		return "", fmt.Errorf("%w: %s: the header is missing", payout.ErrInvalid, name)
	case 1:
		return string(values[0]), nil
	}
	return "", fmt.Errorf("%w: %s: the header is there %d times", payout.ErrInvalid, name, len(values))
}
