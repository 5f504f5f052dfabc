package app

import (
	"context"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/daemon"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/resource"
)

// Resource is the command resource: the payment-resource. It serves accounts, payouts and the ledger. In plain mode it trusts whoever presents a
// token, in fenced mode it doesn't.
type Resource struct {
	Process         `embed:""`
	PayDB           `embed:""`
	Listen          string `help:"Address of the API: host:port or unix:/path?mode=0660." env:"PAYSVC_LISTEN" default:"127.0.0.1:8080"`
	AdminListen     string `help:"Address of health and metrics." env:"PAYSVC_ADMIN_LISTEN" default:"127.0.0.1:9080"`
	AllowAnyHost    bool   `help:"Bind to an address that others can reach, although the resource asks nobody who they are." env:"PAYSVC_ALLOW_ANY_HOST"`
	ClearingAccount string `help:"Id of the account that postings credit; the default is the one of the synthetic data." env:"PAYSVC_CLEARING_ACCOUNT" default:"00000000-0000-4000-8000-000000000001" placeholder:"UUID"`
	FencingEnabled  bool   `help:"Fenced mode: compare the token of every claim and posting with what the account has seen (payment.fencing.enabled). Needs a login with the role payapp_fenced. A sidecar before it must only check." env:"PAYMENT_FENCING_ENABLED"`
}

// Help is the command's longer help.
func (c *Resource) Help() string {
	return `Accounts, payouts and the ledger over HTTP. In plain mode, the default, run it as a login with the role payapp, reachable through its
sidecar only. With --fencing-enabled it refuses stale tokens itself; run it as a login with the role payapp_fenced.

Example:
  export PAYSVC_DATABASE_URL=postgres://paysvc:secret@127.0.0.1:5432/paydb
  paysvc resource --listen 127.0.0.1:8080 --admin-listen 127.0.0.1:9080
  curl -s http://127.0.0.1:9080/readyz`
}

// Run runs the role until a signal ends it.
func (c *Resource) Run() error {
	return c.run("payment-resource", func(logger hclog.Logger) (daemon.App, error) { return NewResource(*c, logger) })
}

// ResourceApp is a running payment-resource.
type ResourceApp struct {
	*service
	config   Resource
	clearing uuid.UUID
}

// NewResource prepares the role; nothing runs before Start.
func NewResource(config Resource, logger hclog.Logger) (*ResourceApp, error) {
	clearing, err := payout.ParseID("clearing-account", config.ClearingAccount)
	if err != nil {
		return nil, err
	}
	return &ResourceApp{service: newService(logger), config: config, clearing: clearing}, nil
}

// Start implements daemon.App.
func (a *ResourceApp) Start(ctx context.Context) error {
	c := a.config
	logFencing(a.logger, "payment.fencing.enabled", c.FencingEnabled)
	store := func(pool *pgxpool.Pool) resourceStore {
		if c.FencingEnabled {
			return paydb.NewFenced(pool, a.clearing, c.StoreTimeout)
		}
		return paydb.NewPlain(pool, a.clearing, c.StoreTimeout)
	}
	pool, err := a.openPayDB(ctx, c.PayDB, "payment-resource", func(pool *pgxpool.Pool) daemon.Check { return store(pool).Check })
	if err != nil {
		return err
	}
	server := resource.NewServer(store(pool), a.logger.Named("api"), a.registry)
	listeners := Listeners{Listen: c.Listen, AdminListen: c.AdminListen, AllowAnyHost: c.AllowAnyHost}
	return a.serve(ctx, listeners, server, map[string]daemon.Check{"paydb": store(pool).Check})
}

// resourceStore is the store of either mode.
type resourceStore interface {
	resource.Store
	Check(ctx context.Context) error
}

// logFencing says in which mode a role runs, and says it loudly when nothing is compared.
func logFencing(logger hclog.Logger, name string, enabled bool) {
	if enabled {
		logger.Info("fencing is on: stale tokens are refused here", "event", "fencing_enabled", "setting", name)
		return
	}
	logger.Warn("FENCING IS OFF: this process compares no token and does whatever a stale worker asks; let nobody reach it but a sidecar that enforces",
		"event", "fencing_disabled", "setting", name)
}
