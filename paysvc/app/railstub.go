package app

import "errors"

// RailStub is the command rail-stub.
type RailStub struct {
	Process `embed:""`
}

// Run runs the role until a signal ends it.
func (c *RailStub) Run() error { return errors.New("rail-stub: this role isn't wired yet") }
