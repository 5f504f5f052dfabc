package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"fenceline/internal/process"
)

// pollInterval paces questions to which no event answers.
const pollInterval = 20 * time.Millisecond

// maxAnswer bounds an answer that is read into memory.
const maxAnswer = 1 << 20

// waitReady asks a readiness endpoint until it says yes.
func waitReady(ctx context.Context, p *process.Process, url string) error {
	last := ""
	for {
		status, body, err := request(ctx, http.MethodGet, url, nil, nil)
		if err == nil && status == http.StatusOK {
			return nil
		}
		if err == nil {
			last = string(body)
		}
		if err := poll(ctx); err != nil {
			return fmt.Errorf("%w; last answer: %s\n%s", err, last, p.Tail())
		}
	}
}

// poll waits a little, or returns why there is no more time.
func poll(ctx context.Context) error { return pollEvery(ctx, pollInterval) }

func pollEvery(ctx context.Context, interval time.Duration) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// request sends one request and returns status and body.
func request(ctx context.Context, method, url string, headers map[string]string, body any) (int, []byte, error) {
	var reader io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return 0, nil, fmt.Errorf("encode request: %w", err)
		}
		reader = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return 0, nil, fmt.Errorf("build request: %w", err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: read answer: %w", method, url, err)
	}
	return response.StatusCode, answer, nil
}
