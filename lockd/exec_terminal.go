package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal, if there is one. A command in a group of its own is in the terminal's background, where it may write
// but is stopped when it reads or sets modes: then it is given the foreground, if that was ours, and Ctrl-C and Ctrl-Z reach it directly.
type terminal struct {
	file  *os.File // nil without a terminal
	given bool     // the command's group has the foreground
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return &terminal{}
	}
	return &terminal{file: file}
}

func (t *terminal) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// give gives the foreground to the group if it is ours, and says whether the group has it.
func (t *terminal) give(group int) bool {
	if t.file == nil {
		return false
	}
	if now, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP); err != nil || now != syscall.Getpgrp() {
		return t.given
	}
	t.given = t.set(group)
	return t.given
}

// giveAgain gives the foreground back to the group after a pause, if it had it.
func (t *terminal) giveAgain(group int) {
	if t.given {
		t.give(group)
	}
}

// takeBack takes the foreground from the group, and says whether the group had it.
func (t *terminal) takeBack() bool {
	return t.given && t.set(syscall.Getpgrp())
}

// set sets the foreground group. From the background that is allowed only to who ignores SIGTTOU; the command is started by then, so it
// doesn't inherit that.
func (t *terminal) set(group int) bool {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) == nil
}
