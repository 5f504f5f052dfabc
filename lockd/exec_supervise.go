package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"fenceline/lockd/lockclient"
)

// supervisor watches over the command while it runs.
type supervisor struct {
	held     *lockclient.Held
	child    *child
	signals  <-chan os.Signal
	notes    *notes
	terminal *terminal

	grace time.Duration // between SIGTERM and SIGKILL
	last  time.Duration // before the deadline, for SIGKILL
	look  time.Duration // how often the time that is left is looked at

	ending  time.Time // when SIGTERM was sent because the lock is being lost
	killed  bool      // SIGKILL was sent for the same reason
	waiting bool      // the command was stopped together with us, by Ctrl-Z

	outcome *outcome  // how the command ended
	tidying time.Time // since when the rest of its group is waited for
}

// newSupervisor takes the wanted grace, but not more than a third of the time that the lock may be relied on: renewals come every third, so
// none is missed as long as two of them are answered.
func newSupervisor(held *lockclient.Held, c *child, signals <-chan os.Signal, grace time.Duration, notes *notes) *supervisor {
	grace = min(grace, held.Left()/3)
	last := min(max(grace/4, 20*time.Millisecond), 500*time.Millisecond)
	return &supervisor{
		held: held, child: c, signals: signals, notes: notes, terminal: openTerminal(),
		grace: max(grace, last), last: last, look: min(max(held.Left()/50, 5*time.Millisecond), 100*time.Millisecond),
	}
}

// run returns when the command and its group have ended, with the command's exit code if that isn't 0.
func (s *supervisor) run() error {
	defer s.terminal.close()
	ticker := time.NewTicker(s.look)
	defer ticker.Stop()
	lost := s.held.Lost()
	for {
		select {
		case e := <-s.child.ended:
			s.terminal.takeBack()
			s.outcome, s.tidying = &e, time.Now()
			if s.child.rest() {
				s.child.signal(syscall.SIGTERM)
				s.child.signal(syscall.SIGCONT)
			}
		case by := <-s.child.stopped:
			s.childStopped(by)
		case sent := <-s.signals:
			s.pass(sent)
		case <-lost:
			lost = nil
			s.kill()
		case <-ticker.C:
			s.keepTime()
		}
		if s.outcome != nil && s.tidy() {
			return s.result()
		}
	}
}

// unkillable is how long a group is waited for that SIGKILL doesn't end, for example since a process of it belongs to another user.
const unkillable = time.Second

// tidy says whether nothing of the command's group is left. What it left behind has been sent SIGTERM, and has the grace for its end, while the
// lock is held.
func (s *supervisor) tidy() bool {
	if !s.child.rest() {
		return true
	}
	since := time.Since(s.tidying)
	if since >= s.grace {
		s.child.signal(syscall.SIGKILL)
	}
	return since >= s.grace+unkillable
}

// keepTime ends the command in time.
func (s *supervisor) keepTime() {
	left := s.held.Left()
	switch {
	case s.killed:
	case left <= s.last, !s.ending.IsZero() && time.Since(s.ending) >= s.grace-s.last:
		s.kill()
	case left <= s.grace && s.ending.IsZero():
		s.ending = time.Now()
		s.notes.say("lock_being_lost", s.held, "renewals fail; the command is sent SIGTERM", s.held.Err())
		s.child.signal(syscall.SIGTERM)
		s.child.signal(syscall.SIGCONT) // one that is stopped can't react otherwise
	}
}

// kill ends the command at once.
func (s *supervisor) kill() {
	if s.killed {
		return
	}
	s.killed, s.tidying = true, time.Now().Add(-s.grace) // what is left has had its grace
	s.child.signal(syscall.SIGKILL)
	s.notes.say("command_killed", s.held, "the command was sent SIGKILL, for the lock is lost or about to be", s.held.Err())
}

// result is what exec ends with.
func (s *supervisor) result() error {
	switch err := s.held.Err(); {
	case s.killed || !s.ending.IsZero():
		return &exitError{exitLost, "exec: the command was ended, since the lock was lost or about to be"}
	case errors.Is(err, lockclient.ErrLockLost):
		return &exitError{exitLost, "exec: the lock was lost before the command ended: " + err.Error()}
	}
	if code := s.outcome.code(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// pass sends a signal on to the group. Ctrl-Z and its end are ours to do: an exec that stopped alone would let the lock expire under a
// command that runs on.
func (s *supervisor) pass(sent os.Signal) {
	switch number, _ := sent.(syscall.Signal); number {
	case syscall.SIGTSTP:
		s.child.signal(syscall.SIGSTOP)
		s.suspend()
	case syscall.SIGCONT:
		s.goOn()
	default:
		s.child.signal(number)
	}
}

// childStopped gives the terminal to a command that was stopped for want of it, and stops with one that was stopped by Ctrl-Z. Who stops it
// otherwise may let it go on, too: the lock is kept meanwhile.
func (s *supervisor) childStopped(by syscall.Signal) {
	wantsTerminal := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	if wantsTerminal && s.terminal.give(s.child.pid) {
		s.child.signal(syscall.SIGCONT)
	}
	if by == syscall.SIGTSTP && s.terminal.takeBack() {
		s.suspend()
	}
}

// suspend stops this process as Ctrl-Z does. What follows happens when it is continued: SIGCONT is among the signals.
func (s *supervisor) suspend() {
	s.waiting = true
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}

// goOn lets the command go on after both were stopped, if the lock is still held; keepTime has its say first.
func (s *supervisor) goOn() {
	if !s.waiting {
		return
	}
	s.keepTime()
	if s.killed {
		return
	}
	s.waiting = false
	s.terminal.giveAgain(s.child.pid)
	s.child.signal(syscall.SIGCONT)
}

// notes are what exec itself says, on standard error.
type notes struct {
	w    io.Writer
	json bool
}

func newNotes(output string) *notes { return &notes{w: os.Stderr, json: output == "json"} }

// Observe implements lockclient.Observer.
func (n *notes) Observe(e lockclient.Event) {
	if errors.Is(e.Err, lockclient.ErrSessionClosed) {
		return
	}
	n.write(e.Name, e.Key, int64(e.Token), e.Name, e.Err)
}

func (n *notes) say(event string, held *lockclient.Held, text string, err error) {
	if event == "lock_granted" && !n.json {
		return // no news for people
	}
	n.write(event, held.Key(), int64(held.Token()), text, err)
}

func (n *notes) write(event, key string, token int64, text string, err error) {
	line := struct {
		Event   string `json:"event"`
		Key     string `json:"lockKey,omitempty"`
		Token   int64  `json:"token,omitempty"`
		Message string `json:"message"`
		Cause   string `json:"cause,omitempty"`
	}{event, key, token, text, ""}
	if err != nil {
		line.Cause = err.Error()
	}
	if n.json {
		_ = printJSON(n.w, line)
		return
	}
	if err != nil {
		text += ": " + err.Error()
	}
	fmt.Fprintln(n.w, "lockd exec:", text)
}
