package demo

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"fenceline/internal/process"
)

// nginxConfig serves one folder and lets PUT and DELETE change it (ngx_http_dav_module). Everything that it writes goes below the demo's folder.
const nginxConfig = `
%[3]s
daemon off;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr warn;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen %[2]s;
    root %[1]s/www;
    dav_methods PUT DELETE;
    create_full_put_path on;
  }
}
`

// Nginx starts nginx on a free port of 127.0.0.1.
func Nginx(ctx context.Context, program, dir string) (*Service, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // else its worker couldn't write into our folder
	}
	if err := os.MkdirAll(filepath.Join(dir, "www", "docs"), 0o700); err != nil {
		return nil, fmt.Errorf("nginx: %w", err)
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, dir, address, user), 0o600); err != nil {
		return nil, fmt.Errorf("nginx: %w", err)
	}
	p, err := process.Start(ctx, process.Spec{Name: "nginx", Path: program, Args: []string{"-p", dir, "-c", file, "-e", "stderr"}, LogDir: dir})
	if err != nil {
		return nil, err
	}
	s := &Service{Address: address, Folder: filepath.Join(dir, "www", "docs"), Stop: p.Stop}
	if err := waitFor(ctx, "nginx to listen", func() bool { return answers(ctx, address) || ended(ctx, p) }); err != nil {
		return nil, err
	}
	if ended(ctx, p) {
		return nil, fmt.Errorf("nginx ended at once:\n%s", p.Tail())
	}
	return s, nil
}

// ended says whether a process has ended already.
func ended(ctx context.Context, p *process.Process) bool {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err := p.Wait(ctx)
	return err == nil
}

// freeAddress is one that nobody listens on now; nginx can't choose one itself.
func freeAddress(ctx context.Context) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func answers(ctx context.Context, address string) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
