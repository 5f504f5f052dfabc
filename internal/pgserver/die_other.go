//go:build !linux

package pgserver

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent can't be had here; the next run clears what a crashed one left.
func dieWithParent(*syscall.SysProcAttr) {}

// arguments is the command line of a process, nil when it is gone. An argument with a blank comes in pieces.
func arguments(ctx context.Context, pid int) []string {
	line, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(line))
}
