package app

import "errors"

// Resource is the command resource.
type Resource struct {
	Process      `embed:""`
	PayDB        `embed:""`
	Listen       string `help:"Address of the API: host:port or unix:/path?mode=0660." env:"PAYSVC_LISTEN" default:"127.0.0.1:8080"`
	AdminListen  string `help:"Address of health and metrics." env:"PAYSVC_ADMIN_LISTEN" default:"127.0.0.1:9080"`
	AllowAnyHost bool   `help:"Bind to an address that others can reach, although the resource asks nobody who they are." env:"PAYSVC_ALLOW_ANY_HOST"`
}

// Run runs the role until a signal ends it.
func (c *Resource) Run() error { return errors.New("resource: this role isn't wired yet") }
