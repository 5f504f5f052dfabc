package main

import (
	"context"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
)

const execPatience = 60 * time.Second

// lockService starts a lockd of the test's own.
func lockService(t *testing.T) (*process.Process, string) {
	t.Helper()
	p, api, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	return p, api
}

// execute starts `lockd exec` with a shell script as its command.
func execute(t *testing.T, api, key, script string, flags ...string) *process.Process {
	t.Helper()
	args := append([]string{"exec", "--key", key}, flags...)
	return start(t, []string{"LOCKD_URL=" + api}, append(args, "--", "/bin/sh", "-c", script)...)
}

// ends waits for the end and returns the exit code.
func ends(t *testing.T, p *process.Process) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), execPatience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	return code
}

// says waits until the command has printed an event.
func says(t *testing.T, p *process.Process, name string) process.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), execPatience)
	defer cancel()
	e, err := p.WaitEvent(ctx, name, func(e process.Event) bool { return e.Name() == name })
	require.NoError(t, err)
	return e
}

// running says whether a process executes, or could: neither gone nor a zombie.
func running(pid int64) bool {
	state := stateOf(pid)
	return state != "" && state != "Z" && state != "X"
}

func gone(t *testing.T, pid int64) {
	t.Helper()
	require.Positive(t, pid)
	require.Eventually(t, func() bool { return !running(pid) }, execPatience, 2*time.Millisecond)
}

// keep holds the key until the test has ended or the result is called.
func keep(t *testing.T, api, key string) (release func()) {
	t.Helper()
	session, err := lockclient.Open(t.Context(), "worker", lockclient.Options{URL: api, SessionTTL: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close(context.Background()) })
	grant, err := session.Acquire(t.Context(), key, lockclient.AcquireOptions{TTL: 5 * time.Minute})
	require.NoError(t, err)
	return func() { require.NoError(t, grant.Release(t.Context())) }
}

func held(t *testing.T, api, key string) bool {
	t.Helper()
	info, err := client(t, api).Inspect(t.Context(), key)
	require.NoError(t, err)
	return info.Held
}

// hello is a script's first line: it says who it is and what it found.
const hello = `echo "{\"event\":\"hello\",\"pid\":$$,\"token\":$FENCING_TOKEN,\"key\":\"$LOCK_KEY\",\"owner\":\"$LOCK_OWNER\"}"; `

func TestExecHandsTheGrantedTokenToItsCommand(t *testing.T) {
	t.Parallel()
	service, api := lockService(t)
	p := execute(t, api, "report", hello+`read x; exit 0`, "--owner", "cron")
	e := says(t, p, "hello")
	require.Equal(t, []string{"report", "cron"}, []string{e.Text("key"), e.Text("owner")})
	info, err := client(t, api).Inspect(t.Context(), "report")
	require.NoError(t, err)
	require.True(t, info.Held)
	require.Equal(t, "cron", info.OwnerID)
	require.Equal(t, info.FencingToken, e.Int("token"))
	require.Equal(t, says(t, service, "lock_granted").Int("token"), e.Int("token"), "the one that was granted")
	require.NoError(t, p.Type("go on"))
	require.Zero(t, ends(t, p))
	require.False(t, held(t, api, "report"), "released when exec has ended")
}

func TestExecEndsAsItsCommandDid(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	notExecutable := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(notExecutable, []byte("x"), 0o600))
	keep(t, api, "taken")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"success":            {[]string{"--key", "k1", "--", "true"}, 0, ""},
		"without dashes":     {[]string{"--key", "k2", "true", "--help"}, 0, ""},
		"its own code":       {[]string{"--key", "k3", "--", "/bin/sh", "-c", "exit 7"}, 7, ""},
		"its own 75":         {[]string{"--key", "k4", "--", "/bin/sh", "-c", "exit 75"}, 75, ""},
		"killed":             {[]string{"--key", "k5", "--", "/bin/sh", "-c", "kill -KILL $$"}, 137, ""},
		"terminated":         {[]string{"--key", "k6", "--", "/bin/sh", "-c", "kill -TERM $$"}, 143, ""},
		"command not found":  {[]string{"--key", "k7", "--", "no-such-command"}, 127, "no-such-command"},
		"path not found":     {[]string{"--key", "k7", "--", "/nowhere/x"}, 127, "/nowhere/x"},
		"not executable":     {[]string{"--key", "k8", "--", notExecutable}, 126, "permission denied"},
		"contended":          {[]string{"--key", "taken", "--wait", "50ms", "--", "true"}, 73, "another session holds the lock (worker, until"},
		"nobody there":       {[]string{"--key", "k9", "--url", "http://127.0.0.1:1", "--", "true"}, 73, "connection refused"},
		"bad key":            {[]string{"--key", "a b", "--", "true"}, 80, "key"},
		"bad ttl and owner":  {[]string{"--key", "k9", "--ttl", "1ms", "--owner", "a\nb", "--", "true"}, 80, "ttl"},
		"no command":         {[]string{"--key", "k9"}, 80, "command"},
		"nothing after dash": {[]string{"--key", "k9", "--"}, 80, "command"},
		"no key":             {[]string{"--", "true"}, 80, "--key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, output := run(t, []string{"LOCKD_URL=" + api}, append([]string{"exec"}, c.args...)...)
			require.Equal(t, c.code, code, output)
			require.Contains(t, output, c.says)
			if len(c.args) > 1 && strings.HasPrefix(c.args[1], "k") {
				require.False(t, held(t, api, c.args[1]), "nothing stays locked")
			}
		})
	}
}

