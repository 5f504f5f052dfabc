package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fenceline/internal/process"
)

const (
	fromA = "written by A"
	fromB = "written by B"
)

// writer is what runs under lockd exec: it says that it holds the lock, waits until it may go on, and writes the file with its token. Between the
// two it can be frozen, as a long garbage collection or a paused virtual machine would.
const writer = `
echo $$ > "$DIR/pid.new" && mv "$DIR/pid.new" "$DIR/pid"
while [ ! -e "$DIR/go" ]; do sleep 0.02; done
curl -s -o "$DIR/answer" -w '%{http_code}' -X PUT -H "X-Fencing-Token: $FENCING_TOKEN" -H "X-Owner-Id: $LOCK_OWNER" \
  --data-binary "$TEXT" "http://$TARGET/docs/report.txt" > "$DIR/status.new" && mv "$DIR/status.new" "$DIR/status"
`

// leaseTime is short, so that nobody waits long for A's lease to end.
const leaseTime = 2 * time.Second

// result is what there is to see at the end of a round.
type result struct {
	status, code string // of A's late write
	file         string
}

// play freezes A before its write, lets B write, and wakes A.
func (d *demo) play(ctx context.Context, dir, target, folder string) (result, error) {
	a, err := d.startWriter(ctx, dir, "A", fromA, target)
	if err != nil {
		return result{}, err
	}
	command, err := a.commandID(ctx)
	if err != nil {
		return result{}, err
	}
	d.say("  A holds the lock and is frozen (SIGSTOP)")
	if err := errors.Join(a.Suspend(ctx), syscall.Kill(-command, syscall.SIGSTOP), a.goOn()); err != nil {
		return result{}, fmt.Errorf("freeze A: %w", err)
	}
	b, err := d.startWriter(ctx, dir, "B", fromB, target)
	if err != nil {
		return result{}, err
	}
	if err := b.goOn(); err != nil {
		return result{}, err
	}
	if code, err := b.Wait(ctx); err != nil || code != 0 {
		return result{}, errors.Join(err, fmt.Errorf("writer B: exit code %d:\n%s", code, b.Tail()))
	}
	d.say("  A's lease has ended, B took over: its write got %s", b.status())
	d.say("  A wakes (SIGCONT) and writes")
	// Its command wakes first. lockd exec, which would end it, doesn't know yet that the lock is gone.
	if err := syscall.Kill(-command, syscall.SIGCONT); err != nil {
		return result{}, fmt.Errorf("wake A: %w", err)
	}
	if err := waitFor(ctx, "A's answer", func() bool { return a.status() != "" }); err != nil {
		return result{}, err
	}
	if err := a.Resume(); err != nil {
		return result{}, err
	}
	if _, err := a.Wait(ctx); err != nil {
		return result{}, err
	}
	file, err := os.ReadFile(filepath.Join(folder, "report.txt")) //nolint:gosec // our own folder
	if err != nil {
		return result{}, fmt.Errorf("read the file: %w", err)
	}
	return result{status: a.status(), code: a.code(), file: string(file)}, nil
}

// writing is a writer under lockd exec.
type writing struct {
	*process.Process
	dir string
}

func (d *demo) startWriter(ctx context.Context, dir, name, text, target string) (*writing, error) {
	w := &writing{dir: filepath.Join(dir, "writer-"+name)}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	var err error
	w.Process, err = d.start(ctx, process.Spec{
		Name: "writer-" + name, Path: d.Lockd, LogDir: w.dir,
		Args: []string{"exec", "--url", d.lockd, "--key", "doc:report.txt", "--ttl", leaseTime.String(), "--grace", "200ms", "--wait", "30s", "--owner", "writer-" + name, "--", "sh", "-c", writer},
		Env:  []string{"DIR=" + w.dir, "TEXT=" + text, "TARGET=" + target},
	})
	return w, err
}

// commandID is the process group of the command under lockd exec, as soon as it holds the lock.
func (w *writing) commandID(ctx context.Context) (int, error) {
	var text []byte
	err := waitFor(ctx, w.Name()+" to hold the lock", func() bool {
		var err error
		text, err = os.ReadFile(filepath.Join(w.dir, "pid"))
		return err == nil || ended(ctx, w.Process)
	})
	if err != nil {
		return 0, err
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || id < 2 {
		return 0, fmt.Errorf("%s didn't get the lock:\n%s", w.Name(), w.Tail())
	}
	return id, nil
}

// goOn lets the writer write.
func (w *writing) goOn() error { return os.WriteFile(filepath.Join(w.dir, "go"), nil, 0o600) }

// status is the HTTP status that the writer got, "" before that.
func (w *writing) status() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "status")) // not there yet
	return string(text)
}

// code is the error code in the writer's answer, "" for none.
func (w *writing) code() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "answer")) // curl makes none for an empty answer
	var envelope struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(text, &envelope) // another answer has no code
	return envelope.Code
}

// waitFor waits until something is so.
func waitFor(ctx context.Context, what string, condition func() bool) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}
