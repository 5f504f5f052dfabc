package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
)

// checkBind refuses addresses that others reach while nobody there is asked who they are.
func (c Config) checkBind() error {
	switch {
	case c.AllowAnyHost:
		return nil
	case !private(c.AdminListen):
		return fmt.Errorf("listen on %s: anybody who reaches the admin listener could revoke locks; "+
			"bind it to loopback or a unix socket, or say --allow-any-host if something else keeps strangers out", c.AdminListen)
	case !private(c.Listen) && !c.Access.asksClients():
		return fmt.Errorf("listen on %s: anybody who reaches this address could take and revoke locks, since lockd doesn't ask who calls; "+
			"set --client-token-file or --tls-client-ca, bind to loopback or a unix socket, or say --allow-any-host if something else keeps strangers out", c.Listen)
	}
	return nil
}

// private says whether only this machine reaches an address. What isn't an address at all is left for Listen to refuse with a better text.
func private(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if isUnix(address) || err != nil || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func isUnix(address string) bool { return strings.HasPrefix(address, "unix:") }

// listen opens both listeners.
func (a *App) listen(ctx context.Context) (listener, adminListener net.Listener, err error) {
	adminListener, err = daemon.Listen(ctx, a.config.AdminListen)
	if err != nil {
		return nil, nil, fmt.Errorf("admin: %w", err)
	}
	a.cleanups.Push("admin listener", closing(adminListener))
	listener, err = daemon.Listen(ctx, a.config.Listen)
	if err != nil {
		return nil, nil, err
	}
	a.cleanups.Push("listener", closing(listener))
	a.address, a.adminAt = listener.Addr(), adminListener.Addr()
	return listener, adminListener, nil
}

// newAPI makes the API, and follows the files that say who may call it.
func (a *App) newAPI(ctx context.Context, service *lock.Service, registry prometheus.Registerer) (*httpapi.API, error) {
	switch {
	case a.config.Access.TLSCert != "" && isUnix(a.config.Listen):
		return nil, errors.New("--tls-cert: the API listens on a unix socket, which has no TLS; leave it out, or listen on host:port")
	case a.config.MaxConnections < 0:
		return nil, errors.New("--max-connections: want 1 or more")
	}
	access, err := a.config.Access.open()
	if err != nil {
		return nil, err
	}
	access.callers.AdminIsOpen = private(a.config.AdminListen)
	if access.hasTokens() && access.tls == nil && !private(a.config.Listen) {
		a.logger.Warn("tokens come to this address in the clear; set --tls-cert and --tls-key unless something else encrypts", "event", "tokens_in_the_clear", "address", a.config.Listen)
	}
	a.follow(ctx, access, registry)
	return httpapi.New(httpapi.Config{
		Service: service, Lister: a.backend.lister, Callers: access.callers, TLS: access.tls,
		Logger: a.logger.Named("api"), Registry: registry, MaxConnections: a.config.MaxConnections,
	}), nil
}
