package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// spent is processor time. It says more than rates where contestants, servers and clients share the processors: what it takes for a pair is a bound
// on pairs a second, and it changes little when somebody else keeps the machine busy.
type spent struct{ clients, service, database time.Duration }

func (s spent) minus(t spent) spent {
	return spent{s.clients - t.clients, s.service - t.service, s.database - t.database}
}

func (s spent) over(n int) spent {
	d := time.Duration(max(n, 1))
	return spent{s.clients / d, s.service / d, s.database / d}
}

func (s spent) total() time.Duration { return s.clients + s.service + s.database }

// processes are those whose processor time is a contestant's, beside this one, which is its clients. 0 is none.
type processes struct{ service, database int }

// spentBy reads how much processor time they have used so far, with all that they have started. Nothing where the system doesn't tell it.
func spentBy(p processes) spent {
	all := readProcesses()
	return spent{clients: all[os.Getpid()].self, service: all.tree(p.service), database: all.tree(p.database)}
}

// oneProcess is a line of the system's table. Ended is the time of its children that have ended.
type oneProcess struct {
	parent      int
	self, ended time.Duration
}

type processTable map[int]oneProcess

func (t processTable) tree(root int) time.Duration {
	if root == 0 {
		return 0
	}
	sum := t[root].self + t[root].ended
	for pid, one := range t {
		if one.parent == root {
			sum += t.tree(pid)
		}
	}
	return sum
}

// clockTick is the unit of processor time in /proc, the same on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

func readProcesses() processTable {
	table := processTable{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // only a bad pattern is an error
	for _, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // the system's own
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		// The name of the program stands in parentheses and may hold anything.
		_, rest, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			continue
		}
		var n [15]int64
		for i, field := range fields[:15] {
			n[i], _ = strconv.ParseInt(field, 10, 64) // the state is a letter
		}
		table[pid] = oneProcess{
			parent: int(n[1]), self: time.Duration(n[11]+n[12]) * clockTick, ended: time.Duration(n[13]+n[14]) * clockTick,
		}
	}
	return table
}

// serverProcess is the process of which all others of a PostgreSQL server on this machine are children; 0 where the system doesn't tell it.
func serverProcess(ctx context.Context, url string) (int, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return 0, fmt.Errorf("find the server's process: %w", err)
	}
	return readProcesses()[backend].parent, nil
}
