package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// unixScheme begins an address that names a unix socket.
const unixScheme = "unix:"

// Listen opens a listener on "host:port" or "unix:/path?mode=0660" (mode is
// octal, 0600 when left out), or takes over the one that systemd has opened as "systemd:NAME". A port in use is said in those words. A path that
// exists is taken over only when it is a socket that nobody answers on.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if rest, ok := strings.CutPrefix(address, unixScheme); ok {
		return listenUnix(ctx, address, rest)
	}
	if name, ok := strings.CutPrefix(address, systemdScheme); ok {
		return listenSystemd(name)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port, unix:/path or systemd:name", address)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: the port is in use; stop the other process or choose another port: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

func listenUnix(ctx context.Context, address, rest string) (net.Listener, error) {
	path, mode, err := parseUnix(rest)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", address, err)
	}
	if err := removeDeadSocket(ctx, path); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("set mode of %s: %w", path, err)
	}
	return l, nil
}

func parseUnix(rest string) (path string, mode fs.FileMode, err error) {
	path, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil || path == "" {
		return "", 0, errors.New("want unix:/path or unix:/path?mode=0660")
	}
	mode = 0o600
	if text := values.Get("mode"); text != "" {
		n, err := strconv.ParseUint(text, 8, 9)
		if err != nil {
			return "", 0, fmt.Errorf("mode %q: want octal digits such as 0660", text)
		}
		mode = fs.FileMode(n)
	}
	return path, mode, nil
}

// removeDeadSocket frees a path that a crashed process left behind. Anything but a
// socket is somebody's file, and a socket that answers is somebody's service.
func removeDeadSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on unix:%s: the path exists and is not a socket", path)
	}
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return fmt.Errorf("listen on unix:%s: another process answers there", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove dead socket: %w", err)
	}
	return nil
}
