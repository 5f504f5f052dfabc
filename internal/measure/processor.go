package measure

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Spent is processor time. It says more than rates where contestants, servers and clients share the processors: what a request takes bounds
// the requests a second, and it changes little when somebody else keeps the machine busy.
type Spent struct{ Clients, Service, Database time.Duration }

// Plus adds.
func (s Spent) Plus(t Spent) Spent {
	return Spent{s.Clients + t.Clients, s.Service + t.Service, s.Database + t.Database}
}

// Minus subtracts.
func (s Spent) Minus(t Spent) Spent {
	return Spent{s.Clients - t.Clients, s.Service - t.Service, s.Database - t.Database}
}

// Over is a share of it.
func (s Spent) Over(n int) Spent {
	d := time.Duration(max(n, 1))
	return Spent{s.Clients / d, s.Service / d, s.Database / d}
}

// Total is all of it.
func (s Spent) Total() time.Duration { return s.Clients + s.Service + s.Database }

// SpentBy reads how much processor time some processes have used so far, with all that they have started; this process counts as the clients. Database is the
// process of which the server's others are children; 0 is none. It is nothing where the system doesn't tell it.
func SpentBy(service []int, database int) Spent {
	all := readProcesses()
	s := Spent{Clients: all[os.Getpid()].self, Database: all.tree(database)}
	for _, pid := range service {
		s.Service += all.tree(pid)
	}
	return s
}

// Parent is the process that started another one; 0 where the system doesn't tell it.
func Parent(pid int) int { return readProcesses()[pid].parent }

// Resident is the memory of a process that is in RAM, in bytes; 0 where the system doesn't tell it.
func Resident(pid int) int64 {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64) // the system's own number
	return pages * int64(os.Getpagesize())
}

// oneProcess is a line of the system's table. ended is the time of its children that have ended.
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
