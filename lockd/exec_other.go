//go:build !linux

package main

import "syscall"

// ownGroup puts the command in a group of its own. This system can't tie its life to ours.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// adoptOrphans does nothing: process 1 of this system reaps.
func adoptOrphans() {}
