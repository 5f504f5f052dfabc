package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
)

// Exit codes of exec besides the command's own.
const (
	exitUsage         = 80
	exitNotAcquired   = 73
	exitLost          = 75
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128
)

// execCmd runs a command under a lock.
type execCmd struct {
	clientFlags `embed:""`

	Key     string        `help:"The lock's key: 1 to 128 of A-Z a-z 0-9 : . _ -" required:""`
	TTL     time.Duration `help:"How long the lock lasts without a renewal, 100ms to 300s. It is renewed while the command runs." name:"ttl" default:"30s"`
	Wait    time.Duration `help:"How long to wait for a lock that another holds." default:"0s"`
	Grace   time.Duration `help:"Time between SIGTERM and SIGKILL when the lock is being lost, at most a third of what may be relied on." default:"5s"`
	Owner   string        `help:"Name of this holder, 1 to 64 characters. Default: exec-<host>-<pid>."`
	Command []string      `arg:"" help:"The command and its arguments, after --." passthrough:""`
}

// Help is shown by --help.
func (*execCmd) Help() string {
	return `Takes the lock, runs the command, releases the lock. The command finds in its environment
  FENCING_TOKEN  the grant's token: send it as X-Fencing-Token with every request that writes
  LOCK_KEY       the key
  LOCK_OWNER     the owner, for X-Owner-Id

Example:
  lockd exec --key nightly-report --wait 10m -- sh -c 'curl -H "X-Fencing-Token: $FENCING_TOKEN" …'

The command runs in a process group of its own. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the
group; while the lock is still waited for they end the waiting. A command that wants the terminal is given it; Ctrl-Z
stops both, and when it goes on, the command does only if the lock is still held.

The lock may be relied on for 0.7 × ttl after the last renewal was sent. When renewals fail, the group is sent SIGTERM a grace
before that, and SIGKILL just before it, so that nothing runs on without the lock. When lockd itself says that
the lock is over (an operator has revoked it), it is SIGKILL at once. What the command leaves running in its group when it ends is
sent SIGTERM, and after the grace SIGKILL, before the lock is released.

Exit codes:
  the command's own, or 128+n when signal n ended it
   73  the lock wasn't acquired: another holds it, or lockd couldn't be asked; the command wasn't run
   75  the lock was lost, or about to be, and the command was ended, or had ended too late
  126  the command can't be executed     127  it isn't there     128+n  signal n ended the waiting
   80  wrong usage

Limits. When exec itself is killed with SIGKILL, Linux kills the command with it, but not the command's own children, nor
a command that changes its user (setuid); elsewhere not even the command. An exec that is stopped with SIGSTOP can neither renew nor
end anything: the lock expires while the command runs on. Processes that leave the group (setsid) aren't reached. Against
all of these only the resource helps, by the token.`
}

// Run runs the command under the lock.
func (c *execCmd) Run() error {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	if len(c.Command) == 0 {
		return &exitError{exitUsage, "exec: no command; give it after --"}
	}
	path, err := exec.LookPath(c.Command[0])
	if err != nil { // before anything is locked
		return &exitError{startCode(err), "exec: " + err.Error()}
	}
	o, err := c.prepare()
	if err != nil {
		return err
	}
	return c.run(path, o, newNotes(c.Output))
}

// startCode is the exit code for a command that couldn't be started.
func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrDot) {
		return exitNotFound
	}
	return exitCannotExecute
}

func (c *execCmd) prepare() (lockclient.Options, error) {
	o, err := c.options()
	if err == nil && c.Owner == "" {
		c.Owner, err = processName("exec")
	}
	err = errors.Join(err, lock.ValidKey(c.Key), lock.ValidOwner("owner", c.Owner),
		lock.ValidDuration("ttl in milliseconds", c.TTL, lock.MinLockTTL, lock.MaxLockTTL))
	if c.Wait < 0 || c.Grace < 0 {
		err = errors.Join(err, errors.New("wait and grace: want 0 or more"))
	}
	if err != nil {
		return o, &exitError{exitUsage, "exec: " + err.Error()}
	}
	o.SessionTTL = min(max(c.TTL, lock.MinSessionTTL), lock.MaxSessionTTL) // so that it is the lock's time that counts
	return o, nil
}

// forwarded are the signals that the command is sent. Ones that were ignored from the start (nohup) stay so, for the command too.
func forwarded() chan os.Signal {
	signals := make(chan os.Signal, 16)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	signal.Notify(signals, syscall.SIGCONT)
	return signals
}

func (c *execCmd) run(path string, o lockclient.Options, notes *notes) error {
	signals := forwarded()
	o.Observer = notes
	session, held, err := c.acquire(o, signals)
	if session != nil {
		defer func() { _ = session.Close(context.Background()) }() // releases the lock; what lockd isn't told ends by its time
	}
	if err != nil {
		return err
	}
	notes.say("lock_granted", held, "lock granted", nil)
	environment := append(os.Environ(), "FENCING_TOKEN="+held.Token().String(), "LOCK_KEY="+c.Key, "LOCK_OWNER="+c.Owner)
	started, err := startChild(path, c.Command, environment)
	if err != nil {
		return &exitError{startCode(err), "exec: " + err.Error()}
	}
	return newSupervisor(held, started, signals, c.Grace, notes).run()
}

// acquire opens a session and acquires the lock. A signal ends that, and is then the error.
func (c *execCmd) acquire(o lockclient.Options, signals <-chan os.Signal) (session *lockclient.Session, held *lockclient.Held, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		session, held, err = c.take(ctx, o)
	}()
	for {
		select {
		case s := <-signals:
			if number, ok := ending(s); ok {
				cancel(&exitError{exitSignal + number, fmt.Sprintf("exec: %s while waiting for the lock; the command wasn't run", s)})
			}
			if s == syscall.SIGTSTP { // Ctrl-Z; a session that expires meanwhile is noticed afterwards
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
			continue
		case <-done:
		}
		if cause, ok := errors.AsType[*exitError](context.Cause(ctx)); ok {
			return session, held, cause // also when the lock came at the same moment
		}
		return session, held, err
	}
}

// ending says whether the signal would end a process that does nothing about it.
func ending(s os.Signal) (number int, ok bool) {
	n, ok := s.(syscall.Signal)
	return int(n), ok && n != syscall.SIGCONT && n != syscall.SIGTSTP
}

func (c *execCmd) take(ctx context.Context, o lockclient.Options) (*lockclient.Session, *lockclient.Held, error) {
	session, err := lockclient.Open(ctx, c.Owner, o)
	if err != nil {
		return nil, nil, &exitError{exitNotAcquired, "exec: " + err.Error()}
	}
	held, err := session.Acquire(ctx, c.Key, lockclient.AcquireOptions{TTL: c.TTL, Wait: c.Wait})
	if err != nil {
		text := "exec: " + err.Error()
		if refusal, ok := errors.AsType[*lockclient.Refusal](err); ok && refusal.Envelope.Details["holderOwnerId"] != nil {
			text += fmt.Sprintf(" (%v, until %v at the earliest)", refusal.Envelope.Details["holderOwnerId"], refusal.Envelope.Details["expiresAt"])
		}
		return session, nil, &exitError{exitNotAcquired, text}
	}
	return session, held, nil
}
