package robustness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict says of each key and each session whether its operations can be put in an order in which a fenced mutex with expiry would have
// answered them as they were answered.
type Verdict struct {
	Partitions []Partition
	Unexpected []string // answers that nobody should get
}

// Partition is what belongs together: one key, or one session.
type Partition struct {
	Name   string
	Ops    int
	Open   int // operations of unknown outcome
	Result porcupine.CheckResult
	Took   time.Duration

	model   porcupine.Model
	history []porcupine.Operation
}

// ErrViolation means that a history has no explanation. ErrUndecided means that the checker ran out of time, which is not a success.
var (
	ErrViolation = errors.New("not linearizable")
	ErrUndecided = errors.New("undecided: the checker ran out of time; shorten the window or the faults in it")
)

var errUnexpected = errors.New("unexpected answer")

// Check looks for an explanation of each key and session, each within the time limit.
func (h *History) Check(limit time.Duration) Verdict {
	var verdict Verdict
	for _, op := range h.sorted(func(op *Op) bool { return op.Result == Unexpected }) {
		verdict.Unexpected = append(verdict.Unexpected, op.line()+": "+op.Detail)
	}
	for _, p := range h.partitions() {
		start := time.Now()
		p.Result = porcupine.CheckOperationsTimeout(p.model, p.history, limit)
		p.Took = time.Since(start)
		verdict.Partitions = append(verdict.Partitions, p)
	}
	return verdict
}

// partitions cuts the history: its keys, judged with what is known of the sessions' lives, and its sessions.
func (h *History) partitions() []Partition {
	sessions, keys := map[int][]*Op{}, map[string][]*Op{}
	end := time.Duration(0)
	for _, op := range h.sorted(func(*Op) bool { return true }) {
		end = max(end, op.Return)
		if op.Result == Unexpected {
			continue
		}
		if op.Session != 0 && (op.Kind != Acquire || op.Result == OK || op.sessionOver()) {
			sessions[op.Session] = append(sessions[op.Session], op)
		}
		if op.Key != "" && !op.sessionOver() && (op.Result != Contended || !h.Queued) {
			keys[op.Key] = append(keys[op.Key], op)
		}
	}
	lives, unsure := map[int]life{}, map[int][]life{}
	for session, ops := range sessions {
		if !slices.ContainsFunc(ops, func(op *Op) bool { return op.Kind == Open }) { // nothing is known of its time
			delete(sessions, session)
			continue
		}
		lives[session], unsure[session] = sessionLife(ops, h.Late), doubts(ops, h.Late)
	}
	var partitions []Partition
	for key, ops := range keys {
		model := &keyModel{above: h.Above, late: h.Late, lives: lives, doubts: unsure}
		partitions = append(partitions, partition("key "+key, ops, end, model.model()))
	}
	for session, ops := range sessions {
		partitions = append(partitions, partition("session s"+strconv.Itoa(session), ops, end, sessionModel(h.Late)))
	}
	slices.SortFunc(partitions, func(a, b Partition) int { return strings.Compare(a.Name, b.Name) })
	return partitions
}

// partition gives the operations to porcupine. Those of unknown outcome return after everything else.
func partition(name string, ops []*Op, end time.Duration, model porcupine.Model) Partition {
	p := Partition{Name: name, Ops: len(ops), model: model}
	for _, op := range ops {
		until := op.Return
		if op.Result == Unknown {
			p.Open++
			until = end + 1
		}
		p.history = append(p.history, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(until)})
	}
	return p
}

func (h *History) sorted(wanted func(*Op) bool) []*Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ops []*Op
	for _, op := range h.ops {
		if wanted(op) {
			ops = append(ops, op)
		}
	}
	slices.SortStableFunc(ops, func(a, b *Op) int { return int(a.Call - b.Call) })
	return ops
}

// Err is nil when every partition has an explanation.
func (v Verdict) Err() error {
	var errs []error
	for _, line := range v.Unexpected {
		errs = append(errs, fmt.Errorf("%w: %s", errUnexpected, line))
	}
	for _, p := range v.Partitions {
		switch p.Result {
		case porcupine.Ok:
		case porcupine.Illegal:
			errs = append(errs, fmt.Errorf("%s: %d operations: %w", p.Name, p.Ops, ErrViolation))
		default:
			errs = append(errs, fmt.Errorf("%s: %d operations, %d of them open: %w", p.Name, p.Ops, p.Open, ErrUndecided))
		}
	}
	return errors.Join(errs...)
}

// Report writes, for each partition without an explanation, the longest explanation that there is and what doesn't follow from it.
// The whole history and porcupine's pictures of the partitions go to files in dir.
func (h *History) Report(v Verdict, dir string, limit time.Duration, out io.Writer) error {
	file, err := os.Create(filepath.Join(dir, "history.jsonl")) //nolint:gosec // the caller's own folder
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := errors.Join(h.WriteJSON(file), file.Close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "the history is in %s\n", file.Name())
	for _, p := range v.Partitions {
		if p.Result == porcupine.Ok {
			continue
		}
		_, info := porcupine.CheckOperationsVerbose(p.model, p.history, limit)
		picture := filepath.Join(dir, strings.Map(fileName, p.Name)+".html")
		if err := porcupine.VisualizePath(p.model, info, picture); err != nil {
			return fmt.Errorf("draw %s: %w", p.Name, err)
		}
		fmt.Fprintf(out, "\n%s: %s; the picture is in %s\n", p.Name, p.Result, picture)
		p.explain(info, out)
	}
	return nil
}

func fileName(r rune) rune {
	if r == ' ' || r == ':' || r == '/' {
		return '-'
	}
	return r
}

// contextOps is how many operations around a violation are printed.
const contextOps = 12

// explain prints the end of the longest order found and the operations that might have come next, none of which fits.
func (p Partition) explain(info porcupine.LinearizationInfo, out io.Writer) {
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	done := map[*Op]bool{}
	state := p.model.Init()
	fmt.Fprintf(out, "  %d of %d operations fit, the last of them (times in ms):\n", len(longest), p.Ops)
	for i, o := range longest {
		op := o.Input.(*Op)
		done[op] = true
		_, state = p.model.Step(state, op, nil)
		if i >= len(longest)-contextOps {
			fmt.Fprintf(out, "    %s\n", op.line())
		}
	}
	fmt.Fprintf(out, "  then the state is %s, and no one of these fits:\n", p.model.DescribeState(state))
	left := 0
	for _, o := range p.history {
		op := o.Input.(*Op)
		if !done[op] && left < contextOps {
			left++
			fmt.Fprintf(out, "    %s\n", op.line())
		}
	}
}
