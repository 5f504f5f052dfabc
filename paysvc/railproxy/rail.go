package railproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fenceline/internal/sendonce"
	"fenceline/paysvc/railproxy/submission"
)

// Client presents transfers to the rail over HTTP.
type Client struct {
	transfers string
	address   string // host:port
	dialer    *net.Dialer
	sender    *sendonce.Client
}

// NewClient returns a client of the rail at base, such as http://127.0.0.1:8090. Connecting takes at most connectTimeout, a
// whole submission at most timeout; after that its outcome is unknown.
func NewClient(base string, connectTimeout, timeout time.Duration) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("rail %q: want a URL such as http://127.0.0.1:8090", base)
	}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[parsed.Scheme]
	}
	return &Client{
		transfers: strings.TrimSuffix(base, "/") + "/v1/transfers", address: net.JoinHostPort(parsed.Hostname(), port),
		dialer: &net.Dialer{Timeout: connectTimeout}, sender: sendonce.New(connectTimeout, timeout),
	}, nil
}

// Reachable implements ReachableRail: it connects and hangs up.
func (c *Client) Reachable(ctx context.Context) error {
	conn, err := c.dialer.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRailUnavailable, err)
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("%w: hang up: %w", ErrRailUnavailable, err)
	}
	return nil
}

// The rail's side of the contract, as far as it is used.
type (
	railRequest struct {
		ClientReference string `json:"clientReference"`
		AmountMinor     int64  `json:"amountMinor"`
		Currency        string `json:"currency"`
		BeneficiaryRef  string `json:"beneficiaryRef"`
	}
	railTransfer struct {
		RailReference   string `json:"railReference"`
		ClientReference string `json:"clientReference"`
	}
	railRefusal struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
)

// Present implements Rail. Only two answers are information: an acknowledgement of this very transfer, and the rail's own word
// that it did nothing. Everything else, a 500 or somebody else's answer included, may hide a transfer.
func (c *Client) Present(ctx context.Context, in Instruction) Verdict {
	answer, err := c.send(ctx, in)
	switch {
	case errors.Is(err, sendonce.ErrNotSent):
		return Verdict{Err: fmt.Errorf("%w: %w", ErrRailUnavailable, err)}
	case err != nil:
		return Verdict{Outcome: submission.Timeout, Err: err}
	case answer.Status == http.StatusOK:
		return acknowledged(answer, in)
	}
	var refusal railRefusal
	if json.Unmarshal(answer.Body, &refusal) == nil && didNothing(answer.Status, refusal.Code) {
		return Verdict{Outcome: submission.Rejected, Err: fmt.Errorf("rail: %s: %s", refusal.Code, refusal.Message)}
	}
	return Verdict{Outcome: submission.Timeout, Err: fmt.Errorf("rail: status %d says nothing about the transfer", answer.Status)}
}

// didNothing says whether the refusal is the rail's word that no transfer was and will be carried out.
func didNothing(status int, code string) bool {
	return status == http.StatusUnprocessableEntity && code == "DECLINED" || status == http.StatusBadRequest && code == "VALIDATION_FAILED"
}

func acknowledged(answer sendonce.Answer, in Instruction) Verdict {
	var transfer railTransfer
	if err := json.Unmarshal(answer.Body, &transfer); err != nil {
		return Verdict{Outcome: submission.Timeout, Err: fmt.Errorf("rail: unreadable acknowledgement: %w", err)}
	}
	if transfer.RailReference == "" || len(transfer.RailReference) > maxRailReference || transfer.ClientReference != in.PayoutID.String() {
		return Verdict{Outcome: submission.Timeout, Err: errors.New("rail: the acknowledgement is for another transfer")}
	}
	return Verdict{Outcome: submission.Acked, Reference: transfer.RailReference}
}

// maxRailReference bounds what of the rail's answer goes into a row.
const maxRailReference = 128

func (c *Client) send(ctx context.Context, in Instruction) (sendonce.Answer, error) {
	body, err := json.Marshal(railRequest{
		ClientReference: in.PayoutID.String(), AmountMinor: int64(in.Money.Minor), Currency: string(in.Money.Currency), BeneficiaryRef: in.BeneficiaryRef,
	})
	if err != nil {
		return sendonce.Answer{}, fmt.Errorf("%w: encode: %w", sendonce.ErrNotSent, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.transfers, bytes.NewReader(body))
	if err != nil {
		return sendonce.Answer{}, fmt.Errorf("%w: %w", sendonce.ErrNotSent, err)
	}
	request.Header.Set("Content-Type", "application/json")
	return c.sender.Do(ctx, request)
}
