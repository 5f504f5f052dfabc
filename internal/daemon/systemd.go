package daemon

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
)

// systemdScheme begins an address that names a socket which systemd has opened: systemd:NAME, where NAME is the socket unit's FileDescriptorName=.
const systemdScheme = "systemd:"

// firstDescriptor is where systemd's descriptors begin (sd_listen_fds(3)).
const firstDescriptor = 3

// listenSystemd takes over the socket of that name. It can be taken over once.
func listenSystemd(name string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("listen on systemd:%s: no sockets were handed to this process; start it from a socket unit, or give host:port", name)
	}
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	i := slices.Index(names, name)
	if err != nil || i < 0 || i >= count {
		return nil, fmt.Errorf("listen on systemd:%s: the sockets handed over are called %s; set FileDescriptorName=%s in the socket unit", name, strings.Join(names, ", "), name)
	}
	fd := firstDescriptor + i
	syscall.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), name)
	l, err := net.FileListener(file) // a copy
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("listen on systemd:%s: %w", name, err)
	}
	return l, nil
}

// notify tells systemd, if it started this process with Type=notify, how far it is.
func notify(state string, logger hclog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("systemd can't be told", "event", "notify_failed", "state", state, "error", err)
	}
}
