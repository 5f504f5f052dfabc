package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func startShell(t *testing.T, script string) (context.Context, *Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	p, err := Start(ctx, Spec{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, LogDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, p.Kill(ctx))
	})
	return ctx, p
}

func named(name string) func(Event) bool { return func(e Event) bool { return e.Name() == name } }

func TestEventsAreReadFromTheLog(t *testing.T) {
	t.Parallel()
	ctx, p := startShell(t, `echo plain text; echo '{"event":"granted","token":9007199254740993}'; echo '{"event":"listening","listener":"api","address":"127.0.0.1:1"}' >&2; read x`)
	e, err := p.WaitEvent(ctx, "granted", named("granted"))
	require.NoError(t, err)
	require.Equal(t, int64(9007199254740993), e.Int("token"), "a token above 2^53 must not lose digits")
	address, err := p.Address(ctx, "api")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", address)
	require.Len(t, p.Events("granted"), 1)
}

func TestWaitingForAnEventEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	ctx, p := startShell(t, `echo something went wrong >&2; exit 7`)
	_, err := p.WaitEvent(ctx, "granted", named("granted"))
	require.ErrorContains(t, err, "exit code 7")
	require.ErrorContains(t, err, "something went wrong")
}

func TestWaitingForAnEventEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, p := startShell(t, `read x`)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := p.WaitEvent(ctx, "granted", named("granted"))
	require.ErrorIs(t, err, cause)
}

func TestSuspendedProcessExecutesNothingUntilResumed(t *testing.T) {
	t.Parallel()
	ctx, p := startShell(t, `echo '{"event":"ready"}'; read x; echo '{"event":"woke"}'`)
	_, err := p.WaitEvent(ctx, "ready", named("ready"))
	require.NoError(t, err)
	require.NoError(t, p.Suspend(ctx))
	require.NoError(t, p.Type("go"))

	for range 20 { // its input is there, yet it stays stopped
		state, err := p.state(ctx)
		require.NoError(t, err)
		require.Equal(t, byte('T'), state[0])
	}
	require.Empty(t, p.Events("woke"))

	require.NoError(t, p.Resume())
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, code)
	require.Len(t, p.Events("woke"), 1)
}

func TestStopAsksFirstAndKillsAtTheDeadline(t *testing.T) {
	t.Parallel()
	ctx, polite := startShell(t, `trap 'exit 3' TERM; echo '{"event":"ready"}'; while :; do read x || sleep 0.01; done`)
	_, err := polite.WaitEvent(ctx, "ready", named("ready"))
	require.NoError(t, err)
	require.NoError(t, polite.Stop(ctx))
	require.Equal(t, 3, polite.ExitCode())
	require.NoError(t, polite.Stop(ctx), "a second stop finds it gone")

	_, deaf := startShell(t, `trap '' TERM; echo '{"event":"ready"}'; while :; do read x || sleep 0.01; done`)
	_, err = deaf.WaitEvent(ctx, "ready", named("ready"))
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, deaf.Stop(short), "still running")
	require.Equal(t, -1, deaf.ExitCode())
}

func TestProgramThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Spec{Name: "ghost", Path: "/nowhere/ghost", LogDir: t.TempDir()})
	require.ErrorContains(t, err, "ghost")
}
