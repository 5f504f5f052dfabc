package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// screen is a terminal of the test's own, with lockd exec as the leader of its session.
type screen struct {
	keyboard *os.File
	command  *exec.Cmd
	ended    chan struct{}

	mu    sync.Mutex
	shown bytes.Buffer
}

func (s *screen) text() string { s.mu.Lock(); defer s.mu.Unlock(); return s.shown.String() }

// onTerminal runs `lockd exec` with a shell script on a terminal.
func onTerminal(t *testing.T, api, key, script string, flags ...string) *screen {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	s := &screen{keyboard: keyboard, ended: make(chan struct{})}
	args := append([]string{"exec", "--key", key, "--url", api}, flags...)
	s.command = exec.CommandContext(t.Context(), self, append(args, "--", "/bin/sh", "-c", script)...)
	s.command.Env = append(os.Environ(), runMain+"=1")
	s.command.Stdin, s.command.Stdout, s.command.Stderr = terminal, terminal, terminal
	s.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, s.command.Start())
	require.NoError(t, terminal.Close())
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(writer(func(p []byte) { s.mu.Lock(); defer s.mu.Unlock(); s.shown.Write(p) }), keyboard) // until the other end is closed
	}()
	go func() {
		defer close(s.ended)
		_ = s.command.Wait()
		<-read
	}()
	t.Cleanup(func() {
		_ = s.command.Process.Kill()
		<-s.ended
		require.NoError(t, keyboard.Close())
	})
	return s
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// shows waits for a text and returns its last group.
func (s *screen) shows(t *testing.T, pattern string) string {
	t.Helper()
	expression := regexp.MustCompile(pattern)
	var found []string
	require.Eventually(t, func() bool { found = expression.FindStringSubmatch(s.text()); return found != nil }, execPatience, 2*time.Millisecond, pattern)
	return found[len(found)-1]
}

func (s *screen) types(t *testing.T, keys string) {
	t.Helper()
	_, err := s.keyboard.WriteString(keys)
	require.NoError(t, err)
}

func (s *screen) code(t *testing.T) int {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(execPatience):
		require.Fail(t, "it doesn't end", s.text())
	}
	return s.command.ProcessState.ExitCode()
}

// stateOf is the letter of a process's state.
func stateOf(pid int64) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestCommandIsGivenTheTerminalWhenItReads(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	s := onTerminal(t, api, "k", `echo ready; read x; echo "read: $x"; exit 4`)
	s.shows(t, "ready")
	s.types(t, "hello\n")
	s.shows(t, "read: hello")
	require.Equal(t, 4, s.code(t))
	require.False(t, held(t, api, "k"))
}

func TestCtrlCReachesTheCommandWhoeverHasTheTerminal(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	for name, script := range map[string]string{
		"exec has it":        `trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done`,
		"the command has it": `read x; trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onTerminal(t, api, strings.ReplaceAll(name, " ", "-"), script)
			if strings.HasPrefix(script, "read") {
				s.types(t, "\n")
			}
			s.shows(t, "ready")
			s.types(t, ctrlC)
			s.shows(t, "caught")
			require.Equal(t, 3, s.code(t))
			require.Equal(t, 1, strings.Count(s.text(), "caught"), "once")
		})
	}
}

func TestCtrlZStopsExecWithACommandThatHasTheTerminal(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	s := onTerminal(t, api, "k", `read x; echo "pid $$."; while :; do read x && break; done; echo "read: $x"; exit 6`)
	s.types(t, "\n")
	pid, err := strconv.ParseInt(s.shows(t, `pid (\d+)\.`), 10, 64)
	require.NoError(t, err)
	s.types(t, ctrlZ)
	stopped := func() bool { return stateOf(pid) == "T" && stateOf(int64(s.command.Process.Pid)) == "T" }
	require.Eventually(t, stopped, execPatience, 5*time.Millisecond)
	require.NoError(t, s.command.Process.Signal(syscall.SIGCONT)) // what a shell's fg does
	s.types(t, "again\n")
	s.shows(t, "read: again")
	require.Equal(t, 6, s.code(t))
}
