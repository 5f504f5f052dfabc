package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTerminationUnderLoadFailsNoRequest: clients behind a balancer, that is, who send as long as /readyz says so, see no request fail when the sidecar is told to stop,
// although it stops for good.
func TestTerminationUnderLoadFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	rewrite(t, f.config, strings.Replace(fileConfig, "delay: 1ms", "delay: 2s", 1))
	f.start(t)
	f.eventually(t, "ready", func() bool { return f.ready(t) })
	var draining, away atomic.Bool
	var answered, whileDraining atomic.Int64
	var faults sync.Map
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for token := int64(1); !away.Load(); token++ {
				if err := postDoc(transport, f.api, strconv.Itoa(client), token); err != nil {
					faults.Store(client, err)
					return
				}
				answered.Add(1)
				if draining.Load() {
					whileDraining.Add(1)
				}
			}
		})
	}
	f.eventually(t, "load", func() bool { return answered.Load() > 100 })
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stopped <- f.Stop(ctx)
	}()
	f.eventually(t, "not ready", func() bool { return !f.ready(t) })
	draining.Store(true)
	f.eventually(t, "requests that were sent on are answered", func() bool { return whileDraining.Load() > 20 })
	away.Store(true)
	clients.Wait()
	require.NoError(t, <-stopped)
	require.Equal(t, 0, f.ExitCode(), f.Tail())
	faults.Range(func(client, fault any) bool {
		require.Fail(t, "a request failed", "client %v: %v", client, fault)
		return true
	})
	t.Logf("%d requests, %d of them while draining", answered.Load(), whileDraining.Load())
}

// postDoc sends a write on a connection that is kept, and wants it done.
func postDoc(transport *http.Transport, api, key string, token int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+api+"/docs/"+key, nil)
	if err != nil {
		return err
	}
	request.Header.Set("X-Fencing-Token", strconv.FormatInt(token, 10))
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %w", response.Status, body, err)
	}
	return nil
}
