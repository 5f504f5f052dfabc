package robustness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Soak runs a workload against a system in trouble, window by window. All clients stop at the end of a window, and the next one has
// sessions and keys of its own, so that an operation of unknown outcome stays open to the end of its window and concerns no other:
// history and checking stay bounded however long it runs. What joins the windows is that tokens never go back.
type Soak struct {
	System  *System
	Backend Backend
	For     time.Duration // in all
	// More, when not nil, says that what has been seen isn't enough yet: there is another window then.
	More    func(Total) bool
	Window  time.Duration
	Clients int
	Keys    int
	Wait    time.Duration // see Workload; in every other window
	Pause   time.Duration // see Trouble
	Seed    uint64
	Limit   time.Duration // for the check of one key
	Dir     string        // for what is written about a violation
	Out     io.Writer
}

// Total is what a soak has seen.
type Total struct {
	Windows, Ops, Unknown, Nothing int
	Faults                         map[string]int
	Highest                        int64
	Slowest                        time.Duration // check of one partition
}

func (t Total) String() string {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(t.Faults)) {
		faults = append(faults, fmt.Sprintf("%d × %s", t.Faults[name], name))
	}
	return fmt.Sprintf("%d windows, %d operations, %d of unknown outcome, %d came to nothing; %s; tokens up to %d; slowest check %s",
		t.Windows, t.Ops, t.Unknown, t.Nothing, strings.Join(faults, ", "), t.Highest, t.Slowest.Round(time.Millisecond))
}

// Run returns an error at the first window without an explanation, whose history stays in Dir.
func (s Soak) Run(ctx context.Context) (Total, error) {
	total := Total{Faults: map[string]int{}}
	since := time.Now()
	for ctx.Err() == nil && (time.Since(since) < s.For || s.More != nil && s.More(total)) {
		total.Windows++
		history, faults, err := s.window(ctx, total, since)
		if err != nil {
			return total, fmt.Errorf("window %d: %w", total.Windows, err)
		}
		if err := s.judge(&total, history, faults, time.Since(since)); err != nil {
			return total, err
		}
	}
	return total, nil
}

// window runs clients and trouble side by side.
func (s Soak) window(ctx context.Context, total Total, since time.Time) (*History, map[string]int, error) {
	troubleCtx, end := context.WithTimeout(ctx, s.Window)
	defer end()
	type outcome struct {
		faults map[string]int
		err    error
	}
	trouble := make(chan outcome, 1)
	go func() {
		faults, err := Trouble{System: s.System, Faults: Faults(), Pause: s.Pause, Seed: s.Seed + uint64(total.Windows)}.Run(troubleCtx) //nolint:gosec // a small number
		trouble <- outcome{faults, err}
	}()
	wait := s.Wait
	if total.Windows%2 == 0 { // without waiting, being contended is the store's answer and is judged, too
		wait = 0
	}
	history := Workload{
		Clients: s.Clients, Keys: Keys(total.Windows, s.Keys), For: s.Window, Wait: wait, Think: 5 * time.Millisecond, Timeout: 600 * time.Millisecond,
		ShortTTL: s.Backend.ShortTTL, LongTTL: s.Backend.LongTTL, SessionTTL: s.Backend.SessionTTL, Late: s.Backend.Late,
		Seed: s.Seed + uint64(total.Windows), Above: total.Highest, Target: s.System.Target, Since: since, //nolint:gosec // a small number
	}.Run(ctx)
	result := <-trouble
	return history, result.faults, result.err
}

// judge checks a window and says what came of it.
func (s Soak) judge(total *Total, history *History, faults map[string]int, at time.Duration) error {
	ops, unknown, nothing := history.Count()
	total.Ops, total.Unknown, total.Nothing = total.Ops+ops, total.Unknown+unknown, total.Nothing+nothing
	total.Highest = history.HighestToken()
	for name, n := range faults {
		total.Faults[name] += n
	}
	verdict := history.Check(s.Limit)
	sessions, keys := 0, []string(nil)
	for _, p := range verdict.Partitions {
		total.Slowest = max(total.Slowest, p.Took)
		if key, is := strings.CutPrefix(p.Name, "key "); is {
			keys = append(keys, fmt.Sprintf("%s %s (%d ops, %d open)", key, p.Result, p.Ops, p.Open))
		} else {
			sessions++
		}
	}
	fmt.Fprintf(s.Out, "[%6.1fs] %s: %4d ops, %3d unknown, %3d came to nothing, faults %v; %s; %d sessions\n",
		at.Seconds(), s.Backend.Name, ops, unknown, nothing, faults, strings.Join(keys, ", "), sessions)
	err := verdict.Err()
	if err == nil {
		return nil
	}
	dir := filepath.Join(s.Dir, fmt.Sprintf("%s-window-%d", s.Backend.Name, total.Windows))
	if mkErr := os.MkdirAll(dir, 0o700); mkErr != nil {
		return errors.Join(err, mkErr)
	}
	return errors.Join(fmt.Errorf("window %d: %w", total.Windows, err), history.Report(verdict, dir, s.Limit, s.Out))
}
