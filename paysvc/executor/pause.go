package executor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"

	"fenceline/lockd/lock"
)

// ParsePause reads "STEP=stdin", such as "submit=stdin", and returns the step before whose request the executor is to wait.
func ParsePause(text string) (Step, error) {
	step, source, _ := strings.Cut(text, "=")
	switch s := Step(step); s {
	case StepClaim, StepSubmit, StepPost:
		if source == "stdin" {
			return s, nil
		}
	case StepAcquire, StepRead:
	}
	return "", fmt.Errorf("pause-before %q: want claim=stdin, submit=stdin or post=stdin", text)
}

// pauser is the pause hook: it lets an experiment stop the process at a known place.
type pauser struct {
	before Step
	lines  *bufio.Reader
	logger hclog.Logger
}

func newPauser(before Step, input io.Reader, logger hclog.Logger) *pauser {
	p := &pauser{before: before, logger: logger}
	if input != nil {
		p.lines = bufio.NewReader(input)
	}
	return p
}

// at says that the request of the step is about to be sent, and, when the step is the one to pause at, waits for one line. At the end of
// input nobody can ever write the line: that is an error, and the request isn't sent.
func (p *pauser) at(ctx context.Context, step Step, payoutID string, token lock.Token) error {
	if p.before != step || p.lines == nil {
		return nil
	}
	p.logger.Info("paused, waiting for a line on standard input", "event", "pause_point",
		"step", string(step), "payoutId", payoutID, "token", int64(token), "pid", os.Getpid())
	read := make(chan error, 1)
	go func() { // it outlives a cancelled wait, until the process ends: nothing can interrupt a read of standard input
		_, err := p.lines.ReadString('\n')
		read <- err
	}()
	select {
	case err := <-read:
		if errors.Is(err, io.EOF) {
			err = errors.New("standard input ended before a line")
		}
		if err != nil {
			return fmt.Errorf("pause before %s: %w", step, err)
		}
		return nil
	case <-ctx.Done():
		return errStopping
	}
}
