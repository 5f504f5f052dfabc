//go:build !linux

package pgserver

import "syscall"

// dieWithParent can't be had here; the next run clears what a crashed one left.
func dieWithParent(*syscall.SysProcAttr) {}
