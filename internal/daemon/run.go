package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

// App is a daemon that Run can drive.
type App interface {
	// Start brings up everything and returns; what it started before an error it
	// leaves to Stop.
	Start(ctx context.Context) error
	// Stop ends everything within ctx. It is safe after a failed Start.
	Stop(ctx context.Context) error
	// Failed delivers an error when a part dies that the daemon can't live without.
	Failed() <-chan error
}

// Run starts the app, waits for SIGINT, SIGTERM, the end of ctx or a failed part,
// and stops it within grace. A second signal ends the process at once,
// with the signal's usual exit code.
func Run(ctx context.Context, app App, grace time.Duration, logger hclog.Logger) error {
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()

	err := app.Start(ctx)
	if err == nil {
		logger.Info("started", "event", "started", "pid", os.Getpid())
		notify("READY=1", logger)
		select {
		case <-ctx.Done():
			logger.Info("stopping", "event", "stopping", "graceMillis", grace.Milliseconds())
		case err = <-app.Failed():
			logger.Error("a part failed, stopping", "event", "part_failed", "error", err)
		}
	} else if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil // a signal while starting is a wish to stop, not a fault
	}
	release() // from here on a second signal kills
	notify("STOPPING=1", logger)

	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if stopErr := app.Stop(stopCtx); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("unclean stop: %w", stopErr))
	}
	logger.Info("stopped", "event", "stopped")
	return err
}
