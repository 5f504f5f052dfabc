package process

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from reaching the child directly, since whoever started
// it stops it in order, and has the kernel kill it when its parent dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
