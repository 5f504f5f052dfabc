package app

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/internal/daemon"
	"fenceline/paysvc/railstub"
)

// RailStub is the command rail-stub.
type RailStub struct {
	Process      `embed:""`
	Listen       string        `help:"Address of the API: host:port or unix:/path?mode=0660." env:"PAYSVC_RAIL_LISTEN" default:"127.0.0.1:8090"`
	AllowAnyHost bool          `help:"Bind to an address that others can reach." env:"PAYSVC_ALLOW_ANY_HOST"`
	Log          string        `help:"File of JSON lines to which every transfer is appended and synced before it is answered." env:"PAYSVC_RAIL_LOG" required:"" placeholder:"FILE"`
	Latency      time.Duration `help:"Time between carrying out a submission and answering it." env:"PAYSVC_RAIL_LATENCY" default:"0s"`
	Decline      float64       `help:"Probability (0 to 1) of refusing a submission with 422 DECLINED." env:"PAYSVC_RAIL_DECLINE" default:"0"`
	Drop         float64       `help:"Probability of closing the connection without an answer, nothing carried out." env:"PAYSVC_RAIL_DROP" default:"0"`
	LoseAnswer   float64       `help:"Probability of carrying a submission out and closing the connection without an answer." env:"PAYSVC_RAIL_LOSE_ANSWER" default:"0"`
	DoubleAck    float64       `help:"Probability of sending the answer twice on one connection." env:"PAYSVC_RAIL_DOUBLE_ACK" default:"0"`
	Seed         uint64        `help:"Makes the chances repeatable." env:"PAYSVC_RAIL_SEED" default:"1"`
	Fault        []string      `help:"What happens to a client reference, before any chance: REFERENCE=KIND or REFERENCE=KIND:LATENCY with KIND none, decline, drop, lost or double. May be repeated." env:"PAYSVC_RAIL_FAULTS" placeholder:"REF=KIND"`
}

// Run runs the role until a signal ends it.
func (c *RailStub) Run() error {
	return c.run("rail-stub", func(logger hclog.Logger) (daemon.App, error) {
		plan, err := c.plan()
		if err != nil {
			return nil, err
		}
		return &railStubApp{service: newService(logger), flags: c, plan: plan}, nil
	})
}

func (c *RailStub) plan() (railstub.Plan, error) {
	plan := railstub.Plan{
		Latency: c.Latency, Seed: c.Seed, ByReference: map[string]railstub.Fault{},
		Chances: map[railstub.Kind]float64{
			railstub.KindDecline: c.Decline, railstub.KindDrop: c.Drop, railstub.KindLost: c.LoseAnswer, railstub.KindDouble: c.DoubleAck,
		},
	}
	for _, text := range c.Fault {
		reference, fault, err := railstub.ParseFault(text)
		if err != nil {
			return plan, err
		}
		plan.ByReference[reference] = fault
	}
	return plan, plan.Validate()
}

// railStubApp implements daemon.App. The rail has no admin listener: it is somebody else's system.
type railStubApp struct {
	*service
	flags *RailStub
	plan  railstub.Plan
}

// Start implements daemon.App.
func (a *railStubApp) Start(ctx context.Context) error {
	if err := checkBind(a.flags.Listen, a.flags.AllowAnyHost); err != nil {
		return err
	}
	log, dropped, err := railstub.OpenLog(a.flags.Log)
	if err != nil {
		return err
	}
	a.cleanups.Push("transfer log", func(context.Context) error { return log.Close() })
	if dropped > 0 {
		a.logger.Warn("an unfinished last line of the transfer log was cut off; its transfer had been confirmed to nobody",
			"event", "transfer_log_repaired", "bytes", dropped)
	}
	rail, err := railstub.New(log, a.plan, a.logger)
	if err != nil {
		return fmt.Errorf("rail: %w", err)
	}
	listener, err := daemon.Listen(ctx, a.flags.Listen)
	if err != nil {
		return err
	}
	a.cleanups.Push("listener", closing(listener))
	server := rail.Server()
	a.cleanups.Push("api", daemon.StopHTTP(server))
	daemon.ServeHTTP("api", listener, server, a.logger, a.failed)
	return nil
}
