package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"fenceline/internal/daemon"
	"fenceline/lockd/app"
	"fenceline/lockd/lock"
)

// fastForwardCmd moves the token source above what resources have seen.
type fastForwardCmd struct {
	storeFlags `embed:""`
	Above      string        `help:"Every later token is above this one." placeholder:"TOKEN" xor:"above" required:""`
	FromPaydb  string        `help:"Read the highest marks from this database, and move above them." placeholder:"URL" xor:"above" required:"" env:"LOCKD_FROM_PAYDB" name:"from-paydb"`
	Operator   string        `help:"Who you are, 1 to 64 characters: it is recorded." default:"lockd fast-forward"`
	Reason     string        `help:"Why: it is recorded." default:"the token source was behind what resources have seen"`
	Output     string        `help:"${enum}: for people or for programs." enum:"text,json" default:"text" short:"o"`
	Timeout    time.Duration `help:"Time limit for all of it." default:"30s"`
}

// Help is shown by --help.
func (*fastForwardCmd) Help() string {
	return `Moves the token source forward, directly at the store, so that it works before any lockd runs. It is the step after lockdb was restored from a
disk snapshot, which nothing can detect, and before traffic resumes: tokens would repeat, and resources would refuse the rightful holders, or
worse. It never moves down, never beyond 2^53 - 1, and writes a record (token_source_change).

Examples:
  lockd fast-forward --from-paydb postgres://reader@127.0.0.1:5433/paydb --operator alice --reason "snapshot of 02:00 restored"
  lockd fast-forward --above 81234

Exit codes: 0 moved, or (--from-paydb) above all marks already, 1 refused or not reached, 80 wrong usage.`
}

// fastForwarded is what --output json prints.
type fastForwarded struct {
	Moved bool       `json:"moved"`
	Above lock.Token `json:"above"`
	From  lock.Token `json:"from,omitempty"`
	To    lock.Token `json:"to,omitempty"`
	Marks app.Marks  `json:"marks,omitempty"`
}

// Run moves the token source.
func (c *fastForwardCmd) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	var result fastForwarded
	if err := c.wanted(ctx, &result); err != nil {
		return err
	}
	if err := lock.ValidOwner("operator", c.Operator); err != nil {
		return &exitError{exitUsage, "fast-forward: " + err.Error()}
	}
	logger, err := daemon.NewLogger("lockd", "error", os.Stderr) // what happened is printed
	if err != nil {
		return err
	}
	config := app.Config{
		Backend: c.Backend, DatabaseURL: c.DatabaseURL, MaxConns: 2, QueryMode: c.QueryMode, Etcd: c.etcd(),
		StoreTimeout: c.StoreTimeout, StartupTimeout: c.StartupTimeout,
	}
	request := lock.FastForwardRequest{Above: result.Above, Operator: c.Operator, Reason: c.Reason}
	result.From, result.To, err = app.FastForward(ctx, config, request, logger)
	result.Moved = err == nil
	if errors.Is(err, lock.ErrInvalid) && c.FromPaydb != "" && result.Above <= lock.MaxTokenFloor {
		err = nil // above all marks already, which is what was wanted
	}
	if err != nil {
		return err
	}
	return c.print(result)
}

// wanted says above which token the source is to be.
func (c *fastForwardCmd) wanted(ctx context.Context, result *fastForwarded) (err error) {
	if c.FromPaydb != "" {
		result.Marks, err = app.ReadMarks(ctx, c.FromPaydb)
		result.Above = cmp.Or(result.Marks.Highest(), 1)
		return err
	}
	if result.Above, err = lock.ParseToken(c.Above); err != nil {
		return &exitError{exitUsage, "fast-forward: above: " + err.Error()}
	}
	return nil
}

func (c *fastForwardCmd) print(result fastForwarded) error {
	if c.Output == "json" {
		return printJSON(os.Stdout, result)
	}
	text := fmt.Sprintf("the token source is above %d already; nothing was changed", result.Above)
	if result.Moved {
		text = fmt.Sprintf("the token source was at %d; every later token is above %d", result.From, result.To)
	}
	_, err := fmt.Fprintln(os.Stdout, text)
	return err
}
