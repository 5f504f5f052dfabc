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

func run(args []string) (code int, err error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("usage: withpg -- COMMAND [ARGUMENT ...]")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := open(ctx)
	if err != nil {
		return 1, err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if stopErr := server.Stop(stopCtx); stopErr != nil {
			code, err = max(code, 1), errors.Join(err, stopErr)
		}
	}()
	fmt.Fprintf(os.Stderr, "PostgreSQL %s on %s\n", server.Version(), server.Addr())
	return runCommand(ctx, server.URL("postgres"), args)
}

// open is the server of TEST_POSTGRES_URL, which stays, else one of our own.
func open(ctx context.Context) (*pgserver.Server, error) {
	given := os.Getenv(variable)
	if given == "" {
		return pgserver.Start(ctx, pgserver.Options{Name: "tests", Progress: os.Stderr})
	}
	server, err := pgserver.External(ctx, given)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return server, nil
}

const (
	variable = "TEST_POSTGRES_URL"
	// patience is how long an interrupted command may tidy up before it is killed.
	patience = 20 * time.Second
)

func runCommand(ctx context.Context, url string, args []string) (int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the caller's own command is the point
	cmd.Env = append(os.Environ(), variable+"="+url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil // as a shell says it
		}
		return exit.ExitCode(), nil // the command has said itself what was wrong
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", args[0], err)
	}
	return 0, nil
}
