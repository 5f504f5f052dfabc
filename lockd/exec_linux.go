package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup puts the command in a group of its own and has the kernel kill it when we die.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes the command's own children ours when it ends before them. Otherwise they would be whoever's process 1 is, who may
// never reap them, and a group of zombies can't be told from a living one.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
