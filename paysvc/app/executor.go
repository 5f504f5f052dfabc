package app

import "errors"

// Executor is the command executor.
type Executor struct {
	Process `embed:""`
}

// Run runs the role until a signal ends it.
func (c *Executor) Run() error { return errors.New("executor: this role isn't wired yet") }
