//go:build !linux

package process

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from reaching the child directly, since whoever started
// it stops it in order. This system can't tie the child's life to its parent's.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
