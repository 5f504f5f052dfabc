package pgserver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// dieWithParent has the kernel shut the server down at once when we die without stopping it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// arguments is the command line of a process, nil when it is gone.
func arguments(_ context.Context, pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(string(line), "\x00")
}
