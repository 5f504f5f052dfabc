package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/postgres"
)

// serve answers on a port of its own until the process is told to end, and says where as every daemon does.
func serve(name string, handler fasthttp.RequestHandler) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger, err := daemon.NewLogger(name, "info", os.Stderr)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &fasthttp.Server{Handler: handler, NoDefaultServerHeader: true, NoDefaultDate: true}
	logger.Info("listening", "event", "listening", "listener", "api", "address", l.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil // its clients are gone by then
	}
}

type upstreamCmd struct{}

// Run answers everything at once with a small body.
func (upstreamCmd) Run() error {
	body := []byte(strings.Repeat("x", 100))
	return serve("upstream", func(ctx *fasthttp.RequestCtx) { ctx.SetBody(body) })
}

type proxyCmd struct {
	Upstream string `required:""`
}

// Run forwards everything and checks nothing: what fasthttp alone costs.
func (c proxyCmd) Run() error {
	client := &fasthttp.HostClient{
		Addr: c.Upstream, MaxConns: 4096, NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	}
	return serve("proxy", func(ctx *fasthttp.RequestCtx) {
		ctx.Request.Header.Del("Connection")
		if err := client.Do(&ctx.Request, &ctx.Response); err != nil {
			ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			return
		}
		ctx.Response.Header.Del("Connection")
	})
}

type checkerCmd struct {
	Database string `env:"BENCH_DATABASE_URL" required:""`
	Conns    int32  `default:"32"`
}

// oneStatement is what a check with one statement a request runs: the same condition as the sidecar's own.
const oneStatement = `
INSERT INTO fence.mark AS m (guard, key, token) VALUES ('checked', $1, $2)
ON CONFLICT (guard, key) DO UPDATE SET token = EXCLUDED.token, updated_at = now() WHERE m.token < EXCLUDED.token`

// Run lets a request pass when its token is newer than the mark of its key, which it raises.
func (c checkerCmd) Run() error {
	pool, err := postgres.Open(context.Background(), postgres.Config{URL: c.Database, MaxConns: c.Conns, QueryMode: "cache_statement"})
	if err != nil {
		return err
	}
	defer pool.Close()
	return serve("checker", func(ctx *fasthttp.RequestCtx) {
		key, found := strings.CutPrefix(string(ctx.Request.Header.Peek("X-Original-URI")), thingsPath)
		token, err := strconv.ParseInt(string(ctx.Request.Header.Peek("X-Fencing-Token")), 10, 64)
		if !found || err != nil {
			ctx.SetStatusCode(fasthttp.StatusForbidden)
			return
		}
		tag, err := pool.Exec(context.Background(), oneStatement, key, token)
		switch {
		case err != nil:
			ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		case tag.RowsAffected() == 0:
			ctx.SetStatusCode(fasthttp.StatusForbidden)
		}
	})
}

// nginxConfig is a plain proxy, and one that asks the checker first. Both keep their connections.
const nginxConfig = `
%[1]s
daemon off;
worker_processes auto;
pid %[2]s/nginx.pid;
error_log stderr warn;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path %[2]s/body;
  proxy_temp_path %[2]s/proxy;
  fastcgi_temp_path %[2]s/fastcgi;
  uwsgi_temp_path %[2]s/uwsgi;
  scgi_temp_path %[2]s/scgi;
  upstream resource { server %[3]s; keepalive 256; keepalive_requests 100000000; }
  upstream checker { server %[4]s; keepalive 256; keepalive_requests 100000000; }
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  server {
    listen %[5]s;
    location / { proxy_pass http://resource; }
    location ` + thingsPath + ` { auth_request /check; proxy_pass http://resource; }
    location = /check {
      internal;
      proxy_pass http://checker;
      proxy_pass_request_body off;
      proxy_set_header Connection "";
      proxy_set_header Content-Length "";
      proxy_set_header X-Original-URI $request_uri;
    }
  }
}
`

// thingsPath begins the path of what is guarded; the key is the rest.
const thingsPath = "/things/"

var errNoAddress = errors.New("it says no address")

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
