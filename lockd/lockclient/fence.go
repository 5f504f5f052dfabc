package lockclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fenceline/lockd/lockapi"
)

// BarrierPath is the path that a sidecar keeps for itself on its data port.
const BarrierPath = "/.fence/barrier"

// barrierTimeout bounds one try at a sidecar, which may let it wait for older requests to settle.
const barrierTimeout = 30 * time.Second

// ErrFencedOut means that a sidecar has admitted a newer token than ours: somebody else is at work, or was.
var ErrFencedOut = errors.New("fenced out: the sidecar has seen a newer token")

// BarrierURL is the address of a guard's barrier for one key, for Held.Barrier. sidecar is the sidecar's base URL, and key the guard's own key for what
// is about to be written (for example an account's id), which needn't be the lock's.
func BarrierURL(sidecar, guard, key string) string {
	return strings.TrimSuffix(sidecar, "/") + BarrierPath + "?" + url.Values{"guard": {guard}, "key": {key}}.Encode()
}

// Barrier makes sure that, at each guard, no request under an older token is under way or will be admitted any more. Call it after Acquire and
// before reading what the decision is based on, at every guard that will be written through (acquire → barrier → read → decide → write):
// otherwise what is read may be older than a write of the former holder that is still on its way. The addresses are those of BarrierURL.
//
// It sends POST with the token; a sidecar answers 204 once it has raised its mark and nothing older is in flight. Nil means that all did. ErrFencedOut
// means that the grant isn't the newest there, ErrLockLost that it is over, and any other error that the barrier isn't there: don't go on. Tries that
// failed in passing are repeated, since a barrier has no effect beyond that of the first.
func (h *Held) Barrier(ctx context.Context, addresses ...string) error {
	client := &http.Client{Transport: defaultSidecars}
	if h.session.options.Sidecars != nil {
		own := *h.session.options.Sidecars
		client = &own
	}
	client.Transport = h.Transport(client.Transport)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ctx, cancel := within(ctx, h.ctx)
	defer cancel()
	for _, address := range addresses {
		if err := retry(ctx, func(ctx context.Context) error { return barrier(ctx, client, address) }); err != nil {
			if over := h.Err(); over != nil {
				return over
			}
			return err
		}
	}
	return h.Err()
}

// defaultSidecars keeps no connections: a barrier is rare, and nobody would close them.
var defaultSidecars = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} //nolint:gochecknoglobals // a constant in all but syntax

func barrier(ctx context.Context, client *http.Client, address string) error {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || parsed.Path == "" || !parsed.Query().Has("guard") || !parsed.Query().Has("key") {
		return errors.New("barrier: want an address from BarrierURL")
	}
	at := fmt.Sprintf("barrier of guard %q at %s", parsed.Query().Get("guard"), parsed.Host)
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", at, ErrNoAnswer, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case response.StatusCode == http.StatusNoContent:
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w: cut off: %w", at, ErrNoAnswer, err)
	}
	refusal := &Refusal{Status: response.StatusCode, by: "sidecar"}
	if json.Unmarshal(body, &refusal.Envelope) != nil || refusal.Envelope.Code == "" || response.StatusCode < http.StatusBadRequest {
		return fmt.Errorf("%s: status %d, want 204: is this a sidecar with that barrier?", at, response.StatusCode)
	}
	if refusal.Envelope.Code == codeFencedOut {
		return fmt.Errorf("%s: %w: %s", at, ErrFencedOut, refusal.Envelope.Message)
	}
	return fmt.Errorf("%s: %w", at, refusal)
}

// codeFencedOut is the sidecar's code for a token that isn't new enough.
const codeFencedOut = "FENCED_OUT"

// Transport returns a RoundTripper that puts the grant's token and owner on each request, as X-Fencing-Token and X-Owner-Id, and refuses to send
// anything once the grant is over. It doesn't cut a request off that is under way: whether that one took effect, nobody could tell. Base nil means
// http.DefaultTransport.
func (h *Held) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &fenced{held: h, base: base}
}

type fenced struct {
	held *Held
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper. Its error is ErrLockLost or ErrReleased when nothing was sent.
func (f *fenced) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := f.held.Err(); err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	own := request.Clone(request.Context())
	own.Header.Set(lockapi.HeaderToken, f.held.token.String())
	own.Header.Set(lockapi.HeaderOwner, f.held.session.Owner())
	return f.base.RoundTrip(own)
}
