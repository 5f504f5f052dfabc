package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The tests start this binary again as withpg itself.
const asProgram = "WITHPG_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func withpg(t *testing.T, url string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", variable+"="+url)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}

func TestCommandFindsAServerAndItsExitCodeIsKept(t *testing.T) {
	t.Parallel()
	cmd, stderr := withpg(t, "", "--", "sh", "-c", "echo $"+variable+"; exit 7")
	out, err := cmd.Output()
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), "%v %s", err, stderr)
	require.Regexp(t, `PostgreSQL \d+\.\d+.* on 127`, stderr.String(), "the version is said")
	url := strings.TrimSpace(string(out))
	require.Contains(t, url, "postgres://")
	_, err = pgx.Connect(t.Context(), url)
	require.Error(t, err, "the server is stopped with the command")
}

// The command gets the interrupt and ends as it likes; the server is stopped after it.
func TestSignalReachesTheCommandAndTheServerIsStopped(t *testing.T) {
	t.Parallel()
	ready := filepath.Join(t.TempDir(), "url")
	script := "trap 'exit 9' INT; echo $" + variable + " > " + ready + ".new; mv " + ready + ".new " + ready + "; while :; do sleep 0.1; done"
	cmd, stderr := withpg(t, "", "--", "sh", "-c", script)
	require.NoError(t, cmd.Start())
	var url []byte
	require.Eventually(t, func() (ok bool) {
		var err error
		url, err = os.ReadFile(ready)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(string(url)))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	require.Equal(t, 9, cmd.ProcessState.ExitCode(), stderr)
	_, err = pgx.Connect(t.Context(), strings.TrimSpace(string(url)))
	require.Error(t, err)
}

func TestWhatCannotRunIsSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url  string
		args []string
		code int
		text string
	}{
		"no command":            {"", []string{"--"}, 2, "usage: withpg"},
		"unusable URL":          {"secret:", []string{"--", "true"}, 1, variable + ": want a URL"},
		"nobody at the address": {"postgres://u:secret@127.0.0.1:1/postgres", []string{"true"}, 1, variable + ": connect"},
		"no such program":       {"", []string{"--", "no-such-program"}, 1, "run no-such-program"},
	} {
		cmd, stderr := withpg(t, c.url, c.args...)
		_ = cmd.Run()
		require.Equal(t, c.code, cmd.ProcessState.ExitCode(), name)
		require.Contains(t, stderr.String(), c.text, name)
		require.NotContains(t, stderr.String(), "secret", name)
	}
}
