// Package daemon starts and stops a process: signals, ordered clean-up, the
// JSON logger, listeners, and the health and metrics endpoints. Every Fenceline daemon
// is wired from these pieces, so that all of them behave alike for whoever runs them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Cleanups is a stack of named clean-up functions. What was started last is
// stopped first. The zero value is ready to use.
type Cleanups struct {
	mu    sync.Mutex
	steps []cleanup
}

type cleanup struct {
	name string
	run  func(context.Context) error
}

// Push adds a clean-up, to run before all that were pushed earlier. The name
// appears in the error when it fails.
func (c *Cleanups) Push(name string, run func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, cleanup{name, run})
}

// Run runs every clean-up once, last pushed first, under the one time limit
// that ctx carries, and joins their errors. A failing step doesn't keep the
// ones below it from running. A second call finds nothing left to do.
func (c *Cleanups) Run(ctx context.Context) error {
	c.mu.Lock()
	steps := c.steps
	c.steps = nil
	c.mu.Unlock()

	var errs []error
	for _, step := range slices.Backward(steps) {
		if err := step.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", step.name, err))
		}
	}
	return errors.Join(errs...)
}
