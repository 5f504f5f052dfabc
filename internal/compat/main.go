// Compat runs the stores' suites on every version of PostgreSQL that is supported, and through PgBouncer in transaction mode, and prints a table:
//
//	compat [--majors 14,18] [--evidence docs/evidence.json]
//
// With --evidence it also writes which gates ran in which environment with which result. What didn't run is a blocker there, never a success.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

var errNotGreen = errors.New("not everything passed")

func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("compat", flag.ContinueOnError)
	flags.SetOutput(progress)
	list := flags.String("majors", "14,15,16,17,18", "versions of PostgreSQL, separated by commas")
	file := flags.String("evidence", "", "a file for the evidence; empty: none")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	versions, err := parse(*list)
	if err != nil {
		return err
	}
	commit := describe(ctx)
	var all []ran
	for _, e := range environments(versions) {
		r, err := runAll(ctx, e, progress)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // such as a server that can't be had; the others go on
			fmt.Fprintln(progress, err)
		}
		all = append(all, r)
	}
	whole := table(out, all)
	if *file != "" {
		if err := save(*file, collect(all, time.Now().UTC().Format(time.DateOnly), commit, machine())); err != nil {
			return err
		}
		fmt.Fprintln(out, "evidence:", *file)
	}
	if !whole {
		return errNotGreen
	}
	return nil
}

func parse(list string) ([]int, error) {
	var versions []int
	for text := range strings.SplitSeq(list, ",") {
		major, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || !slices.Contains(majors(), major) {
			return nil, fmt.Errorf("--majors %s: want some of %v", list, majors())
		}
		versions = append(versions, major)
	}
	return versions, nil
}

func save(path string, e evidence) error {
	file, err := os.Create(path) //nolint:gosec // the caller's own file
	if err != nil {
		return err
	}
	return errors.Join(e.write(file), file.Close())
}

// describe names the commit that was tested, with "-dirty" where files differ from it.
func describe(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func machine() string {
	return fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
}
