package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"

	"fenceline/internal/daemon"
	"fenceline/sidecar/app"
)

// sidecarCmd is the sidecar as `sidecar run` runs it, under the profiler.
type sidecarCmd struct {
	Config  string `short:"c" required:""`
	Profile string `required:""`
}

// Run writes the profile when the sidecar ends.
func (c *sidecarCmd) Run() error {
	file, err := os.Create(c.Profile)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	logger, err := daemon.NewLogger("sidecar", "info", os.Stderr)
	if err != nil {
		return err
	}
	a, err := app.New(c.Config, logger)
	if err != nil {
		return err
	}
	shutdown := a.Config().Shutdown
	return daemon.Run(context.Background(), a, shutdown.Delay+shutdown.Grace, logger)
}
