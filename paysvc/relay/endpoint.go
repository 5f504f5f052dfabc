package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fenceline/internal/sendonce"
	"fenceline/paysvc/relay/event"
)

// Headers of a delivery.
const (
	// HeaderEventKey is the same for every delivery of one event: whoever receives it drops what he has seen.
	HeaderEventKey = "X-Event-Key"
	// HeaderEventSequence grows with the events of one payout.
	HeaderEventSequence = "X-Event-Sequence"
	// HeaderEventAttempt is 1 for the first delivery. A higher one may be a repetition.
	HeaderEventAttempt = "X-Event-Attempt"
)

// Message is a delivery's body.
type Message struct {
	Key      string          `json:"key"`
	Type     string          `json:"type"`
	Sequence int64           `json:"sequence"`
	At       string          `json:"at"` // RFC 3339
	Payload  json.RawMessage `json:"payload"`
}

// HTTP delivers with POST. Any 2xx is a delivery; redirects aren't followed.
type HTTP struct {
	target string
	sender *sendonce.Client
}

// NewHTTP returns an endpoint that delivers to the URL. Each delivery takes at most timeout.
func NewHTTP(target string, timeout time.Duration) (*HTTP, error) {
	parsed, err := url.Parse(target)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("endpoint: want a URL such as http://127.0.0.1:8088/events") // it may hold a secret, so it isn't shown
	}
	return &HTTP{target: target, sender: sendonce.New(timeout, timeout)}, nil
}

// Deliver implements Endpoint.
func (h *HTTP) Deliver(ctx context.Context, e event.Event) error {
	body, err := json.Marshal(Message{Key: e.Key, Type: e.Type, Sequence: e.ID, At: e.CreatedAt.UTC().Format(time.RFC3339Nano), Payload: e.Payload})
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.target, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(HeaderEventKey, e.Key)
	request.Header.Set(HeaderEventSequence, strconv.FormatInt(e.ID, 10))
	request.Header.Set(HeaderEventAttempt, strconv.Itoa(e.Attempt))
	answer, err := h.sender.Do(ctx, request)
	if err != nil {
		return err
	}
	if answer.Status < 200 || answer.Status > 299 {
		return fmt.Errorf("status %d", answer.Status)
	}
	return nil
}
