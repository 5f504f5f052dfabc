package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// server is what serves HTTP and can be stopped.
type server interface {
	Serve(listener net.Listener) error
	ShutdownWithContext(ctx context.Context) error
}

// Serve serves lockd's API in this process, over a store of the caller's, such as a broken one: the checker must notice. Stop ends it.
func Serve(ctx context.Context, server server) (target func(*rand.Rand) string, stop func() error, err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("serve in this process: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	base := "http://" + listener.Addr().String()
	return func(*rand.Rand) string { return base }, func() error {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := server.ShutdownWithContext(stopCtx); err != nil {
			return fmt.Errorf("stop serving: %w", err)
		}
		return <-served
	}, nil
}
