package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"fenceline/internal/process"
)

// Backend is a store with what lockd has to be told to use it.
type Backend struct {
	Name string
	// Addresses are the store's listeners (host:port); lockd reaches each through a proxy.
	Address string
	// Args and Env are lockd's for the store behind a proxy at address.
	Args func(address string) []string
	Env  func(address string) []string
	// ShortTTL and LongTTL are what clients lock for. Late is how long after its time a grant may still be there for the store: 0 when
	// the store compares times whenever it is asked.
	ShortTTL, LongTTL, SessionTTL time.Duration
	Late                          time.Duration
}

// System is lockd in several processes on one store.
type System struct {
	Replicas []*Replica
}

// Replica is one lockd process, which may die and come back, with its way to the store.
type Replica struct {
	name    string
	program string
	dir     string
	backend Backend
	link    *link
	process *process.Process
	base    atomic.Pointer[string]
	starts  int
}

// NewSystem starts n replicas of the program lockd. Their logs go to dir.
func NewSystem(ctx context.Context, backend Backend, program, dir string, n int) (*System, error) {
	s := &System{}
	for i := range n {
		name := "lockd" + strconv.Itoa(i+1)
		way, err := newLink(name, backend.Address)
		if err != nil {
			return nil, errors.Join(err, s.Stop(ctx))
		}
		r := &Replica{name: name, program: program, dir: dir, backend: backend, link: way}
		s.Replicas = append(s.Replicas, r)
		if err := r.start(ctx); err != nil {
			return nil, errors.Join(err, s.Stop(ctx))
		}
	}
	return s, nil
}

// Target is the base URL of any replica.
func (s *System) Target(rng *rand.Rand) string {
	return *s.Replicas[rng.IntN(len(s.Replicas))].base.Load()
}

// Stop ends every process and proxy, the faulty ones included.
func (s *System) Stop(ctx context.Context) error {
	var errs []error
	for _, r := range s.Replicas {
		r.link.mend(ctx)
		if r.process != nil {
			errs = append(errs, r.process.Stop(ctx))
		}
		r.link.close()
	}
	return errors.Join(errs...)
}

const startTimeout = 20 * time.Second

// start starts the process on a port that nobody has: somebody else's connection may have taken the last one meanwhile.
func (r *Replica) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r.starts++
	dir := filepath.Join(r.dir, r.name+"-"+strconv.Itoa(r.starts))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for logs: %w", err)
	}
	p, err := process.Start(ctx, process.Spec{
		Name: r.name, Path: r.program, LogDir: dir, Env: r.backend.Env(r.link.address()),
		Args: append([]string{
			"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--startup-timeout", "2s", "--store-timeout", "1s",
		}, r.backend.Args(r.link.address())...),
	})
	if err != nil {
		return err
	}
	r.process = p
	address, err := p.Address(ctx, "api")
	if err != nil {
		return err
	}
	base := "http://" + address
	r.base.Store(&base)
	return nil
}
