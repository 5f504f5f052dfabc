package main

import (
	"os"
	"runtime"
	"syscall"
)

// child is the command, in a process group of its own.
type child struct {
	pid     int // and the group's
	stopped chan syscall.Signal
	ended   chan outcome
}

// outcome is how the command ended.
type outcome struct {
	status syscall.WaitStatus
	err    error // of waiting, which can't fail
}

// code is the command's exit code, as a shell would say it.
func (o outcome) code() int {
	switch {
	case o.err != nil:
		return 1
	case o.status.Signaled():
		return exitSignal + int(o.status.Signal())
	}
	return o.status.ExitStatus()
}

// startChild starts the command. The goroutine that does so keeps its thread until the command has ended: on Linux
// the kernel kills the command when the *thread* that started it ends.
func startChild(path string, argv, environment []string) (*child, error) {
	adoptOrphans()
	type result struct {
		c   *child
		err error
	}
	started := make(chan result)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		process, err := os.StartProcess(path, argv, &os.ProcAttr{
			Env: environment, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: ownGroup(),
		})
		if err != nil {
			started <- result{err: err}
			return
		}
		c := &child{pid: process.Pid, stopped: make(chan syscall.Signal), ended: make(chan outcome, 1)}
		started <- result{c: c}
		c.wait()
	}()
	r := <-started
	return r.c, r.err
}

// wait tells of what becomes of the command, and reaps what has been adopted meanwhile.
func (c *child) wait() {
	told := false
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // there are no children any more
			if !told {
				c.ended <- outcome{err: err}
			}
			return
		case pid != c.pid:
		case status.Stopped():
			c.stopped <- status.StopSignal()
		default:
			told = true
			c.ended <- outcome{status: status}
		}
	}
}

// signal sends a signal to the whole group.
func (c *child) signal(s syscall.Signal) { _ = syscall.Kill(-c.pid, s) }

// rest says, once the command has ended, whether its group still has processes. No other group can have the number while it has: the system gives
// away no number that a group has, and goes around all others first.
func (c *child) rest() bool { return syscall.Kill(-c.pid, 0) != syscall.ESRCH }
