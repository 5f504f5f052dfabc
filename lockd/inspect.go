package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// inspectCmd shows who holds a lock, or every lock.
type inspectCmd struct {
	clientFlags `embed:""`

	Prefix string `help:"Without KEY: list only keys that begin with this."`
	Key    string `arg:"" optional:"" help:"The lock's key. Without it every held lock is listed."`
}

// Help is shown by --help.
func (*inspectCmd) Help() string {
	return `Shows who holds the lock, with which fencing token, until when, and how many wait. Without a key it lists every held lock, which needs
the operator's token where lockd asks for one. What it shows may be over by the time that you read it: never act on it.

With --output json it prints one object a line: for a key {"key","held",…}, and for the list {"key","ownerId","sessionId","fencingToken",
"acquiredAt","expiresAt"} for each lock.

Examples:
  lockd inspect payout:42
  lockd inspect --prefix payout: --output json

Exit codes: 0 shown (held or not), 1 refused or not reached, 80 wrong usage.`
}

// Run shows it.
func (c *inspectCmd) Run() error {
	client, err := c.connect("inspect")
	if err != nil {
		return err
	}
	if c.Key == "" {
		return c.failure(c.list(client))
	}
	info, err := client.Inspect(context.Background(), c.Key)
	if err != nil {
		return c.failure(err)
	}
	return c.print(os.Stdout, info, describe(info))
}

func describe(info lockapi.LockInfo) string {
	if !info.Held {
		return info.Key + ": nobody holds it"
	}
	text := fmt.Sprintf("%s: held by %s with token %d", info.Key, info.OwnerID, info.FencingToken)
	if info.AcquiredAt != nil && info.ExpiresAt != nil {
		text += fmt.Sprintf(" since %s, until %s unless it is renewed", stamp(*info.AcquiredAt), stamp(*info.ExpiresAt))
	}
	if info.WaiterCount != nil {
		text += fmt.Sprintf("; %d waiting at this lockd", *info.WaiterCount)
	}
	return text
}

func stamp(t lockapi.Time) string { return t.UTC().Format(time.RFC3339) }

// list prints page by page, so that any number of locks takes little memory.
func (c *inspectCmd) list(client *lockclient.Client) error {
	columns := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if c.Output == "text" {
		fmt.Fprintln(columns, "KEY\tOWNER\tTOKEN\tSINCE\tUNTIL")
	}
	for cursor := ""; ; {
		page, err := client.ListLocks(context.Background(), c.Prefix, cursor, 0)
		if err != nil {
			return err
		}
		for _, l := range page.Locks {
			if err := c.printRow(columns, l); err != nil {
				return err
			}
		}
		if err := columns.Flush(); err != nil {
			return err
		}
		if cursor = page.NextCursor; cursor == "" {
			return nil
		}
	}
}

func (c *inspectCmd) printRow(columns io.Writer, l lockapi.HeldLock) error {
	if c.Output == "json" {
		return printJSON(os.Stdout, l)
	}
	_, err := fmt.Fprintf(columns, "%s\t%s\t%d\t%s\t%s\n", l.Key, l.OwnerID, l.FencingToken, stamp(l.AcquiredAt), stamp(l.ExpiresAt))
	return err
}
