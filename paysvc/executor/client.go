package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fenceline/internal/sendonce"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
)

// pageSize is how many payouts are listed at a time.
const pageSize = 100

// Client talks to the payment-resource or the rail-proxy, directly or through a sidecar. It implements Resource and RailProxy. Each
// request is sent at most once, reads as well.
type Client struct {
	base   string
	sender *sendonce.Client
}

// NewClient returns a client of the service at base; name stands in errors. Each request takes at most timeout.
func NewClient(name, base string, timeout time.Duration) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("%s %q: want a URL such as http://127.0.0.1:8080", name, base)
	}
	return &Client{base: strings.TrimSuffix(base, "/"), sender: sendonce.New(timeout, timeout)}, nil
}

// Payouts implements Resource (P1).
func (c *Client) Payouts(ctx context.Context, q Query) (payapi.PayoutPage, error) {
	query := url.Values{"state": {string(q.State)}, "limit": {strconv.Itoa(pageSize)}}
	if q.AccountID != "" {
		query.Set("accountId", q.AccountID)
	}
	if q.Cursor != "" {
		query.Set("cursor", q.Cursor)
	}
	var page payapi.PayoutPage
	return page, c.read(ctx, payapi.PathPayouts+"?"+query.Encode(), &page)
}

// Payout implements Resource (P4).
func (c *Client) Payout(ctx context.Context, id string) (payapi.Payout, error) {
	var p payapi.Payout
	return p, c.read(ctx, path(payapi.PathPayout, id), &p)
}

// Claim implements Resource (P2).
func (c *Client) Claim(ctx context.Context, w Write, expected payout.State) error {
	var claimed payapi.Payout
	return c.write(ctx, path(payapi.PathClaim, w.Payout.PayoutID), w, payapi.ClaimRequest{ExpectedState: string(expected)}, &claimed)
}

// Post implements Resource (P3).
func (c *Client) Post(ctx context.Context, w Write, s payapi.Submission) error {
	var posting payapi.Posting
	return c.write(ctx, path(payapi.PathPost, w.Payout.PayoutID), w, payapi.PostRequest{RailReference: s.RailReference, SubmissionID: s.SubmissionID}, &posting)
}

// Submit implements RailProxy (R1).
func (c *Client) Submit(ctx context.Context, w Write) (payapi.Submission, error) {
	var s payapi.Submission
	err := c.write(ctx, payapi.PathSubmissions, w, payapi.SubmissionRequest{
		PayoutID: w.Payout.PayoutID, AccountID: w.Payout.AccountID, AmountMinor: w.Payout.AmountMinor, Currency: w.Payout.Currency,
		BeneficiaryRef: "beneficiary-" + w.Payout.PayoutID, // the schema has no beneficiaries, so each payout has a made-up one
	}, &s)
	if err == nil && (s.Outcome != payapi.OutcomeAcked || s.SubmissionID == "" || s.RailReference == "") {
		err = fmt.Errorf("%w: the answer doesn't say that the rail has acknowledged", errUnknown)
	}
	return s, err
}

// Submissions implements RailProxy.
func (c *Client) Submissions(ctx context.Context, payoutID string) (railapi.List, error) {
	var list railapi.List
	return list, c.read(ctx, payapi.PathSubmissions+"?"+url.Values{"payoutId": {payoutID}}.Encode(), &list)
}

func path(pattern, id string) string { return strings.Replace(pattern, "{id}", url.PathEscape(id), 1) }

func (c *Client) read(ctx context.Context, target string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+target, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	answer, err := c.sender.Do(ctx, request)
	if err != nil {
		return err
	}
	if answer.Status != http.StatusOK {
		refusal, err := parseRefusal(answer)
		if err != nil {
			return err
		}
		return refusal
	}
	if err := json.Unmarshal(answer.Body, into); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	return nil
}

// write sends a write once. nil means that it took effect; a *Refusal, or sendonce.ErrNotSent, that it certainly didn't; an error
// that wraps errUnknown, all else.
func (c *Client) write(ctx context.Context, target string, w Write, body, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+target, bytes.NewReader(encoded))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(payapi.HeaderToken, w.Token.String())
	request.Header.Set(payapi.HeaderOwner, w.Owner)
	// Derived from the payout's id, so that it is the same for every worker and through the payout's whole life.
	request.Header.Set(payapi.HeaderIdempotencyKey, "payout-"+w.Payout.PayoutID)
	answer, err := c.sender.Do(ctx, request)
	switch {
	case errors.Is(err, sendonce.ErrNotSent):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errUnknown, err)
	case answer.Status == http.StatusOK || answer.Status == http.StatusCreated:
		if err := json.Unmarshal(answer.Body, into); err != nil {
			return fmt.Errorf("%w: unreadable answer: %w", errUnknown, err)
		}
		return nil
	}
	refusal, err := parseRefusal(answer)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	if !refusal.noEffect() {
		return fmt.Errorf("%w: %w", errUnknown, refusal)
	}
	return refusal
}

// noEffect says whether the refusal is somebody's word that the write had no effect. A 4xx with an envelope is, but for the
// submission that is ambiguous; of the 5xx only those that say so by their code: a 500, or what an inner proxy answers, may hide one.
func (r *Refusal) noEffect() bool {
	switch r.Code {
	case payapi.CodeRailAmbiguous, payapi.CodeRequestTimeout:
		return false
	case payapi.CodeStoreUnavailable, payapi.CodeRailUnavailable, "FENCE_UNAVAILABLE", "FENCE_BUSY", "OVERLOADED", "DRAINING":
		return true
	case "UPSTREAM_FAILED", "UPSTREAM_TIMEOUT": // a sidecar's, whose word is in the details
		return r.outcome == "not_sent"
	}
	return r.Status >= 400 && r.Status < 500
}

// parseRefusal reads the envelope that every part of the system answers with. An answer without one isn't from any of them.
func parseRefusal(answer sendonce.Answer) (*Refusal, error) {
	var envelope payapi.Error
	decoder := json.NewDecoder(bytes.NewReader(answer.Body))
	decoder.UseNumber() // tokens are 64-bit
	if err := decoder.Decode(&envelope); err != nil || envelope.Code == "" {
		return nil, fmt.Errorf("status %d without an error envelope", answer.Status)
	}
	return &Refusal{
		Status: answer.Status, Code: envelope.Code, Message: envelope.Message,
		Resource:       text(envelope.Details["resourceType"]),
		PresentedToken: token(envelope.Details["presentedToken"]), HighestToken: token(envelope.Details["highestToken"]),
		outcome: text(envelope.Details["outcome"]),
	}, nil
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// token reads a token that came as a number or as text, 0 when it is neither.
func token(v any) lock.Token {
	t, err := lock.ParseToken(text(v))
	if err != nil {
		return 0
	}
	return t
}
