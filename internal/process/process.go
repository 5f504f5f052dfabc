// Package process runs a daemon as a child process and reads its JSON event log, for
// experiments and tests whose claims are about real processes: real signals, real
// pauses, real deaths.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	Name string   // for messages and for the log file's name
	Path string   // the program
	Args []string // without the program itself
	Env  []string // KEY=VALUE, on top of PATH and HOME only: nothing leaks in by accident
	// LogDir is where <Name>.log goes: everything that the process wrote to its standard
	// output and error.
	LogDir string
	// FileOnly leaves what the process writes unread, in the file: no events, no tail. For programs that write so much that reading it would
	// slow everything down.
	FileOnly bool
}

// Process is one running child.
type Process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *eventLog
	done  chan struct{}

	mu       sync.Mutex
	exitCode int
}

// pollInterval paces the looks at a process's state; nothing else signals it.
const pollInterval = 5 * time.Millisecond

// Start runs the program. It runs until it ends by itself or is stopped;
// ctx only bounds the start. On Linux the child is killed when this process dies.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := newEventLog(filepath.Join(spec.LogDir, spec.Name+".log"))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), spec.Path, spec.Args...) //nolint:gosec // the caller's own program is the point
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if spec.FileOnly {
		cmd.Stdout, cmd.Stderr = log.file, log.file
	}
	cmd.SysProcAttr = ownGroup()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, errors.Join(err, log.Close()))
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, errors.Join(err, log.Close()))
	}
	p := &Process{name: spec.Name, cmd: cmd, stdin: stdin, log: log, done: make(chan struct{})}
	go p.reap()
	return p, nil
}

func (p *Process) reap() {
	_ = p.cmd.Wait() // the state below says more than this error
	p.mu.Lock()
	p.exitCode = p.cmd.ProcessState.ExitCode()
	p.mu.Unlock()
	_ = p.log.Close()
	close(p.done)
}

// Name is the name from the Spec.
func (p *Process) Name() string { return p.name }

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// LogFile is the path of everything that the process wrote.
func (p *Process) LogFile() string { return p.log.path }

// Tail is the end of what the process wrote, for error messages.
func (p *Process) Tail() string { return p.log.tail() }

// WaitEvent returns the first event, from the beginning of the log on, that match
// accepts. It fails when the process ends or ctx does before there is one, and shows
// the end of the log then.
func (p *Process) WaitEvent(ctx context.Context, what string, match func(Event) bool) (Event, error) {
	for from := 0; ; {
		found, next, more := p.log.find(from, match)
		if found != nil {
			return found, nil
		}
		from = next
		select {
		case <-more:
		case <-p.done:
			if found, _, _ := p.log.find(from, match); found != nil {
				return found, nil
			}
			return nil, fmt.Errorf("%s ended with exit code %d before %s:\n%s", p.name, p.ExitCode(), what, p.log.tail())
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: waiting for %s: %w:\n%s", p.name, what, context.Cause(ctx), p.log.tail())
		}
	}
}

// Address waits for the event "listening" of one of the daemon's listeners and returns its
// address.
func (p *Process) Address(ctx context.Context, listener string) (string, error) {
	e, err := p.WaitEvent(ctx, "listening ("+listener+")", func(e Event) bool {
		return e.Name() == "listening" && e.Text("listener") == listener
	})
	if err != nil {
		return "", err
	}
	return e.Text("address"), nil
}

// Events returns every event of that name so far, in the order of the log.
func (p *Process) Events(name string) []Event { return p.log.all(name) }

// Suspend stops the process with SIGSTOP and returns when the kernel says that it
// is stopped: from then on it executes nothing until Resume.
func (p *Process) Suspend(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("suspend %s: %w", p.name, err)
	}
	for {
		state, err := p.state(ctx)
		if err != nil {
			return fmt.Errorf("suspend %s: %w", p.name, err)
		}
		if strings.HasPrefix(state, "T") {
			return nil
		}
		if !wait(ctx, pollInterval) {
			return fmt.Errorf("suspend %s: still in state %s: %w", p.name, state, context.Cause(ctx))
		}
	}
}

// state asks ps, which every Unix has, for the process's state letter.
func (p *Process) state(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "ps", "-o", "stat=", "-p", strconv.Itoa(p.PID())).Output() //nolint:gosec // a number
	if err != nil {
		return "", fmt.Errorf("read process state: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Resume lets a suspended process go on (SIGCONT).
func (p *Process) Resume() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume %s: %w", p.name, err)
	}
	return nil
}

// Type writes one line to the process's standard input. A suspended process finds it
// when it is resumed.
func (p *Process) Type(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("write to %s: %w", p.name, err)
	}
	return nil
}

// Wait returns the exit code, −1 for death by a signal.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s is still running: %w:\n%s", p.name, context.Cause(ctx), p.log.tail())
	}
}

// ExitCode is the exit code of an ended process.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exitCode
}

// Kill ends the process with SIGKILL, suspended or not, and waits for its end.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	_, err := p.Wait(ctx)
	return err
}

// Stop ends the process with SIGTERM and waits; when ctx ends first it is killed and that
// is an error. A process that has ended already is fine.
func (p *Process) Stop(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	_ = p.Resume() // a suspended process can't react to SIGTERM
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	if _, err := p.Wait(ctx); err != nil {
		killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, p.Kill(killCtx))
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