// endings are the signals that are passed on, by the names that a shell has for them.
func endings() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	}
}

func TestSignalWhileWaitingEndsTheWaiting(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	c := client(t, api)
	for name, number := range endings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waits := "k-" + name
			release := keep(t, api, waits)
			p := execute(t, api, waits, `echo '{"event":"ran"}'`, "--wait", "10m")
			waiters := func(n int) func() bool {
				return func() bool {
					info, err := c.Inspect(t.Context(), waits)
					return err == nil && info.WaiterCount != nil && *info.WaiterCount == n
				}
			}
			require.Eventually(t, waiters(1), execPatience, 5*time.Millisecond)
			require.NoError(t, syscall.Kill(p.PID(), number))
			require.Equal(t, 128+int(number), ends(t, p))
			require.Contains(t, written(t, p), "while waiting for the lock")
			require.Empty(t, p.Events("ran"))
			require.Eventually(t, waiters(0), execPatience, 5*time.Millisecond, "it has left the queue")
			release()
			require.False(t, held(t, api, waits), "and got nothing afterwards")
		})
	}
}

func TestSignalsReachTheCommandAndItsChildren(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	for name, number := range endings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The child of the command traps as well, in the background of the shell; a shell has its own SIGINT and SIGQUIT ignored there, so it is
			// not asked about those.
			script := hello + `trap 'echo "{\"event\":\"got\",\"signal\":\"` + name + `\"}"; exit 9' ` + name + `; echo '{"event":"ready"}'; while :; do sleep 0.05; done`
			p := execute(t, api, "run-"+name, script)
			says(t, p, "ready")
			require.NoError(t, syscall.Kill(p.PID(), number))
			require.Equal(t, name, says(t, p, "got").Text("signal"))
			require.Equal(t, 9, ends(t, p))
			require.False(t, held(t, api, "run-"+name))
		})
	}
	t.Run("the whole group", func(t *testing.T) {
		t.Parallel()
		p := execute(t, api, "group", `sh -c 'trap "echo {\\\"event\\\":\\\"grandchild\\\"}; exit 3" TERM; echo "{\"event\":\"ready\"}"; while :; do sleep 0.05; done'; exit $?`)
		says(t, p, "ready")
		require.NoError(t, syscall.Kill(p.PID(), syscall.SIGTERM))
		says(t, p, "grandchild")
		ends(t, p)
	})
}

// Whoever holds the lock after its deadline could meet another holder. With lockd gone nobody tells exec so: it must know by itself.
func TestCommandIsDeadBeforeTheDeadlineWhenLockdVanishes(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	t.Run("a command that ignores SIGTERM", func(t *testing.T) {
		t.Parallel()
		service, api := lockService(t)
		beats := filepath.Join(t.TempDir(), "beats")
		p := execute(t, api, "k", hello+`trap '' TERM; while :; do echo x >> `+beats+`; sleep 0.02; done`, "--ttl", ttl.String(), "--grace", "2s")
		pid := says(t, p, "hello").Int("pid")
		require.NoError(t, killed(t, service))
		vanished := time.Now()
		gone(t, pid)
		require.Less(t, time.Since(vanished), ttl, "when lockd would have given the lock to another")
		require.Equal(t, 75, ends(t, p))
		require.Contains(t, written(t, p), "SIGTERM")
		require.Contains(t, written(t, p), "SIGKILL")
		last, err := os.Stat(beats)
		require.NoError(t, err)
		require.Less(t, last.ModTime().Sub(vanished), ttl*7/10, "what lockd answered last was asked before it vanished, so the deadline is before this")
	})
	t.Run("a command that stops when it is asked to", func(t *testing.T) {
		t.Parallel()
		service, api := lockService(t)
		p := execute(t, api, "k", hello+`trap 'echo "{\"event\":\"bye\"}"; exit 0' TERM; echo '{"event":"ready"}'; while :; do sleep 0.02; done`, "--ttl", ttl.String())
		says(t, p, "ready")
		require.NoError(t, killed(t, service))
		says(t, p, "bye")
		require.Equal(t, 75, ends(t, p), "it was ended, whatever it says itself")
		require.NotContains(t, written(t, p), "command_killed")
	})
}

func killed(t *testing.T, p *process.Process) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), execPatience)
	defer cancel()
	return p.Kill(ctx)
}

func TestRevokedLockEndsTheCommandAtOnce(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	p := execute(t, api, "k", hello+`trap '' TERM; while :; do sleep 0.05; done`, "--ttl", "6s")
	pid := says(t, p, "hello").Int("pid")
	_, err := client(t, api).Revoke(t.Context(), "k", lockapi.RevokeRequest{Operator: "op", Reason: "it is stuck"})
	require.NoError(t, err)
	gone(t, pid)
	require.Equal(t, 75, ends(t, p))
}

