// Withpg runs a command beside one real PostgreSQL server: withpg -- go test ./...
//
// The command finds the server's superuser URL in TEST_POSTGRES_URL. The server is stopped and removed when the
// command ends, whose exit code is withpg's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"fenceline/internal/pgserver"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("usage: withpg -- COMMAND [ARGUMENT ...]")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("TEST_POSTGRES_URL")
	if url == "" {
		server, err := pgserver.Start(ctx, pgserver.Options{Name: "tests", Progress: os.Stderr})
		if err != nil {
			return 1, err
		}
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			_ = server.Stop(stopCtx)
		}()
		fmt.Fprintf(os.Stderr, "PostgreSQL %s on %s\n", server.Version(), server.Addr())
		url = server.URL("postgres")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the caller's own command is the point
	cmd.Env = append(os.Environ(), "TEST_POSTGRES_URL="+url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil // the command has said itself what was wrong
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", args[0], err)
	}
	return 0, nil
}
