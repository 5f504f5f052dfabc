package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"fenceline/internal/daemon"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// Abandon is the command abandon.
type Abandon struct {
	DatabaseURL    string        `help:"Connection URL of paydb, as a login with the role payoperator." env:"PAYSVC_DATABASE_URL,PAYDB_URL" required:"" placeholder:"URL"`
	Lockd          string        `help:"The lock service." env:"LOCKD_URL" default:"http://127.0.0.1:7400" placeholder:"URL"`
	LockdTokenFile string        `help:"File with the bearer token for the lock service." env:"LOCKD_TOKEN_FILE" placeholder:"FILE"`
	Payout         string        `help:"The payout." required:"" placeholder:"UUID"`
	Operator       string        `help:"Who decides, 1 to 64 characters; kept with the payout." required:""`
	Reason         string        `help:"Why, 1 to 128 characters; kept with the payout." required:""`
	LockTTL        time.Duration `help:"Time to live of the lease." env:"PAYSVC_LOCK_TTL" default:"30s"`
	Wait           time.Duration `help:"How long to wait for a worker that holds the lock." default:"30s"`
	StoreTimeout   time.Duration `help:"Time limit for one statement." env:"PAYSVC_STORE_TIMEOUT" default:"3s"`
}

// Help is the command's longer help.
func (*Abandon) Help() string {
	return `Gives a payout up for good: PENDING or RAIL_AMBIGUOUS → ABANDONED. It takes the lock payout:<account> first, so no worker is at it, and stamps the
grant's token on the payout. For an ambiguous one look at the rail first (paysvc reconcile): the money may have left.

Example:
  export PAYSVC_DATABASE_URL=postgres://operator:secret@127.0.0.1:5432/paydb
  paysvc abandon --payout 7f3e2d1c-0000-4000-8000-000000000000 --operator operator-7 --reason "beneficiary closed the account"`
}

// Run abandons the payout.
func (c *Abandon) Run() error {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	return c.run(ctx, os.Stdout)
}

func (c *Abandon) run(ctx context.Context, out io.Writer) error {
	id, err := payout.ParseID("payout", c.Payout)
	err = errors.Join(err, payout.ValidOwner("operator", c.Operator), payout.ValidText("reason", c.Reason),
		lock.ValidDuration("lock-ttl in milliseconds", c.LockTTL, lock.MinLockTTL, lock.MaxLockTTL))
	if err != nil {
		return err
	}
	logger, err := daemon.NewLogger("abandon", "info", os.Stderr)
	if err != nil {
		return err
	}
	database := PayDB{DatabaseURL: c.DatabaseURL, MaxConns: 1, StoreTimeout: c.StoreTimeout, StartupTimeout: c.StoreTimeout}
	pool, err := database.open(ctx, "paysvc-abandon")
	if err != nil {
		return err
	}
	defer pool.Close()
	store := paydb.NewAbandonment(pool, c.StoreTimeout)
	if err := store.Check(ctx); err != nil {
		return fmt.Errorf("paydb: %w", err)
	}
	found, err := store.Payout(ctx, id)
	if err != nil {
		return err
	}
	session, err := lockclient.Open(ctx, c.Operator, lockclient.Options{
		URL: c.Lockd, TokenFile: c.LockdTokenFile, Timeout: lockTimeout, Lock: lockclient.AcquireOptions{TTL: c.LockTTL, Wait: c.Wait},
	})
	if err != nil {
		return err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
		defer cancel()
		_ = session.Close(closeCtx) // it ends by itself
	}()
	return session.Do(ctx, "payout:"+found.AccountID.String(), func(ctx context.Context, held *lockclient.Held) error {
		abandoned, err := store.Abandon(ctx, id, payout.Holder{Owner: c.Operator, Token: held.Token()}, c.Reason)
		if err != nil {
			return err
		}
		logger.Warn("payout abandoned", "event", "payout_abandoned", "payoutId", id.String(), "previousState", string(found.State),
			"token", int64(held.Token()), "operator", c.Operator, "reason", c.Reason)
		_, err = fmt.Fprintf(out, "payout %s is %s under token %s\n", id, abandoned.State, held.Token())
		return err
	})
}