func TestNothingOutlivesAKilledExec(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	p := execute(t, api, "k", hello+`trap '' TERM HUP INT; while :; do sleep 0.05; done`, "--ttl", "10s")
	pid := says(t, p, "hello").Int("pid")
	// Long enough for a renewal, so that threads of exec's have had work and rest: the command dies with the process, not with one of them.
	require.Never(t, func() bool { return !running(pid) }, 3*time.Second, 50*time.Millisecond)
	require.NoError(t, killed(t, p))
	gone(t, pid)
	require.Eventually(t, func() bool { return !held(t, api, "k") }, execPatience, 20*time.Millisecond, "its lease ends by itself")
}

func TestWhatTheCommandLeavesBehindEndsBeforeTheLockIsReleased(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	p := execute(t, api, "k", hello+`sh -c 'trap "" TERM HUP; echo "{\"event\":\"left\",\"pid\":$$}"; while :; do sleep 0.05; done' & read x; exit 4`, "--grace", "500ms")
	pid := says(t, p, "left").Int("pid")
	require.NoError(t, p.Type("go on"))
	require.Equal(t, 4, ends(t, p))
	require.False(t, running(pid))
	p = execute(t, api, "polite", hello+`sh -c 'trap "echo {\\\"event\\\":\\\"tidied\\\"}; exit" TERM; echo "{\"event\":\"left\"}"; while :; do sleep 0.05; done' & read x; exit 4`)
	says(t, p, "left")
	require.NoError(t, p.Type("go on"))
	require.Equal(t, 4, ends(t, p))
	require.Len(t, p.Events("tidied"), 1)
}

// A stopped exec can do nothing, which is a limit; woken too late it ends the command at once.
func TestExecThatWakesAfterItsLeaseEndsItsCommand(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	p := execute(t, api, "k", hello+`trap '' TERM; while :; do sleep 0.05; done`, "--ttl", "4s")
	pid := says(t, p, "hello").Int("pid")
	ctx, cancel := context.WithTimeout(t.Context(), execPatience)
	defer cancel()
	require.NoError(t, p.Suspend(ctx))
	require.Eventually(t, func() bool { return !held(t, api, "k") }, execPatience, 20*time.Millisecond)
	require.True(t, running(pid), "the limit that the help names")
	require.NoError(t, p.Resume())
	require.Equal(t, 75, ends(t, p))
	require.False(t, running(pid))
}

// Ctrl-Z stops both, so that the command never runs on while exec can't renew.
func TestCtrlZStopsBothAndTheCommandGoesOnOnlyUnderItsLock(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	for name, c := range map[string]struct {
		ttl  string
		late bool
		code int
	}{"in time": {"60s", false, 5}, "too late": {"4s", true, 75}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := strings.ReplaceAll(name, " ", "-")
			p := execute(t, api, key, hello+`read x; echo '{"event":"ran on"}'; exit 5`, "--ttl", c.ttl)
			pid := says(t, p, "hello").Int("pid")
			require.NoError(t, syscall.Kill(p.PID(), syscall.SIGTSTP))
			require.Eventually(t, func() bool { return stateOf(int64(p.PID())) == "T" && stateOf(pid) == "T" }, execPatience, 5*time.Millisecond)
			if c.late {
				require.Eventually(t, func() bool { return !held(t, api, key) }, execPatience, 20*time.Millisecond)
			}
			require.NoError(t, p.Type("go on"))
			require.NoError(t, p.Resume())
			require.Equal(t, c.code, ends(t, p))
			require.Len(t, p.Events("ran on"), map[bool]int{false: 1, true: 0}[c.late])
		})
	}
}

func TestExecSaysWhatHappensAsJSON(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	p := execute(t, api, "k", hello+`true`, "-o", "json")
	require.Zero(t, ends(t, p))
	granted := says(t, p, "lock_granted")
	require.Equal(t, "k", granted.Text("lockKey"))
	require.Equal(t, says(t, p, "hello").Int("token"), granted.Int("token"))
	code, output := run(t, nil, "exec", "--help")
	require.Zero(t, code)
	for _, word := range []string{"FENCING_TOKEN", "SIGKILL", "73", "75", "Limits", "SIGSTOP", "setuid", "own children"} {
		require.Contains(t, output, word)
	}
}

// The command that the docs show, run by a shell as it stands.
func TestExecOfTheDocsWorks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/client.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)<!-- run by a test: exec -->\n```sh\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block)
	_, api := lockService(t)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lockd"), []byte("#!/bin/sh\n"+runMain+"=1 exec "+self+` "$@"`+"\n"), 0o700))
	shell := osexec.CommandContext(t.Context(), "/bin/sh", "-c", string(block[1]))
	shell.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "LOCKD_URL=" + api}
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^key nightly-report, token [1-9][0-9]*, as exec-\S+\n$`, string(out))
}
