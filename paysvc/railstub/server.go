package railstub

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/internal/strictjson"
)

// Error codes of the rail.
const (
	codeValidation = "VALIDATION_FAILED"  // 400
	codeNotFound   = "NOT_FOUND"          // 404
	codeMethod     = "METHOD_NOT_ALLOWED" // 405
	codeDeclined   = "DECLINED"           // 422: the rail did nothing and never will for this submission
	codeInternal   = "INTERNAL"           // 500: the rail can't say what happened
)

const (
	maxConnections = 4096
	defaultLimit   = 100
	maxLimit       = 500

	transfersPath = "/v1/transfers"
)

// Rail answers submissions and lookups.
type Rail struct {
	log    *Log
	faults *chooser
	logger hclog.Logger
}

// New returns a rail that records in log and treats submissions as plan says.
func New(log *Log, plan Plan, logger hclog.Logger) (*Rail, error) {
	if err := plan.Validate(); err != nil {
		return nil, err
	}
	return &Rail{log: log, faults: newChooser(plan), logger: logger}, nil
}

// Server returns the HTTP server, not yet listening.
func (r *Rail) Server() *httpserver.Server {
	return httpserver.New(httpserver.Config{
		Handler:        r.handle,
		Panicked:       httperr.New(500, codeInternal, "an internal fault of the rail"),
		Logger:         r.logger,
		MaxConnections: maxConnections,
	})
}

func refuse(ctx *fasthttp.RequestCtx, e *httperr.Error) { e.Write(ctx, httperr.TraceID(ctx)) }

func (r *Rail) handle(ctx *fasthttp.RequestCtx) {
	switch {
	case string(ctx.Path()) != transfersPath:
		refuse(ctx, httperr.New(404, codeNotFound, "no such call"))
	case ctx.IsPost():
		r.submit(ctx)
	case ctx.IsGet():
		r.lookup(ctx)
	default:
		ctx.Response.Header.Set("Allow", "GET, POST")
		refuse(ctx, httperr.New(405, codeMethod, "want GET or POST"))
	}
}

// submit takes a submission. It looks nothing up: each one is a new transfer.
func (r *Rail) submit(ctx *fasthttp.RequestCtx) {
	var s submission
	err := strictjson.Decode(ctx.PostBody(), &s)
	if err == nil {
		err = s.validate()
	}
	if err != nil {
		refuse(ctx, httperr.New(400, codeValidation, "%s", err))
		return
	}
	fault := r.faults.choose(s.ClientReference)
	transfer := Transfer{
		RailReference: "rail-" + uuid.NewString(), ClientReference: s.ClientReference,
		AmountMinor: s.AmountMinor, Currency: s.Currency, BeneficiaryRef: s.BeneficiaryRef, AcceptedAt: time.Now().UTC(),
	}
	if fault.Kind != KindDecline && fault.Kind != KindDrop {
		if err := r.log.Append(transfer); err != nil {
			r.logger.Error("a transfer couldn't be recorded", "event", "transfer_not_recorded", "clientReference", s.ClientReference, "error", err)
			refuse(ctx, httperr.New(500, codeInternal, "the rail can't say whether the transfer was carried out"))
			return
		}
		r.logger.Info("transfer carried out", "event", "transfer_accepted", "clientReference", s.ClientReference,
			"railReference", transfer.RailReference, "amountMinor", s.AmountMinor, "currency", s.Currency, "fault", string(fault.Kind))
	} else {
		r.logger.Info("submission not carried out", "event", "transfer_refused", "clientReference", s.ClientReference, "fault", string(fault.Kind))
	}
	pause(fault.Latency)
	r.answer(ctx, fault.Kind, transfer)
}

// answer tells the client, or doesn't, as the fault says.
func (r *Rail) answer(ctx *fasthttp.RequestCtx, kind Kind, transfer Transfer) {
	switch kind {
	case KindDecline:
		refuse(ctx, httperr.New(422, codeDeclined, "the beneficiary's bank declined the transfer"))
		return
	case KindDrop, KindLost:
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) {}) // the connection is closed when this returns
		return
	case KindNone, KindDouble:
	}
	if err := httperr.WriteJSON(ctx, 200, transfer); err != nil {
		refuse(ctx, httperr.New(500, codeInternal, "%s", err))
		return
	}
	if kind == KindDouble {
		var once bytes.Buffer
		_, _ = ctx.Response.WriteTo(&once) // a buffer takes everything
		twice := bytes.Repeat(once.Bytes(), 2)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(c net.Conn) { _, _ = c.Write(twice) })
	}
}

// lookup is read-only: by client reference, or everything.
func (r *Rail) lookup(ctx *fasthttp.RequestCtx) {
	args := ctx.QueryArgs()
	limit := defaultLimit
	if text := string(args.Peek("limit")); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			refuse(ctx, httperr.New(400, codeValidation, "limit: want 1 to %d", maxLimit))
			return
		}
		limit = n
	}
	transfers, next, err := r.log.Page(string(args.Peek("clientReference")), string(args.Peek("cursor")), limit)
	switch {
	case errors.Is(err, errBadCursor):
		refuse(ctx, httperr.New(400, codeValidation, "%s", err))
	case err != nil:
		r.logger.Error("lookup failed", "event", "lookup_failed", "error", err)
		refuse(ctx, httperr.New(500, codeInternal, "the rail's log can't be read").Safe(0))
	default:
		if err := httperr.WriteJSON(ctx, 200, page{Transfers: transfers, NextCursor: next}); err != nil {
			refuse(ctx, httperr.New(500, codeInternal, "%s", err))
		}
	}
}

func pause(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
