package app

import "errors"

// RailProxy is the command rail-proxy.
type RailProxy struct {
	Process `embed:""`
}

// Run runs the role until a signal ends it.
func (c *RailProxy) Run() error { return errors.New("rail-proxy: this role isn't wired yet") }
